"""Observation input, MLP and policy head."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from epibatch.core.errors import ConfigError, SpaceError
from epibatch.core.rl_module.default_model_config import ACTIVATIONS, DefaultModelConfig
from epibatch.core.rl_module.networks import MLP, ObservationInput, PolicyHead, encoder_style, head_style


@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
@pytest.mark.parametrize(
    ("space", "size"),
    [
        (gym.spaces.Box(-1, 1, (4,)), 4),
        (gym.spaces.Box(-1, 1, (4,), np.float16), 4),
        (gym.spaces.Box(-1, 1, (2, 3, 1)), 6),
        (gym.spaces.Box(0, 255, (2, 2), np.uint8), 4),
        (gym.spaces.Box(-1, 1, ()), 1),
    ],
)
def test_boxes_become_vectors(space, size, lead):
    space.seed(0)
    obs = np.reshape([space.sample() for _ in range(int(np.prod(lead)))], (*lead, *space.shape)).astype(space.dtype)
    out = ObservationInput(space)(torch.from_numpy(obs))
    assert out.shape == (*lead, size)
    assert out.dtype is torch.float32
    np.testing.assert_array_equal(out.numpy().ravel(), obs.astype(np.float32).ravel())


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_discrete_observations_become_one_hot(dtype):
    out = ObservationInput(gym.spaces.Discrete(3, start=5))(torch.tensor([[5, 7]], dtype=dtype))
    assert out.tolist() == [[[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]]


def test_vectors_are_passed_through():
    obs = torch.zeros(3, 4)
    assert ObservationInput(gym.spaces.Box(-1, 1, (4,)))(obs) is obs


def test_empty_batches():
    assert ObservationInput(gym.spaces.Box(-1, 1, (2, 3)))(torch.zeros(0, 2, 3)).shape == (0, 6)


@pytest.mark.parametrize(
    "space", [gym.spaces.Dict(a=gym.spaces.Discrete(2)), gym.spaces.Tuple([gym.spaces.Discrete(2)]), None]
)
def test_spaces_that_need_flattening(space):
    with pytest.raises(SpaceError, match="FlattenObservation"):
        ObservationInput(space)


@pytest.mark.parametrize("shape", [(3, 5), (4, 3), (3, 2, 3, 1), (3,)])
def test_observations_of_another_shape(shape):
    with pytest.raises(SpaceError, match="as the module's observation_space says"):
        ObservationInput(gym.spaces.Box(-1, 1, (2, 3)))(torch.zeros(shape))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("layernorm", [False, True])
def test_mlp_computes_what_a_sequential_does(activation, layernorm):
    config = DefaultModelConfig(fcnet_activation=activation, fcnet_use_layernorm=layernorm)
    layers = encoder_style(config).layers(3, [8, 5], 2)
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
    hidden, _, out = encoder_style(DefaultModelConfig()).layers(8, [16], 4, gain=0.01)
    torch.testing.assert_close(hidden.weight.T @ hidden.weight, 2.0 * torch.eye(8), rtol=0, atol=1e-5)
    torch.testing.assert_close(out.weight @ out.weight.T, 1e-4 * torch.eye(4), rtol=0, atol=1e-8)
    assert not hidden.bias.any()


@pytest.mark.parametrize("name", ["constant", "constant_", torch.nn.init.constant_])
def test_named_initializers(name):
    config = DefaultModelConfig(
        fcnet_kernel_initializer=name,
        fcnet_kernel_initializer_kwargs={"val": 0.5},
        fcnet_bias_initializer="ones_",
        head_fcnet_kernel_initializer="zeros_",
    )
    (layer,) = encoder_style(config).layers(2, [], 3)
    assert torch.equal(layer.weight, torch.full((3, 2), 0.5))
    assert torch.equal(layer.bias, torch.ones(3))
    assert not head_style(config).layers(2, [], 3)[0].weight.any()


def test_unknown_initializers():
    with pytest.raises(ConfigError, match="did you mean 'orthogonal_'"):
        encoder_style(DefaultModelConfig(fcnet_kernel_initializer="ortogonal")).layers(2, [2])


def test_policy_head_clips_log_std():
    config = DefaultModelConfig(log_std_clip_param=1.5, head_fcnet_kernel_initializer="ones_")
    head = PolicyHead([], 1, gym.spaces.Box(-1, 1, (2,)), config)
    assert head(torch.tensor([[100.0], [-0.5]])).tolist() == [[100.0, 100.0, 1.5, 1.5], [-0.5, -0.5, -0.5, -0.5]]


def test_policy_head_with_free_log_std():
    head = PolicyHead([], 3, gym.spaces.Box(-1, 1, (2,)), DefaultModelConfig(free_log_std=True))
    assert head.net[-1].out_features == 2
    with torch.no_grad():
        head.log_std += torch.tensor([0.5, 50.0])
    out = head(torch.randn(4, 5, 3))
    assert out.shape == (4, 5, 4)
    assert torch.equal(out[..., 2:], torch.tensor([0.5, 20.0]).expand(4, 5, 2))
    out.sum().backward()
    assert head.log_std.grad[0] == 20.0
