"""Addresses of columns: `rewards`, or one part of a nested one, as in `obs/camera`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym

from epibatch.core.errors import ColumnError, PieceError, nearest
from epibatch.core.structs import is_leaf, map_struct

__all__ = ["ColumnPath", "paths_from", "space_of_struct", "struct_of_space"]


class ColumnPath(NamedTuple):
    """A column, and where in it.

    Args:
        column: Its name.
        keys: Keys of Dicts and positions in Tuples, from the outermost to the innermost; () is the whole column.
    """

    column: str
    keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "/".join(filter(None, (self.column, *self.keys)))

    def change(self, struct: Any, function: Callable[[Any], Any]) -> Any:
        """A structure of arrays with `function` applied to each leaf at this path; the rest stays as it is.

        Raises:
            ColumnError: there is nothing at the path.
        """
        return self._changed(struct, self.keys, lambda found: map_struct(function, found))

    def change_in(self, struct: Any, space: Any, function: Callable[[Any, Any], Any]) -> Any:
        """As `change`, with a function of a leaf and of the leaf's space, which is None where it is not known.

        Args:
            struct: A structure of arrays.
            space: Of one row of the whole structure; None, or one that is nested otherwise, says nothing.
            function: What to apply.

        Raises:
            ColumnError: there is nothing at the path.
        """
        for key in self.keys:
            space = _part(space, key)
        return self._changed(struct, self.keys, lambda found: _beside(found, space, function))

    def change_space(self, space: gym.Space[Any], function: Callable[[gym.Space[Any]], Any]) -> Any:
        """A space with `function` applied to each part at this path that is neither Dict nor Tuple.

        Where the function knows of no space (None), nothing is known of the whole.

        Raises:
            ColumnError: there is nothing at the path.
        """
        return space_of_struct(
            self._changed(struct_of_space(space), self.keys, lambda found: map_struct(function, found))
        )

    def part(self, struct: Any) -> Any:
        """What a structure has at this path.

        Raises:
            ColumnError: there is nothing.
        """
        for depth, key in enumerate(self.keys):
            own = _key_of(struct, key)
            if own is None:
                raise self._nothing_there(struct, depth)
            struct = struct[own]
        return struct

    def without(self, struct: Any) -> Any:
        """A structure whose part at this path is left out; of Tuples later parts move up.

        Raises:
            ColumnError: there is nothing at the path.
        """
        self.part(struct)

        def left(found: Any) -> Any:
            if isinstance(found, dict):
                return {key: own for key, own in found.items() if key != self.keys[-1]}
            return tuple(own for at, own in enumerate(found) if at != int(self.keys[-1]))

        return self._changed(struct, self.keys[:-1], left)

    def put(self, struct: Any, part: Any) -> Any:
        """A structure with something at this path; dicts on the way that are not there yet are made.

        Raises:
            ColumnError: there is something at the path, or an array or a tuple on the way to it.
        """
        return self._put(struct, self.keys, part)

    def _put(self, struct: Any, keys: tuple[str, ...], part: Any) -> Any:
        if not keys:
            return part
        if not isinstance(struct, dict) or (len(keys) == 1 and keys[0] in struct):
            raise ColumnError(
                f"column {str(self)!r}",
                expected="a place for a new part",
                found="one that is taken" if isinstance(struct, dict) else f"no dict, {type(struct).__name__}",
                do="choose another name",
            )
        return {**struct, keys[0]: self._put(struct.get(keys[0], {}), keys[1:], part)}

    def _changed(self, struct: Any, keys: tuple[str, ...], function: Callable[[Any], Any]) -> Any:
        if not keys:
            return function(struct)
        own = _key_of(struct, keys[0])
        if own is None:
            raise self._nothing_there(struct, len(self.keys) - len(keys))
        changed = self._changed(struct[own], keys[1:], function)
        if isinstance(struct, dict):
            return {**struct, own: changed}
        return (*struct[:own], changed, *struct[own + 1 :])

    def _nothing_there(self, struct: Any, depth: int) -> ColumnError:
        there = struct if isinstance(struct, dict) else () if is_leaf(struct) else range(len(struct))
        known, key = list(map(str, there)), self.keys[depth]
        return ColumnError(
            f"column {str(self)!r}",
            expected=f"a part {key!r} of {str(ColumnPath(self.column, self.keys[:depth]))!r}",
            found=f"parts {', '.join(known)}" if known else "one array",
            do=nearest(key, known) if known else f"write {self.column!r} alone",
        )


def _key_of(struct: Any, key: str) -> Any:
    """The key, or position, of a structure's part; None if it has no such part."""
    if isinstance(struct, dict):
        return key if key in struct else None
    return int(key) if isinstance(struct, tuple) and key.isdecimal() and int(key) < len(struct) else None


def paths_from(piece: str, columns: Any) -> tuple[ColumnPath, ...]:
    """The addresses in what a piece's `columns` says.

    Args:
        piece: Name of the piece, for messages.
        columns: A name, or several.

    Raises:
        PieceError: no name, or something else.
    """
    names = (columns,) if isinstance(columns, str) else columns
    if not isinstance(names, (tuple, list)) or not names or not all(isinstance(name, str) and name for name in names):
        raise PieceError(
            f"{piece}.columns",
            expected="the name of a column, or several",
            found=repr(columns),
            do='write columns = "rewards" in the class, or columns = ("obs", "new_obs")',
        )
    return tuple(ColumnPath(name.split("/")[0], tuple(name.split("/")[1:])) for name in names)


def _part(space: Any, key: Any) -> Any:
    """The space of one part of a Dict or Tuple space; None if there is none."""
    if isinstance(space, gym.spaces.Dict):
        return space.spaces.get(key)
    if isinstance(space, gym.spaces.Tuple) and str(key).isdecimal() and int(key) < len(space.spaces):
        return space.spaces[int(key)]
    return None


def _beside(struct: Any, space: Any, function: Callable[[Any, Any], Any]) -> Any:
    if isinstance(struct, dict):
        return {key: _beside(own, _part(space, key), function) for key, own in struct.items()}
    if isinstance(struct, tuple):
        return tuple(_beside(own, _part(space, i), function) for i, own in enumerate(struct))
    return function(struct, None if isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple)) else space)


def struct_of_space(space: Any) -> Any:
    """Dict and Tuple spaces as dicts and tuples of the spaces in them."""
    if isinstance(space, gym.spaces.Dict):
        return {key: struct_of_space(own) for key, own in space.spaces.items()}
    return tuple(map(struct_of_space, space.spaces)) if isinstance(space, gym.spaces.Tuple) else space


def space_of_struct(struct: Any) -> Any:
    """Dicts and tuples of spaces as Dict and Tuple spaces; None if one of them is None."""
    if isinstance(struct, dict):
        found = {key: space_of_struct(own) for key, own in struct.items()}
        return None if None in found.values() else gym.spaces.Dict(found)
    if not isinstance(struct, tuple):
        return struct
    parts = tuple(map(space_of_struct, struct))
    return None if None in parts else gym.spaces.Tuple(parts)
