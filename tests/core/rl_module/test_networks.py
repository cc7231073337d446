"""Layers of the default networks: MLPs, initializers, convolutions and policy heads."""

from __future__ import annotations

import gymnasium as gym
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from epibatch.core.distributions import distribution_for
from epibatch.core.errors import ConfigError, SpaceError
from epibatch.core.rl_module.default_model_config import ACTIVATIONS, DefaultModelConfig
from epibatch.core.rl_module.networks import (
    CNN,
    MLP,
    PolicyHead,
    conv_size,
    default_conv_filters,
    fc_layers,
    run,
    sizes_of,
)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("layernorm", [False, True])
def test_mlp_computes_what_a_sequential_does(activation, layernorm):
    config = DefaultModelConfig(fcnet_hiddens=[8, 5], fcnet_activation=activation, fcnet_use_layernorm=layernorm)
    layers = fc_layers(config, "fcnet", 3, 2)
    kinds = [type(layer).__name__.lower() for layer in layers]
    own = {"linear": [], "swish": ["silu"]}.get(activation, [activation.replace("_", "")])
    assert kinds == ["linear", *["layernorm"] * layernorm, *own] * 2 + ["linear"]
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
    with pytest.raises(ConfigError, match="did you mean 'orthogonal_'"):
        fc_layers(DefaultModelConfig(fcnet_kernel_initializer="ortogonal"), "fcnet", 2)


def test_layers_are_called_so_that_hooks_and_parametrizations_work():
    net, x, seen = MLP(nn.Linear(2, 2), nn.Tanh()), torch.full((1, 2), -2.0), []
    without = net(x)
    assert torch.equal(run(net, x), without) and MLP()(x) is x
    MLP(nn.ReLU(), nn.Tanh())(x)
    assert torch.equal(x, torch.full((1, 2), -2.0)), "the input is left alone"
    registers = {
        "forward": net.register_forward_hook,
        "before": net.register_forward_pre_hook,
        "backward": net.register_full_backward_hook,
        "before backward": net.register_full_backward_pre_hook,
        "every module": nn.modules.module.register_module_forward_hook,
        "layer": net[0].register_forward_hook,
    }
    for name, register in registers.items():
        hook = register(lambda *_, name=name: seen.append(name))
        run(net, x.clone().requires_grad_()).sum().backward()
        hook.remove()
        assert name in seen
    net._compiled_call_impl = lambda x: "compiled"
    assert run(net, x) == "compiled"
    net[1].register_forward_pre_hook(lambda module, inputs: (inputs[0] * 0.0,))
    assert net.forward(x).tolist() == [[0.0, 0.0]]
    nn.utils.parametrizations.weight_norm(net[0])
    net[0].parametrizations.weight.original0.data.zero_()
    net[1]._forward_pre_hooks.clear()
    torch.testing.assert_close(net.forward(x), net[0].bias.tanh()[None])


@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 8, (3, 5)])
@pytest.mark.parametrize("stride", [1, 2, 3, (2, 1)])
@pytest.mark.parametrize("size", [(7, 9), (10, 10), (4, 5)])
def test_sizes_are_those_of_same_padding(size, stride, kernel):
    shape = (*size, 2)
    cnn = CNN(shape, [[3, kernel, stride], [2, kernel, stride]], DefaultModelConfig())
    down, across = (stride, stride) if isinstance(stride, int) else stride
    rows, columns = size
    for _ in range(2):
        rows, columns = -(-rows // down), -(-columns // across)
    assert cnn.size == rows * columns * 2 == conv_size(shape, [[3, kernel, stride], [2, kernel, stride]])
    assert cnn(torch.zeros(2, *shape)).shape == (2, cnn.size)


def test_it_computes_convolutions_of_channels_last_images():
    cnn = CNN((6, 8, 3), [[4, 3, 1]], DefaultModelConfig(conv_activation="tanh"))
    images = torch.rand(5, 6, 8, 3)
    large = torch.randint(0, 256, (3, 6, 8, 3), dtype=torch.uint8)
    torch.testing.assert_close(cnn(large), cnn(large.float() / 255.0))
    torch.testing.assert_close(cnn(large.int()), cnn(large.float()))
    layer = cnn.layers[1]
    expected = F.conv2d(images.permute(0, 3, 1, 2), layer.weight, layer.bias, padding=1).tanh()
    torch.testing.assert_close(cnn(images), expected.flatten(1))


def test_channels_first_give_what_channels_last_give():
    torch.manual_seed(0)
    last = CNN((9, 11, 3), [[4, 3, 2]], DefaultModelConfig())
    first = CNN((3, 9, 11), [[4, 3, 2]], DefaultModelConfig(conv_channels="first"))
    first.load_state_dict(last.state_dict())
    for images in (torch.rand(2, 5, 9, 11, 3), torch.randint(0, 256, (4, 9, 11, 3), dtype=torch.uint8)):
        torch.testing.assert_close(first(images.movedim(-1, -3)), last(images))
    assert (first.size, first.sizes) == (last.size, (9, 11, 3))


@pytest.mark.parametrize("shape", [(3, 64, 64), (1, 16, 20), (12, 84, 84), (4, 210, 160)])
def test_channels_that_seem_to_come_first_are_asked_about(shape):
    with pytest.raises(SpaceError, match="to_chw_float") as caught:
        sizes_of(shape, DefaultModelConfig())
    assert 'model_config={"conv_channels": "first"} or "last"' in str(caught.value)
    assert sizes_of(shape, DefaultModelConfig(conv_channels="first")) == (*shape[1:], shape[0])
    assert sizes_of(shape, DefaultModelConfig(conv_channels="last")) == shape
    last = (*shape[1:], shape[0])
    assert sizes_of(last, DefaultModelConfig()) == last


@pytest.mark.parametrize("height", [8, 9, 11, 16, 23, 39, 42, 64, 65, 84, 96, 128, 210, 512])
def test_default_filters_leave_little_of_images_of_every_size(height):
    for width in {height, max(8, height // 2), height + 17}:
        filters = default_conv_filters((height, width, 3))
        assert len(filters) >= 2
        assert 2 <= conv_size((height, width, 3), filters) / filters[-1][0] <= 36


def test_options_of_the_config():
    config = DefaultModelConfig(
        conv_activation="linear",
        conv_kernel_initializer="constant_",
        conv_kernel_initializer_kwargs={"val": 0.5},
        conv_bias_initializer="ones_",
    )
    cnn = CNN((8, 8, 1), [[2, 2, 2]], config)
    assert cnn(torch.ones(1, 8, 8, 1)).unique().tolist() == [3.0]
    with pytest.raises(SpaceError, match=r"\(8, 8, 1\)"):
        cnn(torch.zeros(1, 1, 8, 8))
    with pytest.raises(ConfigError, match="at least one layer"):
        CNN((8, 8, 1), [], DefaultModelConfig())
    torch.manual_seed(0)
    weight = CNN((8, 8, 1), [[4, 2, 2]], DefaultModelConfig()).layers[1].weight.flatten(1)
    torch.testing.assert_close(weight @ weight.T, 2.0 * torch.eye(4), rtol=0, atol=1e-5)


MIXED = gym.spaces.Dict(
    a=gym.spaces.Box(-1, 1, (2,)), b=gym.spaces.Discrete(3), c=gym.spaces.Box(-1, 1, ()), d=gym.spaces.MultiBinary(1)
)


def test_nested_actions_have_only_their_log_stds_clipped():
    config = DefaultModelConfig(log_std_clip_param=1.5, head_fcnet_kernel_initializer="ones_")
    out = PolicyHead([], 1, MIXED, config)(torch.tensor([[7.0], [-0.5], [-7.0]]))
    for row, mean, log_std in zip(out.tolist(), (7.0, -0.5, -7.0), (1.5, -0.5, -1.5), strict=True):
        assert row == [mean, mean, log_std, log_std, mean, mean, mean, mean, log_std, mean, mean]


def test_nested_actions_with_free_log_std():
    head = PolicyHead([], 4, MIXED, DefaultModelConfig(free_log_std=True))
    assert head.net[-1].out_features == 8
    with torch.no_grad():
        head.log_std += torch.tensor([0.1, 0.2, 0.3])
    features = torch.randn(5, 6, 4)
    out, own = head(features), head.net(features)
    dist = distribution_for(MIXED).from_logits(out)
    torch.testing.assert_close(dist.children["a"].log_std, torch.tensor([0.1, 0.2]).expand(5, 6, 2))
    torch.testing.assert_close(dist.children["c"].log_std, torch.tensor([0.3]).expand(5, 6, 1))
    torch.testing.assert_close(dist.children["a"].mean, own[..., :2])
    torch.testing.assert_close(dist.children["b"].logits, own[..., 2:5])
    torch.testing.assert_close(dist.children["c"].mean, own[..., 5:6])
    assert set(head.state_dict()) == {"log_std", "net.0.weight", "net.0.bias"}
