"""MLPs, layer styles and initializers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from epibatch.core.errors import ConfigError
from epibatch.core.rl_module.default_model_config import ACTIVATIONS, DefaultModelConfig
from epibatch.core.rl_module.networks import MLP, fc_layers, run


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("layernorm", [False, True])
def test_mlp_computes_what_a_sequential_does(activation, layernorm):
    config = DefaultModelConfig(fcnet_hiddens=[8, 5], fcnet_activation=activation, fcnet_use_layernorm=layernorm)
    layers = fc_layers(config, "fcnet", 3, 2)
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    grads = []
    for net in (MLP(*layers), nn.Sequential(*layers)):
        net.zero_grad()
        inputs = x.clone().requires_grad_()
        out = net(inputs)
        out.square().sum().backward()
        grads.append([out.detach(), inputs.grad, *(p.grad for p in net.parameters())])
    for ours, theirs in zip(*grads):
        torch.testing.assert_close(ours, theirs)


def test_mlp_leaves_its_input_alone():
    x = torch.full((2, 3), -2.0)
    MLP(nn.ReLU(), nn.Tanh())(x)
    assert torch.equal(x, torch.full((2, 3), -2.0))
    assert MLP()(x) is x


def test_hooks_and_changed_layers_are_respected():
    net = MLP(nn.Linear(2, 2), nn.Tanh())
    seen = []
    net[0].register_forward_hook(lambda module, inputs, output: seen.append(output))
    out = net(torch.ones(1, 2))
    assert len(seen) == 1
    torch.testing.assert_close(seen[0].tanh(), out)
    net[1].register_forward_pre_hook(lambda module, inputs: (inputs[0] * 0.0,))
    assert net(torch.ones(1, 2)).tolist() == [[0.0, 0.0]]
    nn.utils.parametrizations.weight_norm(net[0])
    net[0].parametrizations.weight.original0.data.zero_()
    net[0].bias.data.zero_()
    net[1]._forward_pre_hooks.clear()
    assert net(torch.ones(1, 2)).tolist() == [[0.0, 0.0]]


def test_default_initial_weights():
    torch.manual_seed(0)
    hidden, _, out = fc_layers(DefaultModelConfig(fcnet_hiddens=[16]), "fcnet", 8, 4, gain=0.01)
    torch.testing.assert_close(hidden.weight.T @ hidden.weight, 2.0 * torch.eye(8), rtol=0, atol=1e-5)
    torch.testing.assert_close(out.weight @ out.weight.T, 1e-4 * torch.eye(4), rtol=0, atol=1e-8)
    assert not hidden.bias.any()


@pytest.mark.parametrize("name", ["constant", "constant_", torch.nn.init.constant_])
def test_named_initializers(name):
    config = DefaultModelConfig(
        fcnet_hiddens=[],
        fcnet_kernel_initializer=name,
        fcnet_kernel_initializer_kwargs={"val": 0.5},
        fcnet_bias_initializer="ones_",
        head_fcnet_kernel_initializer="zeros_",
    )
    (layer,) = fc_layers(config, "fcnet", 2, 3)
    assert torch.equal(layer.weight, torch.full((3, 2), 0.5))
    assert torch.equal(layer.bias, torch.ones(3))
    assert not fc_layers(config, "head_fcnet", 2, 3)[0].weight.any()


def test_unknown_initializers():
    with pytest.raises(ConfigError, match="did you mean 'orthogonal_'"):
        fc_layers(DefaultModelConfig(fcnet_kernel_initializer="ortogonal"), "fcnet", 2)


def test_running_a_module_is_calling_it():
    net, x, seen = MLP(nn.Linear(2, 2), nn.Tanh()), torch.ones(1, 2), []
    assert torch.equal(run(net, x), net(x))
    hooks = [
        net.register_forward_hook(lambda module, inputs, output: seen.append("forward")),
        net.register_forward_pre_hook(lambda module, inputs: seen.append("before")),
        net.register_full_backward_hook(lambda module, inputs, outputs: seen.append("backward")),
        net.register_full_backward_pre_hook(lambda module, outputs: seen.append("before backward")),
    ]
    for hook, name in zip(hooks, ("forward", "before", "backward", "before backward")):
        seen.clear()
        run(net, x.clone().requires_grad_()).sum().backward()
        assert name in seen
        hook.remove()
    seen.clear()
    run(net, x)
    net._compiled_call_impl = lambda x: seen.append("compiled")
    run(net, x)
    assert seen == ["compiled"]


def test_hooks_of_all_modules_see_every_layer():
    net, x, seen = MLP(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)), torch.ones(1, 2), []
    without = run(net, x)
    hook = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(type(module)))
    try:
        assert torch.equal(run(net, x), without)
    finally:
        hook.remove()
    assert seen == [nn.Linear, nn.Tanh, nn.Linear, MLP]
