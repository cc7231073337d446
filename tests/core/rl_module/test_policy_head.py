"""The policy's output layers."""

from __future__ import annotations

import gymnasium as gym
import torch

from epibatch.core.distributions import distribution_for
from epibatch.core.rl_module.default_model_config import DefaultModelConfig
from epibatch.core.rl_module.networks import PolicyHead

MIXED = gym.spaces.Dict(
    a=gym.spaces.Box(-1, 1, (2,)), b=gym.spaces.Discrete(3), c=gym.spaces.Box(-1, 1, ()), d=gym.spaces.MultiBinary(1)
)


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


def test_nested_actions_have_only_their_log_stds_clipped():
    config = DefaultModelConfig(log_std_clip_param=1.5, head_fcnet_kernel_initializer="ones_")
    out = PolicyHead([], 1, MIXED, config)(torch.tensor([[7.0]]))
    assert out.tolist() == [[7.0, 7.0, 1.5, 1.5, 7.0, 7.0, 7.0, 7.0, 1.5, 7.0, 7.0]]


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
