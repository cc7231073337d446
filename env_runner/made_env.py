"""Wrappers of single environments before they are vectorized: checks, and copies of reused arrays."""

from __future__ import annotations

import math
import pickle
import traceback
import warnings
from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.core.errors import EnvironmentContractError, EpibatchWarning, RunnerError, add_note
from epibatch.core.spaces import check_row, get_base_struct_from_space
from epibatch.core.structs import flatten, flatten_like, map_struct, paths_of

__all__ = [
    "FAILURE",
    "FirstCallChecks",
    "TerminalCopies",
    "WorkerChecks",
    "as_flag",
    "as_reward",
    "check_reward",
    "described",
    "is_of_environment",
    "mark_environment",
    "portable",
]

FAILURE = "epibatch_failure"
"""The key of an info under which `WorkerChecks` reports what an environment raised."""

_MARK = "raised_by_environment"


def mark_environment(error: Exception) -> None:
    """Mark an error as raised by an environment, for callers that continue only after such errors."""
    setattr(error, _MARK, True)


def is_of_environment(error: BaseException) -> bool:
    """True if an environment raised the error, or the error that caused it."""
    return any(getattr(own, _MARK, False) for own in (error, error.__cause__))


class _CheckedCalls(gym.Wrapper[Any, Any, Any, Any]):
    """Checks the return values of an environment's `reset` and `step`."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.metadata = dict(env.metadata)  # vector environments write their autoreset mode into it
        self._name = type(env.unwrapped).__name__

    def _checked_reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        result: Any = self.env.reset(seed=seed, options=options)
        where = f"{self._name}.reset()"
        if not isinstance(result, tuple) or len(result) != 2:
            raise _unfit(where, "two values: observation, info", described(result), "return both; info may be {}")
        self._check(where, result[0], result[1])
        return result

    def _checked_step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        result: Any = self.env.step(action)
        where = f"{self._name}.step()"
        if not isinstance(result, tuple) or len(result) != 5:
            raise _unfit(
                where,
                "five values: observation, reward, terminated, truncated, info",
                described(result),
                "return both flags: terminated (the task is over) and truncated (it was stopped early)",
            )
        self._check(where, result[0], result[4])
        as_reward(where, result[1])
        for name, flag in zip(("terminated", "truncated"), result[2:4]):
            as_flag(where, name, flag)
        return result

    def _check(self, where: str, observation: Any, info: Any) -> None:
        check_row(self.observation_space, observation, f"observation of {where}")
        if not isinstance(info, dict):
            raise _unfit(where, "a dict as info", described(info), "return {} if there is nothing to tell")


class FirstCallChecks(_CheckedCalls):
    """Checks the return values of an environment's first reset and first step, then removes itself from the calls.

    Later values are checked by `SyncEnvs`, or as arrays.

    Args:
        env: The environment.

    Raises:
        EnvironmentContractError: a call returns something else than Gymnasium's `Env` says.
        SpaceError: an observation of another nesting, shape or kind than the observation space.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; the first result is checked."""
        result = self._checked_reset(seed, options)
        _warn_of_bounds(self.observation_space, result[0], f"first observation of {self._name}")
        self.reset = self.env.reset  # type: ignore[method-assign]
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment; the first result is checked."""
        result = self._checked_step(action)
        self.step = self.env.step  # type: ignore[method-assign]
        return result


class WorkerChecks(_CheckedCalls):
    """Checks every call of an environment in a process of its own, and reports its failures in the info.

    Gymnasium's worker process would write an observation of another shape into shared memory, and a failure that it
    raises would lose the other environments' results of the same step. After a failure the observation is the
    previous one, the reward 0, and neither flag is set.

    Args:
        env: The environment.

    Raises:
        Exception: any error of the environment before its first observation.
    """

    _last: Any = None
    _first = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment."""
        try:
            self._last, info = self._checked_reset(seed, options)
        except Exception as error:
            if self._last is None:
                raise
            info = {FAILURE: portable(error)}
        if self._first:
            self._first = False
            _warn_of_bounds(self.observation_space, self._last, f"first observation of {self._name}")
        return self._last, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the environment."""
        try:
            self._last, reward, terminated, truncated, info = self._checked_step(action)
        except Exception as error:
            return self._last, 0.0, False, False, {FAILURE: portable(error)}
        where = f"{self._name}.step()"
        flags = as_flag(where, "terminated", terminated), as_flag(where, "truncated", truncated)
        return (self._last, as_reward(where, reward), *flags, info)


class TerminalCopies(gym.Wrapper[Any, Any, Any, Any]):
    """Copies terminal observations: if arrays are reused, the reset in the same step would overwrite them.

    Args:
        env: The environment.
    """

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment."""
        result = self.env.step(action)
        if result[2] or result[3]:
            return (map_struct(_copied, result[0]), *result[1:])
        return result


def _warn_of_bounds(space: Any, observation: Any, where: str) -> None:
    """Warn if numbers are outside of a bounded Box by more than its width, such as pixels that were not divided."""
    spaces, form = flatten(get_base_struct_from_space(space))
    for path, leaf, row in zip(paths_of(form), spaces, flatten_like(form, observation)):
        if not isinstance(leaf, gym.spaces.Box) or not leaf.is_bounded():
            continue
        low, high = leaf.low.astype(np.float64), leaf.high.astype(np.float64)
        values = np.asarray(row, np.float64)
        out = (values < low - (high - low)) | (values > high + (high - low))
        if out.any():
            warning = EpibatchWarning(
                where + (path and f", part {path}"),
                expected=f"numbers from {low.min():g} to {high.max():g}, as its space says",
                found=f"{values[out].flat[0]:g}",
                do="correct the observation or the bounds of the space, which scaling and networks may go by",
            )
            warnings.warn(warning, stacklevel=2)
            return


def _copied(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


def as_reward(where: str, reward: Any) -> float:
    """Return a reward as a float; an array of a single number is allowed.

    Raises:
        EnvironmentContractError: it is no finite number.
    """
    if not isinstance(reward, (float, int, str, bytes)):
        array = np.asarray(reward)
        if array.size == 1 and array.dtype.kind in "fiub":
            reward = array.item()
    check_reward(where, reward)
    return float(reward)


def as_flag(where: str, name: str, flag: Any) -> bool:
    """Return a flag as True or False; 1 and 0 count as these, and so does an array of a single one.

    Raises:
        EnvironmentContractError: it is something else, such as the text "False", which would count as True.
    """
    if type(flag) is bool or type(flag) is np.bool_:
        return bool(flag)
    array = np.asarray(flag)
    if array.size != 1 or array.dtype.kind not in "fiub" or array.item() not in (0, 1):
        raise _unfit(where, f"True or False as {name}", described(flag), f"return bool(...) as {name}")
    return bool(array.item())


def portable(error: Exception) -> Exception:
    """Return an error that can be pickled: with its traceback as a note, or as a RunnerError that quotes it."""
    trace = "".join(traceback.format_exception(error))
    add_note(error, f"In the worker process:\n{trace}")
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RunnerError(f"{type(error).__name__}: {error}\n{trace}")
    return error


def check_reward(where: str, reward: Any) -> None:
    """Raise if a reward is not a finite number.

    Raises:
        EnvironmentContractError: it is not one.
    """
    number = isinstance(reward, (bool, int, float, np.bool_, np.integer, np.floating))
    if not number and isinstance(reward, np.ndarray) and reward.ndim == 0 and reward.dtype.kind in "fiub":
        number = True
    if not number:
        raise _unfit(where, "a number as reward", described(reward), "return float(...) as reward")
    if not math.isfinite(reward):
        raise _unfit(where, "a finite reward", described(reward), "return 0.0 where there is no reward")


def described(value: Any) -> str:
    """Describe a call's return value, for messages.

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
    return EnvironmentContractError(where, expected=expected, found=found, do=do)
