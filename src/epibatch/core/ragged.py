"""Observations that are no arrays of one shape, as arrays: Sequence and Graph spaces, and registered ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from epibatch.core.errors import SpaceError
from epibatch.core.registered_spaces import codec_of, encoded, encoded_space
from epibatch.core.spaces import get_base_struct_from_space, map_space
from epibatch.core.structs import flatten, flatten_like, unflatten

_LINKS = spaces.Box(0, np.iinfo(np.int64).max, (2,), np.int64)


def is_ragged(space: Any) -> bool:
    """True if the values of a space are arrays with any number of rows: a stacked Sequence of arrays of one shape."""
    return isinstance(space, spaces.Sequence) and space.stack and space.feature_space.shape is not None


def is_padded(space: Any) -> bool:
    """True if a space is that of padded rows and their mask, whose number is not known."""
    names = space.spaces.keys() if isinstance(space, spaces.Dict) else ()
    return names == {"value", "mask"} and is_ragged(space["value"]) and is_ragged(space["mask"])


def has_ragged_parts(space: Any) -> bool:
    """True if a space is a Sequence, a Graph or of a registered class, or has such a part."""
    leaves = flatten(get_base_struct_from_space(space))[0]
    return any(isinstance(leaf, (spaces.Sequence, spaces.Graph)) or codec_of(leaf) is not None for leaf in leaves)


def ragged_space(space: gym.Space[Any]) -> Any:
    """Return a space in which all that has any number of rows is arrays: a stacked Sequence for each.

    A Sequence of Dicts becomes a Dict of Sequences. A Graph becomes a Dict of Sequences: `nodes`, `edge_links` (the
    numbers of two nodes each) and, if edges have a space, `edges`. A space of a registered class becomes that of its
    arrays.

    Raises:
        SpaceError: a Sequence of something without a shape, such as a Sequence.

    Examples:
        >>> ragged_space(spaces.Graph(spaces.Discrete(3), None))["nodes"]
        Sequence(Discrete(3), stack=True)
    """
    return map_space(_arrays_space, encoded_space(space))


def _arrays_space(leaf: Any) -> Any:
    if isinstance(leaf, spaces.Graph):
        parts = {"nodes": leaf.node_space, "edges": leaf.edge_space, "edge_links": _LINKS}
        return spaces.Dict({key: _arrays_of(part, leaf) for key, part in parts.items() if part is not None})
    if isinstance(leaf, spaces.Sequence) and not is_ragged(leaf):
        return map_space(lambda part: _arrays_of(part, leaf), leaf.feature_space)
    return leaf


def _arrays_of(part: Any, whole: Any) -> spaces.Sequence:
    if part.shape is None or part.dtype is None:
        raise SpaceError(
            "observation space",
            expected="a Sequence or Graph of Box, Discrete, MultiDiscrete or MultiBinary, or nested ones of these",
            found=f"{whole}",
            do="give inner rows one length, or a Sequence beside it, with gymnasium.wrappers.TransformObservation",
        )
    return spaces.Sequence(part, stack=True)


def ragged_row(space: Any, row: Any, *, boxed: bool = False) -> Any:
    """Return a value of a space as one of its `ragged_space`, nested arrays; what does not fit stays as it is.

    A Sequence that is missing in a Dict has no rows.

    Args:
        space: The environment's space.
        row: One observation.
        boxed: Whether each array of rows is copied into a 0-d array of objects. So an episode's first row shows that
            the column has objects.

    Examples:
        >>> ragged_row(spaces.Dict(a=spaces.Sequence(spaces.Discrete(3)), b=spaces.Discrete(2)), {"a": (2, 0), "b": 1})
        {'a': array([2, 0]), 'b': 1}
    """
    if isinstance(space, spaces.Dict) and isinstance(row, Mapping):
        absent = {key: () for key, part in space.spaces.items() if isinstance(part, spaces.Sequence)}
        items = {**absent, **row}.items()
        return {key: ragged_row(space.spaces.get(key), value, boxed=boxed) for key, value in items}
    if isinstance(space, spaces.Tuple) and isinstance(row, tuple) and len(row) == len(space.spaces):
        return tuple(ragged_row(part, value, boxed=boxed) for part, value in zip(space.spaces, row))
    if isinstance(space, spaces.Graph) and isinstance(row, tuple) and len(row) == 3:
        parts = {"nodes": space.node_space, "edges": space.edge_space, "edge_links": _LINKS}
        named = {key: (part, rows) for (key, part), rows in zip(parts.items(), row) if part is not None}
        return {key: _array(part, () if rows is None else rows, boxed) for key, (part, rows) in named.items()}
    if isinstance(space, spaces.Sequence):
        return _rows_of_sequence(space, row, boxed)
    return encoded(space, row)


def _rows_of_sequence(space: spaces.Sequence, rows: Any, boxed: bool) -> Any:
    leaves, form = flatten(get_base_struct_from_space(space.feature_space))
    if form is None:
        return _array(leaves[0], rows, boxed)
    if isinstance(rows, tuple) and (not space.stack or not rows):
        columns: Any = zip(*(flatten_like(form, item) for item in rows)) if rows else [()] * len(leaves)
    else:
        columns = flatten_like(form, rows)
    return unflatten(form, [_array(leaf, column, boxed) for leaf, column in zip(leaves, columns)])


def _array(space: Any, rows: Any, boxed: bool) -> Any:
    """Return rows as one array of the space's type, if that can hold them."""
    try:
        array = np.asarray(rows) if len(rows) else np.zeros((0, *space.shape), space.dtype)
    except (TypeError, ValueError):
        return rows
    if array.dtype.kind in "biuf" and np.can_cast(array.dtype, space.dtype, "same_kind"):
        array = array.astype(space.dtype, copy=False)
    if not boxed:
        return array
    box = np.empty((), np.object_)
    box[()] = array.copy()
    return box
