"""Converts the inputs of a policy to arrays with one row per environment."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.core.errors import ColumnError, SpaceError
from epibatch.core.ragged import is_ragged, ragged_row
from epibatch.core.spaces import check_row, get_base_struct_from_space
from epibatch.core.structs import flatten, flatten_like, paths_of, unflatten

_KINDS = {"f": "fiub", "i": "iub", "u": "iub", "b": "iub"}
_DO = "give one observation of the environment, or those of several stacked along a new first axis"


class PolicyInputs:
    """Reads observations, rewards and flags, for one environment or for several.

    A leaf of exactly its space's shape is one observation; a leaf with one more axis before that is a batch. As shapes
    of a space have a fixed number of axes, this is unambiguous. An observation with any number of rows is an array of
    rows, and a batch a list of these.

    Args:
        space: Of one observation.

    Examples:
        >>> inputs = PolicyInputs(gym.spaces.Box(0, 1, (2,)))
        >>> inputs.observations([0.5, 0.5])
        (array([[0.5, 0.5]], dtype=float32), False)
        >>> inputs.observations(np.zeros((3, 2)))[0].shape
        (3, 2)
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        self._space = space
        self._leaves, self._form = flatten(get_base_struct_from_space(space))
        self._paths = paths_of(self._form)
        self._ragged = any(map(is_ragged, self._leaves))
        for leaf in self._leaves:
            if (leaf.shape is None or leaf.dtype is None) and not is_ragged(leaf):
                raise SpaceError(
                    "Policy, observation space",
                    expected="leaves with a shape and a type",
                    found=repr(leaf),
                    do="turn this part of the observation into numbers with a Gymnasium wrapper",
                )

    def observations(self, obs: Any) -> tuple[Any, bool]:
        """Arrays of shape [N, ...] in the space's types, and whether a batch was given.

        Raises:
            SpaceError: another nesting, shape or kind than the space's, or no rows.
        """
        space = self._leaves[0]
        if self._form is None and type(obs) is np.ndarray and obs.dtype == space.dtype:
            if obs.shape == space.shape:
                return obs[None], False
            if obs.shape[1:] == space.shape and len(obs):
                return obs, True
        if self._ragged:
            obs = _listed(self._space, obs)
        try:
            values = flatten_like(self._form, obs)
        except ColumnError as error:
            nested = str(error).splitlines()
            found = next((line.partition(":")[2].strip() for line in nested if "found:" in line), type(obs).__name__)
            if not isinstance(obs, (dict, tuple)):
                found = f"{type(obs).__name__}, not nested"
            do = "nest observations as the space says; of several, stack each part: {key: rows of all}"
            if type(obs) is tuple and len(obs) == 2 and isinstance(obs[1], dict):
                do = "pass the observation and the info of env.reset() apart: act(obs, info=info)"
            raise self._unfit(self._space, found, do=do if self._form is not None or "apart" in do else _DO) from error
        arrays = [self._array(i, value) for i, value in enumerate(values)]
        rows = [self._count(i, array) for i, array in enumerate(arrays)]
        if len(set(rows)) > 1:
            raise self._uneven(rows)
        if rows[0] == 0:
            raise self._unfit(self._space, "no rows")
        batched = rows[0] is not None
        return unflatten(self._form, [array if batched else array[None] for array in arrays]), batched

    def _count(self, i: int, array: Any) -> int | None:
        """Return the number of rows of an array of leaf `i`; None for a single observation."""
        leaf = self._leaves[i]
        if is_ragged(leaf):
            return len(array) if array.ndim else None
        if array.shape == leaf.shape:
            return None
        if array.ndim and array.shape[1:] == leaf.shape:
            return len(array)
        raise self._unfit(leaf, f"shape {array.shape}", self._paths[i])

    def _rows(self, leaf: Any, value: Any, path: str) -> Any:
        """Return an array of rows as an object array without axes, or several of them as one [N]."""
        shape = leaf.feature_space.shape
        value = value[()] if isinstance(value, np.ndarray) and value.shape == () else value
        try:
            plain: Any = np.asarray(value)
        except ValueError:  # arrays of different lengths
            plain = np.empty((0, *shape, 0))
        is_single = plain.ndim > 0 and plain.dtype != object and (plain.shape[1:] == shape or plain.shape == (0,))
        items = [value] if is_single else list(value) if isinstance(value, (list, tuple, np.ndarray)) else []
        rows = np.empty(len(items), object)
        for k, item in enumerate(items):
            rows[k] = ragged_row(leaf, item)
            try:
                check_row(leaf, rows[k], f"observation given to the policy{path}")
            except SpaceError as error:
                raise self._unfit(leaf, f"{type(value).__name__} ({error.found})", path) from error
        if not items:
            raise self._unfit(leaf, type(value).__name__, path)
        return rows.reshape(()) if is_single else rows

    def _uneven(self, rows: list[int | None]) -> SpaceError:
        """The error about parts of which some are single and others batches, or batches of another length."""
        kinds: dict[int | None, list[str]] = {}
        for path, count in zip(self._paths, rows):
            kinds.setdefault(count, []).append(f"obs{path}")
        found = [f"{', '.join(paths)} {'single' if n is None else f'a batch of {n}'}" for n, paths in kinds.items()]
        return self._unfit(self._space, "; ".join(found), do="give single parts only, or batches of one length only")

    def _array(self, i: int, value: Any) -> Any:
        """One leaf as an array of the space's type."""
        leaf, path = self._leaves[i], self._paths[i]
        if is_ragged(leaf):
            return self._rows(leaf, value, path)
        try:
            array = np.asarray(value)
        except (ValueError, TypeError) as error:
            raise self._unfit(leaf, f"{type(value).__name__} that is no array ({error})", path) from error
        if array.dtype.kind not in _KINDS.get(leaf.dtype.kind, ""):
            raise self._unfit(leaf, f"{type(value).__name__} of {array.dtype}", path)
        cast = array.astype(leaf.dtype, copy=False)
        if leaf.dtype.kind != "f" and cast is not array and not np.array_equal(cast, array):
            raise self._unfit(leaf, f"values that {leaf.dtype} cannot hold", path)
        return cast

    @staticmethod
    def _unfit(space: Any, found: str, path: str = "", do: str = _DO) -> SpaceError:
        where = f"observation for Policy.act{path and f', its part obs{path}'}"
        return SpaceError(where, expected=f"{space}, or a batch of them", found=found, do=do)

    @staticmethod
    def rewards(reward: Any, rows: int, batched: bool) -> Any:
        """Return the rewards of the last step, shape [rows]; NaN if the caller gave none.

        Raises:
            ColumnError: not one number per row.
        """
        if reward is None:
            return np.full(rows, np.nan)
        array = np.asarray(reward)
        if array.shape != ((rows,) if batched else ()) or array.dtype.kind not in "fiub":
            raise _unfit_rows("reward", "a number", "numbers", rows if batched else None, array)
        return array.reshape(rows).astype(np.float64, copy=False)

    @staticmethod
    def starts(starts: Any, rows: int, batched: bool) -> Any:
        """Return the mask of rows that begin a new episode: bool, [rows]; None if none does.

        Raises:
            ColumnError: not one boolean per row.
        """
        if starts is None:
            return None
        array = np.asarray(starts)
        if array.shape != ((rows,) if batched else ()) or array.dtype.kind != "b":
            raise _unfit_rows("starts", "a boolean", "booleans", rows if batched else None, array)
        return array.reshape(rows) if array.any() else None

    @staticmethod
    def infos(info: Any, batched: bool) -> Any:
        """The infos of the rows: a vector environment's dict of arrays, or one dict per row.

        Raises:
            ColumnError: no dict.
        """
        if info is not None and not isinstance(info, dict):
            raise ColumnError(
                "info for Policy.act",
                expected="the dict that the environment's reset or step returned",
                found=type(info).__name__,
                do="pass it as it came; a vector environment's is a dict of arrays",
            )
        return None if not info else info if batched else [info]


def _listed(space: Any, obs: Any) -> Any:
    """Return an observation in which lists and tuples of rows are one object each, which nesting does not open."""
    if isinstance(space, gym.spaces.Dict) and isinstance(obs, dict):
        return {key: _listed(space.spaces.get(key), part) for key, part in obs.items()}
    if isinstance(space, gym.spaces.Tuple) and isinstance(obs, tuple) and len(obs) == len(space.spaces):
        return tuple(_listed(part, item) for part, item in zip(space.spaces, obs))
    if not is_ragged(space) or not isinstance(obs, (list, tuple)):
        return obs
    box = np.empty((), object)
    box[()] = obs
    return box


def _unfit_rows(what: str, single: str, many: str, rows: int | None, found: Any) -> ColumnError:
    return ColumnError(
        f"{what} for Policy.act",
        expected=f"{single} for a single observation" if rows is None else f"{rows} {many}, one per row",
        found=f"{found.dtype} of shape {found.shape}",
        do=f"pass {what} as the environment's step gave it"
        if what == "reward"
        else "pass terminated | truncated of the step before, which say whose observation is a reset one",
    )
