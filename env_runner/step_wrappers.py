"""Wrappers of environments that take several steps for one: the same action again, or a chunk of them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space

from epibatch.core.errors import ConfigError
from epibatch.core.structs import map_struct

__all__ = ["ActionChunks", "FrameSkip"]


class FrameSkip(gym.Wrapper[Any, Any, Any, Any]):
    """Repeats each action, and returns the last observation and the sum of the rewards.

    An episode that ends in between ends the step. Unlike `gymnasium.wrappers.MaxAndSkipObservation`, which is for
    flickering images, it leaves observations as they are.

    Args:
        env: The environment.
        skip: Number of times that each action is taken, at least 1.

    Raises:
        ConfigError: `skip` is below 1.

    Example:
        >>> env = FrameSkip(gym.make("CartPole-v1"), skip=4)
        >>> _ = env.reset(seed=0)
        >>> env.step(1)[1]
        4.0
    """

    def __init__(self, env: gym.Env[Any, Any], skip: int = 4) -> None:
        super().__init__(env)
        self.skip = _at_least_one("FrameSkip.skip", skip)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take the action `skip` times, or until the episode ends."""
        total: Any = 0.0
        for _ in range(self.skip):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total = total + reward
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info


class ActionChunks(gym.Wrapper[Any, Any, Any, Any]):
    """Takes a chunk of several actions per step, one after the other.

    One step of the wrapper is one transition: the observation before the first action, all actions of the chunk, the
    discounted sum of the rewards, the observation after the last one. An episode that ends in between ends the step,
    and the rest of the chunk is not taken. The info is that of the last action, with `chunk_steps`, the number of
    actions that were taken, and `chunk_rewards`, their rewards, float64 [size], 0 for actions not taken.

    The action space has `size` actions of the environment's along a new first axis: MultiDiscrete for a Discrete one,
    else of the same kind. As in action chunking (Zhao et al. 2023, "Learning fine-grained bimanual manipulation with
    low-cost hardware") and options of a fixed length (Sutton, Precup & Singh 1999): with a discount g in the
    environment's steps, give the wrapper `gamma=g` and the algorithm `g ** size`.

    Args:
        env: The environment.
        size: Actions in a chunk, at least 1.
        gamma: Discount of the rewards within a chunk, in [0, 1]; 1: their sum.

    Raises:
        ConfigError: `size` is below 1, or `gamma` outside of [0, 1].

    Example:
        >>> env = ActionChunks(gym.make("CartPole-v1"), size=3, gamma=0.5)
        >>> env.action_space
        MultiDiscrete([2 2 2])
        >>> _ = env.reset(seed=0)
        >>> observation, reward, terminated, truncated, info = env.step(np.array([0, 1, 0]))
        >>> reward, info["chunk_steps"]
        (1.75, 3)
    """

    def __init__(self, env: gym.Env[Any, Any], size: int = 4, gamma: float = 1.0) -> None:
        super().__init__(env)
        self.size = _at_least_one("ActionChunks.size", size)
        if not isinstance(gamma, (int, float)) or not 0 <= gamma <= 1:
            do = "pass the discount of one step of the environment, such as gamma=0.99"
            raise ConfigError("ActionChunks.gamma", expected="a number in [0, 1]", found=repr(gamma), do=do)
        self.gamma = gamma
        self.action_space = _chunks_of(env.action_space, size)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take the actions of a chunk in turn, until the episode ends."""
        rewards = np.zeros(self.size)
        for i in range(self.size):
            one = map_struct(lambda leaf, i=i: leaf[i], action)
            observation, reward, terminated, truncated, info = self.env.step(one)
            rewards[i] = reward
            if terminated or truncated:
                break
        total = float(rewards @ self.gamma ** np.arange(self.size))
        return observation, total, terminated, truncated, {**info, "chunk_steps": i + 1, "chunk_rewards": rewards}


def _chunks_of(space: Any, size: int) -> Any:
    """Return the space of chunks of a space's actions."""
    if isinstance(space, gym.spaces.Dict):
        return gym.spaces.Dict({key: _chunks_of(own, size) for key, own in space.spaces.items()})
    if isinstance(space, gym.spaces.Tuple):
        return gym.spaces.Tuple([_chunks_of(own, size) for own in space.spaces])
    if isinstance(space, gym.spaces.MultiBinary):
        return gym.spaces.MultiBinary((size, *space.shape))
    if isinstance(space, gym.spaces.MultiDiscrete):
        counts, start = (np.stack([own] * size) for own in (space.nvec, space.start))
        dtype: Any = space.dtype
        return gym.spaces.MultiDiscrete(counts, dtype=dtype.type, start=start)
    return batch_space(space, size)


def _at_least_one(where: str, value: Any) -> int:
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and value >= 1:
        return int(value)
    do = "pass how many steps of the environment make one"
    raise ConfigError(where, expected="a whole number of at least 1", found=repr(value), do=do)
