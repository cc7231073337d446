"""Wrappers about where episodes begin and end: idle steps at the start, and lives."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from epibatch.core.errors import ConfigError, EnvironmentContractError, nearest

__all__ = ["EpisodicLife", "NoopStarts"]

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

    Example:
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

    Example:
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
        lost = self._lives is not None and lives < self._lives
        self._lives, self._over = lives, bool(terminated or truncated)
        info = {**info, "life_lost": lost}
        self._newest = observation, info
        return observation, reward, bool(terminated or lost), truncated, info
