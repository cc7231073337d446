"""Structure of a space, and checks of rows against it that are cheap enough for every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from epibatch.core.errors import SpaceError
from epibatch.core.structs import is_leaf, map_struct

__all__ = ["check_row", "encoding_advice", "get_base_struct_from_space", "map_space", "space_of_struct"]

_ADVICE: dict[type, str] = {
    spaces.Text: "encode the text as an array of one length, with a wrapper around the environment",
    spaces.Sequence: "pad the sequence to one length and give it as a Box, with a wrapper around the environment",
    spaces.Graph: "pad nodes and edges to one number and give them as Boxes, with a wrapper around the environment",
}


def encoding_advice(space: gym.Space[Any]) -> str:
    """Return the advice about a part of an observation that is no array of one shape, for messages.

    Example:
        >>> encoding_advice(spaces.Text(5)).partition(",")[0]
        'encode the text as an array of one length'
    """
    how = _ADVICE.get(type(space), "replace it by a space of one shape in the environment")
    return f"{how} (gymnasium.wrappers.TransformObservation)"


def get_base_struct_from_space(space: Any) -> Any:
    """The nested dict and tuple of spaces that a Dict or Tuple space stands for; other spaces are leaves.

    Example:
        >>> get_base_struct_from_space(spaces.Dict(a=spaces.Tuple([spaces.Discrete(2)])))
        {'a': (Discrete(2),)}
    """
    if isinstance(space, (spaces.Dict, dict)):
        return {key: get_base_struct_from_space(sub) for key, sub in space.items()}
    if isinstance(space, (spaces.Tuple, tuple)):
        return tuple(get_base_struct_from_space(sub) for sub in space)
    return space


def space_of_struct(struct: Any) -> Any:
    """Dicts and tuples of spaces as Dict and Tuple spaces; None if one of them is None."""
    if is_leaf(struct):
        return struct
    if isinstance(struct, dict):
        parts = {key: space_of_struct(own) for key, own in struct.items()}
        return None if None in parts.values() else spaces.Dict(parts)
    items = tuple(map(space_of_struct, struct))
    return None if None in items else spaces.Tuple(items)


def map_space(function: Callable[[Any], Any], space: Any) -> Any:
    """A space with `function` applied to each part that is neither Dict nor Tuple.

    Example:
        >>> map_space(lambda leaf: spaces.Discrete(leaf.n + 1), spaces.Dict(a=spaces.Discrete(2)))
        Dict('a': Discrete(3))
    """
    return space_of_struct(map_struct(function, get_base_struct_from_space(space)))


def check_row(space: gym.Space[Any], row: Any, where: str) -> None:
    """Check that one row has the nesting, leaf shapes and kinds of `space`.

    Bounds and float types are not checked: they cost more than the mistakes they find.

    Args:
        space: the space of the row.
        row: one observation or action.
        where: what the row is, for the message, such as "observation of episode 'a'".

    Raises:
        SpaceError: another nesting, another leaf shape, or a leaf that is not a number of the right kind.

    Example:
        >>> check_row(spaces.Box(0, 1, (2,)), np.zeros(2), "observation")
    """
    if type(space) is spaces.Box and type(row) is np.ndarray and row.shape == space._shape and row.dtype.kind in "fiub":
        return
    if isinstance(space, spaces.Dict):
        if not isinstance(row, dict) or row.keys() != space.spaces.keys():
            found = f"dict with keys {list(row)}" if isinstance(row, dict) else _describe(row)
            raise _unfit(where, f"dict with keys {list(space.spaces)}", found, space)
        for key, sub in space.spaces.items():
            check_row(sub, row[key], f"{where}[{key!r}]")
    elif isinstance(space, spaces.Tuple):
        if not isinstance(row, tuple) or len(row) != len(space.spaces):
            found = f"tuple of {len(row)}" if isinstance(row, tuple) else _describe(row)
            raise _unfit(where, f"tuple of {len(space.spaces)}", found, space)
        for i, sub in enumerate(space.spaces):
            check_row(sub, row[i], f"{where}[{i}]")
    else:
        _check_leaf(space, row, where)


def _check_leaf(space: gym.Space[Any], row: Any, where: str) -> None:
    shape: tuple[int, ...] = ()
    if isinstance(space, spaces.Discrete):
        kinds, wanted = "iub", "integer"
    elif isinstance(space, (spaces.MultiDiscrete, spaces.MultiBinary)):
        kinds, wanted, shape = "iub", "integers", space.shape
    elif isinstance(space, spaces.Box):
        kinds, wanted, shape = "fiub", "numbers", space.shape
    else:
        return
    try:
        array = np.asarray(row) if is_leaf(row) else None
    except ValueError:
        array = None
    if array is None or array.shape != shape or array.dtype.kind not in kinds:
        raise _unfit(where, f"{wanted} of shape {shape}", _describe(row), space)


def _describe(row: Any) -> str:
    if isinstance(row, (np.ndarray, np.generic)):
        return f"{row.dtype} array of shape {row.shape}"
    try:
        return f"{type(row).__name__} of shape {np.shape(row)}" if isinstance(row, list) else type(row).__name__
    except ValueError:
        return "ragged list"


def _unfit(where: str, expected: str, found: str, space: gym.Space[Any]) -> SpaceError:
    return SpaceError(
        where,
        expected=f"{expected}, as in {space}",
        found=found,
        do="make the environment (or the piece that writes it) return values of its space",
    )
