"""Spaces of classes of one's own: refused by name, or batched as they were registered with Gymnasium."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from epibatch.algorithms.ppo import PPOConfig
from epibatch.core.errors import SpaceError
from epibatch.core.rl_module import RLModuleSpec, TorchRLModule
from epibatch.env_runner import SingleAgentEnvRunner


class Angles(gym.Space[Any]):
    def __init__(self) -> None:
        super().__init__((3,), np.float32)

    def sample(self, *_: Any, **__: Any) -> Any:
        return self.np_random.uniform(-np.pi, np.pi, 3).astype(np.float32)

    def contains(self, x: Any) -> bool:
        return bool((np.abs(x) <= np.pi).all())


class Known(Angles):
    pass


def box(space: Any) -> Any:
    return gym.spaces.Box(-np.pi, np.pi, space.shape, space.dtype)


class Arm(gym.Env[Any, Any]):
    action_space = gym.spaces.Discrete(2)

    def __init__(self, space: Any) -> None:
        self.observation_space, self.t = space, 0

    def reset(self, **_: Any) -> Any:
        self.t = 0
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.full(3, self.t, np.float32), 1.0, self.t == 3, False, {}


class Linear(TorchRLModule):
    def setup(self) -> None:
        self.net = torch.nn.Linear(3, 2)

    def _forward(self, batch: Any, **_: Any) -> Any:
        return {"action_dist_inputs": self.net(batch["obs"])}


def test_a_space_is_named_or_registered() -> None:
    def runner(space: Any) -> Any:
        config = PPOConfig().environment(lambda _: Arm(space)).env_runners(num_envs_per_env_runner=2)
        return SingleAgentEnvRunner(config=config.rl_module(rl_module_spec=RLModuleSpec(module_class=Linear)))

    with pytest.raises(SpaceError, match=r"Angles, a class that it does not know\n.*register Angles with batch_space"):
        runner(Angles())
    batch_space.register(Known, lambda space, n=1: batch_space(box(space), n))
    create_empty_array.register(Known, lambda space, n=1, fn=np.zeros: create_empty_array(box(space), n, fn))
    concatenate.register(Known, lambda space, items, out: concatenate(box(space), items, out))
    iterate.register(Known, lambda space, items: iter(items))
    sampled = runner(Known()).sample(num_episodes=2)
    assert [part.get_observations()[:, 0].tolist() for part in sampled] == [[0.0, 1.0, 2.0, 3.0]] * 2
