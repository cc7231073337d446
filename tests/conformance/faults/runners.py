"""Runners of both libraries on an environment whose every value can be told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np


class Counting(gym.Env[Any, Any]):
    """Episodes of `length` steps with observation [t] and reward t - 0.5.

    Every second environment that is made fails: of the calls of `method`, counted over all of these, in `failing`.
    """

    observation_space = gym.spaces.Box(-99, 99, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    length, failing, method = 99, range(0), "step"
    made = calls = 0

    def __init__(self, config: Any = None) -> None:
        type(self).made += 1
        self.number = self.made

    def _count(self, method: str) -> None:
        if method == self.method and self.number % 2 == 0:
            type(self).calls += 1
            if self.calls in self.failing:
                raise ConnectionError("simulator lost")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._count("reset")
        self.t = 0
        return np.array([0], np.float32), {}

    def step(self, action: Any) -> Any:
        self._count("step")
        self.t += 1
        return np.array([self.t], np.float32), self.t - 0.5, self.t == self.length, False, {}


def runner_of(
    library: Any, environment: dict[str, Any], configure: Callable[[Any], None] | None = None, **settings: Any
) -> tuple[Any, Any]:
    """A runner on `Counting` environments, and the class of these, which has counted their calls."""
    env = type("Counting", (Counting,), {"made": 0, "calls": 0, **environment})
    config = library.PPOConfig().environment(env).env_runners(num_env_runners=0, **settings)
    if configure is not None:
        configure(config)
    return library.SingleAgentEnvRunner(config=config, worker_index=0), env
