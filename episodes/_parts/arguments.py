"""Arguments of episodes: converted, refused where they cannot be meant; and names for episodes that are given none."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.core.errors import CheckpointError, ColumnError, EpisodeError, SpaceError

_NUMBERS = frozenset({float, int, bool, np.float32, np.float64})
_BYTES, _POOL = 16, 256
_fresh: list[str] = []


def as_reward(value: Any) -> Any:
    """Return a reward as its column takes it: of an array, tensor or list with one entry the number, else the value.

    Raises:
        ColumnError: it is no number, and no array of numbers.
    """
    if type(value) in _NUMBERS:
        return value
    try:
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    except (TypeError, ValueError):  # lists of several lengths
        array = np.empty(0, object)
    if array.dtype.kind not in "fiub":
        raise ColumnError("a step's reward", expected="a number", found=repr(value), do="convert it, float(reward)")
    return array.reshape(())[()] if array.size == 1 else array


def as_rewards(rewards: Any) -> Any:
    """Return a constructor's rewards, each as `as_reward` gives it."""
    if isinstance(rewards, np.ndarray):
        if rewards.ndim > 1 and len(rewards) and rewards[0].size == 1:
            rewards = rewards.reshape(len(rewards))
        return rewards if rewards.dtype.kind in "fiub" else [as_reward(reward) for reward in rewards]
    if isinstance(rewards, list) and not set(map(type, rewards)) <= _NUMBERS:
        return [as_reward(reward) for reward in rewards]
    return rewards


def as_flag(value: Any, name: str, id_: Any) -> bool:
    """A flag of episode `id_` as a bool: True and False of Python and NumPy, 0 and 1.

    Raises:
        EpisodeError: it is something else, such as the text "no".
    """
    kind = type(value)
    if kind is bool or kind is np.bool_:  # many environments give NumPy's, in every step
        return bool(value)
    if isinstance(value, (np.ndarray, np.generic)) and value.size == 1:
        value = value.item()
    if isinstance(value, (bool, int)) and value in (0, 1):
        return bool(value)
    raise EpisodeError(
        f"episode {id_}, {name}",
        expected="True or False",
        found=f"{type(value).__name__} {value!r}",
        do="pass the environment's own flag, one bool for the episode",
    )


def as_info(info: Any, id_: Any) -> dict[str, Any]:
    """A copy of an info dict of episode `id_`; {} for none.

    Raises:
        EpisodeError: it is no dict.
    """
    if info is None:
        return {}
    if isinstance(info, Mapping):
        return dict(info)
    raise EpisodeError(
        f"episode {id_}, infos",
        expected="the info dict of one step",
        found=f"{type(info).__name__} {info!r}",
        do="pass the dict that env.reset() or env.step() gave, or leave it out",
    )


def check_steps(value: Any, name: str, id_: Any) -> int:
    """A number of steps, 0 or more, given to episode `id_`.

    Raises:
        EpisodeError: it is something else.
    """
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and value >= 0:
        return int(value)
    raise EpisodeError(
        f"episode {id_}, {name}",
        expected="a number of steps from 0 on",
        found=repr(value),
        do="pass an integer, 0 for none",
    )


def check_space(space: Any, name: str, id_: Any) -> Any:
    """A space given to episode `id_`, or None.

    Raises:
        SpaceError: it is something else.
    """
    if space is None or isinstance(space, gym.Space):
        return space
    raise SpaceError(
        f"episode {id_}, {name}",
        expected="a gymnasium Space",
        found=f"{type(space).__name__} {space!r}",
        do="pass the space of one environment, or leave it out",
    )


def check_state(state: Any, names: Iterable[str], where: str, kind: str, do: str) -> None:
    """Check that a state has entries of these names.

    Args:
        state: The argument of a `from_state`.
        names: The entries that it needs.
        where: That method.
        kind: What the state is to be the state of.
        do: What to pass instead.

    Raises:
        CheckpointError: it is no dict, or lacks an entry.
    """
    if not isinstance(state, Mapping):
        found = f"{type(state).__name__} {state!r}"
    else:
        found = ", ".join(name for name in names if name not in state)
        found = found and f"no {found}"
    if found:
        raise CheckpointError(where, expected=f"the state of {kind}", found=found, do=do)


def fresh_id() -> str:
    """A random name of 32 hexadecimal digits.

    The system's random source is asked for many names at once, because asking costs more than the name. A forked
    process forgets those left over, so that it does not use its parent's.

    Examples:
        >>> len(fresh_id()), fresh_id() == fresh_id()
        (32, False)
    """
    while True:
        try:
            return _fresh.pop()
        except IndexError:  # empty, or another thread took the last one
            digits = os.urandom(_BYTES * _POOL).hex()
            _fresh.extend(digits[at : at + 2 * _BYTES] for at in range(0, len(digits), 2 * _BYTES))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fresh.clear)
