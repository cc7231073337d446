"""Wrappers of single environments: repeated actions, chunks of actions, idle starts, lives, time limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space

from epibatch.core.errors import ConfigError, EnvironmentContractError, nearest
from epibatch.core.random_streams import random_stream
from epibatch.core.structs import map_struct


class FrameSkip(gym.Wrapper[Any, Any, Any, Any]):
    """Repeats each action, and returns the last observation and the sum of the rewards.

    An episode that ends in between ends the step. Unlike `gymnasium.wrappers.MaxAndSkipObservation`, which is for
    flickering images, it leaves observations as they are.

    Args:
        env: The environment.
        skip: Number of times that each action is taken, at least 1.

    Raises:
        ConfigError: `skip` is below 1.

    Examples:
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

    Examples:
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
            env_action = map_struct(lambda leaf, i=i: leaf[i], action)
            observation, reward, terminated, truncated, info = self.env.step(env_action)
            rewards[i] = reward
            if terminated or truncated:
                break
        total = float(rewards @ self.gamma ** np.arange(self.size))
        return observation, total, terminated, truncated, {**info, "chunk_steps": i + 1, "chunk_rewards": rewards}


def _chunks_of(space: Any, size: int) -> Any:
    """Return the space of chunks of a space's actions."""
    if isinstance(space, gym.spaces.Dict):
        return gym.spaces.Dict({key: _chunks_of(part, size) for key, part in space.spaces.items()})
    if isinstance(space, gym.spaces.Tuple):
        return gym.spaces.Tuple([_chunks_of(part, size) for part in space.spaces])
    if isinstance(space, gym.spaces.MultiBinary):
        return gym.spaces.MultiBinary((size, *space.shape))
    if isinstance(space, gym.spaces.MultiDiscrete):
        counts, start = (np.stack([part] * size) for part in (space.nvec, space.start))
        dtype: Any = space.dtype
        return gym.spaces.MultiDiscrete(counts, dtype=dtype.type, start=start)
    return batch_space(space, size)


def _at_least_one(where: str, value: Any) -> int:
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and value >= 1:
        return int(value)
    do = "pass how many steps of the environment make one"
    raise ConfigError(where, expected="a whole number of at least 1", found=repr(value), do=do)


_RESETS = 100


class NoopStarts(gym.Wrapper[Any, Any, Any, Any]):
    """Takes a random number of idle steps after each reset, so that episodes begin in different states.

    The number of steps is uniform between 1 and `noop_max`; their rewards are not counted. If an episode ends with one
    of them, the environment is reset again and continues with the rest. So the returned observation is never a
    terminal one. For Atari, `gymnasium.wrappers.AtariPreprocessing(noop_max=30)` does the same. After Mnih et al.
    (2015), "Human-level control through deep reinforcement learning".

    Args:
        env: The environment.
        noop_max: Largest number of idle steps; 0: none.
        noop_action: The action that does nothing.

    Raises:
        ConfigError: `noop_max` is below 0, or the action is none of the environment's.
        EnvironmentContractError: the environment ends again and again during the idle steps.

    Examples:
        >>> env = NoopStarts(gym.wrappers.TimeAwareObservation(gym.make("CartPole-v1")), noop_max=5)
        >>> observation, info = env.reset(seed=0)
        >>> 1 <= observation[-1] <= 5
        np.True_
    """

    def __init__(self, env: gym.Env[Any, Any], noop_max: int = 30, noop_action: Any = 0) -> None:
        super().__init__(env)
        good = isinstance(noop_max, int) and not isinstance(noop_max, bool) and noop_max >= 0
        if not good or not env.action_space.contains(noop_action):
            raise ConfigError(
                "NoopStarts",
                expected=f"noop_max of at least 0, and a noop_action of {env.action_space}",
                found=f"noop_max={noop_max!r}, noop_action={noop_action!r}",
                do="pass the action that does nothing as noop_action",
            )
        self.noop_max, self.noop_action = noop_max, noop_action

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, and take the idle steps."""
        observation, info = self.env.reset(seed=seed, options=options)
        left = int(self.np_random.integers(1, self.noop_max + 1)) if self.noop_max else 0
        resets = 0
        while left:
            observation, _, terminated, truncated, info = self.env.step(self.noop_action)
            left -= 1
            if terminated or truncated:
                resets += 1
                if resets > _RESETS:
                    raise EnvironmentContractError(
                        "NoopStarts",
                        expected=f"an environment that outlives some of {self.noop_max} idle steps",
                        found=f"{resets} episodes that ended with action {self.noop_action!r}",
                        do="take another noop_action, or a smaller noop_max",
                    )
                observation, info = self.env.reset(options=options)
        return observation, info


class EpisodicLife(gym.Wrapper[Any, Any, Any, Any]):
    """Ends an episode with each lost life, and continues the game, which is reset only when it is over.

    So value functions treat the loss of a life as an end, while the policy sees all of the game. The info of every step
    has `life_lost`. The next episode begins with the observation and the info of the step that cost the life. A reset
    with a seed or options begins a new game. Put it inside `RecordEpisodeStatistics` for statistics of lives, outside
    for those of games.

    Args:
        env: The environment.
        key: The key of the number of lives in the infos; "lives" for Atari.

    Raises:
        EnvironmentContractError: infos of a step without the key.

    Examples:
        >>> class ThreeLives(gym.Env):
        ...     observation_space, action_space = gym.spaces.Discrete(9), gym.spaces.Discrete(2)
        ...     def reset(self, *, seed=None, options=None):
        ...         self.t = 0
        ...         return 0, {"lives": 3}
        ...     def step(self, action):
        ...         self.t += 1
        ...         return self.t, 1.0, self.t == 6, False, {"lives": 3 - self.t // 2}
        >>> env = EpisodicLife(ThreeLives())
        >>> env.reset()[0], env.step(0)[2], env.step(0)[2], env.reset()[0], env.step(0)[2]
        (0, False, True, 2, False)
    """

    def __init__(self, env: gym.Env[Any, Any], key: str = "lives") -> None:
        super().__init__(env)
        self.key = key
        self._lives: int | None = None
        self._over = True
        self._newest: tuple[Any, dict[str, Any]] = (None, {})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the next life, or a new game if the last one is over."""
        if self._over or seed is not None or options:
            self._newest = self.env.reset(seed=seed, options=options)
            self._over, self._lives = False, self._newest[1].get(self.key)
        return self._newest

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step, which ends the episode if it costs a life."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if self.key not in info:
            raise EnvironmentContractError(
                "EpisodicLife",
                expected=f"infos with {self.key!r}, the number of lives that are left",
                found=f"keys {sorted(map(str, info))}",
                do=f"pass key=...; {nearest(self.key, map(str, info))}",
            )
        lives = int(info[self.key])
        life_lost = self._lives is not None and lives < self._lives
        self._lives, self._over = lives, bool(terminated or truncated)
        info = {**info, "life_lost": life_lost}
        self._newest = observation, info
        return observation, reward, bool(terminated or life_lost), truncated, info


class Horizon(gym.Wrapper[Any, Any, Any, Any]):
    """Truncates episodes of one agent or several, and can shorten the first one at random.

    The random length spreads the ends of environments that begin together, as rsl_rl's `init_at_random_ep_len` does.
    It is drawn from the seed of the reset, for the first episode and after every other reset with a seed.

    Args:
        env: The environment; of several agents it may return a dict of flags or a single one.
        horizon: Steps of an episode, at most; None: no limit.
        random_first: Largest length of the first episode; None: not shortened.

    Examples:
        >>> env = Horizon(gym.make("CartPole-v1"), horizon=2)
        >>> _ = env.reset(seed=0)
        >>> [env.step(0)[2:4] for _ in range(2)]
        [(False, False), (False, True)]
    """

    def __init__(self, env: gym.Env[Any, Any], horizon: int | None, random_first: int | None = None) -> None:
        super().__init__(env)
        self._most, self._random_first = math.inf if horizon is None else horizon, random_first
        self._left = self._most
        self._is_new = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset, and draw the length of a first episode."""
        result = self.env.reset(seed=seed, options=options)
        self._left = self._most
        if self._random_first is not None and (self._is_new or seed is not None):
            stream = np.random.default_rng(random_stream(seed, "first horizon"))
            self._left = min(self._most, int(stream.integers(1, self._random_first + 1)))
        self._is_new = False
        return result

    def step(self, action: Any) -> Any:
        """Take a step; at the limit, it truncates the episode unless that has terminated."""
        result: Any = self.env.step(action)
        self._left -= 1
        if self._left > 0 or not isinstance(result, tuple) or len(result) != 5:  # what it returns is checked outside
            return result
        observation, reward, terminated, truncated, info = result
        over = terminated.get("__all__") if isinstance(terminated, Mapping) else terminated
        if not over:
            truncated = {**truncated, "__all__": True} if isinstance(truncated, Mapping) else True
        return observation, reward, terminated, truncated, info


def without_time_limits(env: gym.Env[Any, Any], horizon: int) -> gym.Env[Any, Any]:
    """Return an environment without those of Gymnasium's `TimeLimit`s in it that end before a horizon or at it.

    Args:
        env: The environment with its wrappers.
        horizon: Steps.

    Examples:
        >>> without_time_limits(gym.make("CartPole-v1"), 500)
        <OrderEnforcing<PassiveEnvChecker<CartPoleEnv<CartPole-v1>>>>
    """
    if not isinstance(env, gym.Wrapper):
        return env
    env.env = without_time_limits(env.env, horizon)
    lower = isinstance(env, gym.wrappers.TimeLimit) and env.get_wrapper_attr("_max_episode_steps") <= horizon
    return env.env if lower else env
