"""Rows of a column in plain Python: stacking them, counting positions in them, filling them up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from oracle.compare import Mismatch, mismatches


def each(function: Callable[..., Any], first: Any, *others: Any) -> Any:
    """Apply a function to the leaves of structures of dicts and tuples that are nested alike."""
    if isinstance(first, dict):
        if any(not isinstance(other, dict) or other.keys() != first.keys() for other in others):
            raise ValueError("nested differently")
        return {key: each(function, first[key], *(other[key] for other in others)) for key in first}
    if isinstance(first, tuple):
        if any(not isinstance(other, tuple) or len(other) != len(first) for other in others):
            raise ValueError("nested differently")
        return tuple(each(function, *parts) for parts in zip(first, *others))
    if any(isinstance(other, (dict, tuple)) for other in others):
        raise ValueError("nested differently")
    return function(first, *others)


def leaves(struct: Any) -> list[Any]:
    """The leaves of a structure, dict entries by sorted key."""
    if isinstance(struct, dict):
        return [leaf for key in sorted(struct) for leaf in leaves(struct[key])]
    if isinstance(struct, tuple):
        return [leaf for part in struct for leaf in leaves(part)]
    return [struct]


def space_struct(space: Any) -> Any:
    """The spaces of a nested space's leaves, as dicts and tuples."""
    if isinstance(space, gym.spaces.Dict):
        return {key: space_struct(inner) for key, inner in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(map(space_struct, space.spaces))
    return space


def stack(rows: Sequence[Any]) -> Any:
    """At least one row as one structure of arrays, time first; rows of several types get the type that holds all."""
    return each(lambda *leaf: np.stack([np.asarray(value) for value in leaf]), *rows)


def unstack(columns: Any) -> list[Any]:
    """The rows of stacked arrays."""
    count = len(leaves(columns)[0])
    return [each(lambda leaf, i=i: leaf[i], columns) for i in range(count)]


def position(index: int, lookback: int, total: int, neg_index_as_lookback: bool) -> int:
    """Where an index points, counted from the first row of the lookback; it may point outside."""
    if index < 0 and not neg_index_as_lookback:
        return total + index
    return lookback + index


def first_of(compare: Callable[[Any, Any], list[Mismatch]] = mismatches) -> Callable[[Any, Any], list[Mismatch]]:
    """Compare two whole values: at most one mismatch, of the kind of the first one, with both as they are."""

    def whole(theirs: Any, ours: Any) -> list[Mismatch]:
        objects = isinstance(theirs, np.ndarray) and theirs.dtype == object
        found = [Mismatch((), "dtype", theirs, ours)] if objects else compare(theirs, ours)
        return [Mismatch((), found[0].kind, theirs, ours)] if found else []

    return whole


def same(a: Any, b: Any) -> bool:
    """Whether two values are the same in every respect."""
    objects = [isinstance(x, np.ndarray) and x.dtype == object for x in (a, b)]
    return not mismatches(list(a), list(b)) if all(objects) else not mismatches(a, b)
