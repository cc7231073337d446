"""Wrappers around single environments before they are put together: checks, and copies of what is reused."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.core.errors import EnvironmentContractError, explain
from epibatch.core.space_checks import check_row
from epibatch.core.structs import map_struct

__all__ = ["FirstCallChecks", "TerminalCopies", "check_reward", "described"]


class FirstCallChecks(gym.Wrapper[Any, Any, Any, Any]):
    """Checks what an environment's first reset and first step return, then steps out of the way.

    Gymnasium's vector environments convert what they are given: a reward None becomes NaN, an additional
    key of a Dict observation is left out. Later values are checked as arrays.

    Args:
        env: The environment.

    Raises:
        EnvironmentContractError: a call returns something else than Gymnasium's `Env` says.
        SpaceError: an observation of another nesting, shape or kind than the observation space.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.metadata = dict(env.metadata)  # vector environments write their autoreset mode into it
        self._name = type(env.unwrapped).__name__

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; the first result is checked."""
        result: Any = self.env.reset(seed=seed, options=options)
        where = f"{self._name}.reset()"
        if not isinstance(result, tuple) or len(result) != 2:
            raise _unfit(where, "two values: observation, info", described(result), "return both; info may be {}")
        self._check(where, result[0], result[1])
        self.reset = self.env.reset  # type: ignore[method-assign]
        return result[0], result[1]

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment; the first result is checked."""
        result: Any = self.env.step(action)
        where = f"{self._name}.step()"
        if not isinstance(result, tuple) or len(result) != 5:
            raise _unfit(
                where,
                "five values: observation, reward, terminated, truncated, info",
                described(result),
                "return both flags: terminated (the task is over) and truncated (somebody stopped it)",
            )
        self._check(where, result[0], result[4])
        check_reward(where, result[1])
        for name, flag in zip(("terminated", "truncated"), result[2:4]):
            if not isinstance(flag, (bool, np.bool_)):
                raise _unfit(where, f"True or False as {name}", described(flag), f"return bool(...) as {name}")
        self.step = self.env.step  # type: ignore[method-assign]
        return result

    def _check(self, where: str, observation: Any, info: Any) -> None:
        check_row(self.observation_space, observation, f"observation of {where}")
        if not isinstance(info, dict):
            raise _unfit(where, "a dict as info", described(info), "return {} if there is nothing to tell")


class TerminalCopies(gym.Wrapper[Any, Any, Any, Any]):
    """Copies terminal observations, which the reset in the same step would overwrite where arrays are reused.

    Args:
        env: The environment.
    """

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment."""
        result = self.env.step(action)
        if result[2] or result[3]:
            return (map_struct(_copied, result[0]), *result[1:])
        return result


def _copied(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


def check_reward(where: str, reward: Any) -> None:
    """Refuse what is no finite number.

    Raises:
        EnvironmentContractError: it is none.
    """
    number = isinstance(reward, (bool, int, float, np.bool_, np.integer, np.floating))
    if not number and isinstance(reward, np.ndarray) and reward.ndim == 0 and reward.dtype.kind in "fiub":
        number = True
    if not number:
        raise _unfit(where, "a number as reward", described(reward), "return float(...) as reward")
    if not math.isfinite(reward):
        raise _unfit(where, "a finite reward", described(reward), "return 0.0 where there is no reward")


def described(value: Any) -> str:
    """What a call returned, for messages.

    Example:
        >>> described((np.zeros(2), None))
        '2 values: float64 array of shape (2,), None'
    """
    if isinstance(value, tuple):
        return f"{len(value)} values: {', '.join(described(item) for item in value)}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype} array of shape {value.shape}"
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value) if len(repr(value)) <= 80 else type(value).__name__
    return type(value).__name__


def _unfit(where: str, expected: str, found: str, do: str) -> EnvironmentContractError:
    return EnvironmentContractError(explain(where, expected=expected, found=found, do=do))
