"""Nested observations as rows of one float32 array."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from epibatch.core.errors import SpaceError
from epibatch.core.space_checks import encoding_advice, get_base_struct_from_space
from epibatch.core.struct_batches import sorted_leaves
from epibatch.core.structs import flatten, flatten_like, unflatten

__all__ = ["FlatRows"]


class _Part(NamedTuple):
    """One leaf: its place among the leaves, where its entries go, and for choices their counts and starts."""

    leaf: int
    space: Any
    start: int
    stop: int
    counts: npt.NDArray[np.int64] | None
    firsts: npt.NDArray[np.int64] | None


class FlatRows:
    """Joins the leaves of observations, dict entries by sorted key.

    Discrete and MultiDiscrete leaves become one-hots, all others are flattened and cast.

    Args:
        space: space of one observation.

    Attributes:
        space: the same.
        size: entries of a row.

    Raises:
        SpaceError: a leaf without a fixed number of entries.

    Example:
        >>> rows = FlatRows(gym.spaces.Dict(b=gym.spaces.Discrete(2), a=gym.spaces.Box(-1, 1, (2, 1))))
        >>> rows({"b": np.array([1, 0]), "a": np.full((2, 2, 1), 0.5)})
        array([[0.5, 0.5, 0. , 1. ],
               [0.5, 0.5, 1. , 0. ]], dtype=float32)
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        self.space = space
        leaves, self._form = flatten(get_base_struct_from_space(space))
        self._parts: list[_Part] = []
        self.size = 0
        for i in sorted_leaves(unflatten(self._form, range(len(leaves)))):
            counts, firsts = _choices(leaves[i])
            width = int(counts.sum()) if counts is not None else _entries(leaves[i], space)
            self._parts.append(_Part(i, leaves[i], self.size, self.size + width, counts, firsts))
            self.size += width

    def __call__(self, observations: Any) -> npt.NDArray[np.float32]:
        """Rows `[n, size]` of observations whose leaves are arrays `[n, ...]`; a copy.

        Raises:
            ColumnError: nested otherwise than the space.
            SpaceError: a choice that its space does not have, or a leaf of another shape.
        """
        leaves = [np.asarray(leaf) for leaf in flatten_like(self._form, observations)]
        if self._form is None and self._parts[0].counts is None:
            return self._of_one(leaves[0])
        out = np.zeros((len(leaves[0]) if leaves else 0, self.size), np.float32)
        for part in self._parts:
            leaf = leaves[part.leaf]
            _check_shape(part, leaf)
            if part.counts is None:
                out[:, part.start : part.stop] = leaf.reshape(len(leaf), part.stop - part.start)
            else:
                _set_one_hot(out, part, leaf)
        return out

    def _of_one(self, leaf: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """The same of rows that are one array of numbers."""
        _check_shape(self._parts[0], leaf)
        return leaf.reshape(len(leaf), self.size).astype(np.float32)


def _check_shape(part: _Part, leaf: npt.NDArray[Any]) -> None:
    if leaf.shape[1:] != tuple(part.space.shape):
        raise _unfit(part.space, f"shape {leaf.shape[1:]} per row")


def _set_one_hot(out: npt.NDArray[np.float32], part: _Part, leaf: npt.NDArray[Any]) -> None:
    counts, firsts = part.counts, part.firsts
    if counts is None or firsts is None:
        return
    chosen = leaf.reshape(len(leaf), len(counts)).astype(np.int64) - firsts
    if leaf.dtype.kind not in "iub" or ((chosen < 0) | (chosen >= counts)).any():
        raise _unfit(part.space, f"values from {leaf.min()} to {leaf.max()} of type {leaf.dtype}")
    out[np.arange(len(leaf))[:, None], part.start + np.cumsum(counts) - counts + chosen] = 1.0


def _choices(leaf: Any) -> tuple[npt.NDArray[np.int64] | None, npt.NDArray[np.int64] | None]:
    """How many values each entry of a Discrete or MultiDiscrete leaf has, and the first of them."""
    if isinstance(leaf, gym.spaces.Discrete):
        return np.array([leaf.n], np.int64), np.array([leaf.start], np.int64)
    if isinstance(leaf, gym.spaces.MultiDiscrete):
        firsts = np.broadcast_to(getattr(leaf, "start", 0), leaf.shape)
        return leaf.nvec.reshape(-1).astype(np.int64), firsts.reshape(-1).astype(np.int64)
    return None, None


def _entries(leaf: Any, whole: Any) -> int:
    if isinstance(leaf, (gym.spaces.Box, gym.spaces.MultiBinary)):
        return int(np.prod(leaf.shape))
    raise SpaceError(
        f"flattening {whole}",
        expected="Box, Discrete, MultiDiscrete and MultiBinary spaces, in Dicts and Tuples",
        found=f"{leaf}",
        do=f"{encoding_advice(leaf)}, or leave it out with keys_to_remove",
    )


def _unfit(space: Any, found: str) -> SpaceError:
    return SpaceError(
        "flattening observations",
        expected=f"values of {space}",
        found=found,
        do="correct the environment's observations, or its observation_space",
    )
