"""Environments of the zoo that have no id of their own."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

WAY = 8
"""Steps from the start of the T-maze to the junction."""


class TMaze(gym.Env[Any, Any]):
    """A corridor with a junction at its end; the first observation alone says which side pays (Bakker 2001).

    Observations are [sign, junction]: the sign is -1 or 1 at the start and 0 later. Actions are 0 for onward, 1 and 2
    for the two sides. A turn at the junction pays 4 or -0.1 and ends the episode; a bump into a wall costs 0.1.
    """

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Put the walker at the start, and draw the side that pays."""
        super().reset(seed=seed)
        self.place, self.steps = 0, 0
        self.side = int(self.np_random.integers(2)) + 1
        return np.array([2.0 * self.side - 3.0, 0.0], np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Go onward or to a side."""
        self.steps += 1
        reward, done = 0.0, False
        if self.place == WAY and action != 0:
            reward, done = (4.0 if action == self.side else -0.1), True
        elif self.place < WAY and action == 0:
            self.place += 1
        else:
            reward = -0.1
        observation = np.array([0.0, self.place == WAY], np.float32)
        return observation, reward, done, self.steps == 2 * WAY and not done, {}


def breakout() -> gym.Env[Any, Any]:
    """Make MinAtar's Breakout, whose images are 10 by 10 by 4 floats; an episode ends after 5,000 steps."""
    from minatar.gym import BaseEnv

    class Floats(gym.ObservationWrapper[Any, Any, Any]):
        observation_space = gym.spaces.Box(0.0, 1.0, (10, 10, 4), np.float32)

        def observation(self, observation: Any) -> Any:
            return np.asarray(observation, np.float32)

    return Floats(gym.wrappers.TimeLimit(BaseEnv(game="breakout"), max_episode_steps=5000))


def spread() -> Any:
    """Make simple_spread: three agents that are to cover three marks without a collision, for 25 steps."""
    from mpe2 import simple_spread_v3

    from epibatch.env_runner import ParallelPettingZooEnv

    return ParallelPettingZooEnv(simple_spread_v3.parallel_env(max_cycles=25))
