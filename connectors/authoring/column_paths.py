"""Addresses of columns: `rewards`, or one part of a nested one, as in `obs/camera`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym

from epibatch.core.errors import ColumnError, PieceError, explain, nearest
from epibatch.core.structs import is_leaf, map_struct

__all__ = ["ColumnPath", "paths_from"]


class ColumnPath(NamedTuple):
    """A column, and where in it.

    Args:
        column: Its name.
        keys: Keys of Dicts and positions in Tuples, from the outermost to the innermost; () is the whole column.
    """

    column: str
    keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "/".join((self.column, *self.keys))

    def change(self, struct: Any, function: Callable[[Any], Any]) -> Any:
        """A structure of arrays with `function` applied to each leaf at this path; the rest stays as it is.

        Raises:
            ColumnError: there is nothing at the path.
        """
        return self._changed(struct, self.keys, lambda found: map_struct(function, found))

    def change_space(self, space: gym.Space[Any], function: Callable[[gym.Space[Any]], gym.Space[Any]]) -> Any:
        """A space with `function` applied to each part at this path that is neither Dict nor Tuple.

        Raises:
            ColumnError: there is nothing at the path.
        """
        return _to_space(self._changed(_to_struct(space), self.keys, lambda found: map_struct(function, found)))

    def _changed(self, struct: Any, keys: tuple[str, ...], function: Callable[[Any], Any]) -> Any:
        if not keys:
            return function(struct)
        if isinstance(struct, dict) and keys[0] in struct:
            return {**struct, keys[0]: self._changed(struct[keys[0]], keys[1:], function)}
        if isinstance(struct, tuple) and keys[0].isdecimal() and int(keys[0]) < len(struct):
            at = int(keys[0])
            return (*struct[:at], self._changed(struct[at], keys[1:], function), *struct[at + 1 :])
        there = struct if isinstance(struct, dict) else () if is_leaf(struct) else range(len(struct))
        known = list(map(str, there))
        raise ColumnError(
            explain(
                f"column {str(self)!r}",
                expected=f"a part {keys[0]!r} of {self.column!r}",
                found=f"parts {', '.join(known)}" if known else "one array",
                do=nearest(keys[0], known) if known else f"write {self.column!r} alone",
            )
        )


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
            explain(
                f"{piece}.columns",
                expected="the name of a column, or several",
                found=repr(columns),
                do='write columns = "rewards" in the class, or columns = ("obs", "new_obs")',
            )
        )
    return tuple(ColumnPath(name.split("/")[0], tuple(name.split("/")[1:])) for name in names)


def _to_struct(space: Any) -> Any:
    if isinstance(space, gym.spaces.Dict):
        return {key: _to_struct(own) for key, own in space.spaces.items()}
    return tuple(map(_to_struct, space.spaces)) if isinstance(space, gym.spaces.Tuple) else space


def _to_space(struct: Any) -> Any:
    if isinstance(struct, dict):
        return gym.spaces.Dict({key: _to_space(own) for key, own in struct.items()})
    return gym.spaces.Tuple(tuple(map(_to_space, struct))) if isinstance(struct, tuple) else struct
