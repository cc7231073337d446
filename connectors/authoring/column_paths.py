"""Addresses of columns: `rewards`, or one part of a nested one, as in `obs/camera`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, PieceError, nearest
from epibatch.core.spaces import get_base_struct_from_space, space_of_struct
from epibatch.core.structs import is_leaf, map_struct


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
        part_space = get_base_struct_from_space(space)
        for key in self.keys:
            part_space = _part(part_space, key)
        return self._changed(struct, self.keys, lambda found: _beside(found, part_space, function))

    def change_space(self, space: gym.Space[Any], function: Callable[[gym.Space[Any]], Any]) -> Any:
        """A space with `function` applied to each part at this path that is neither Dict nor Tuple.

        Where the function knows of no space (None), nothing is known of the whole.

        Raises:
            ColumnError: there is nothing at the path.
        """
        return space_of_struct(
            self._changed(get_base_struct_from_space(space), self.keys, lambda found: map_struct(function, found))
        )

    def part(self, struct: Any) -> Any:
        """Return the part of a structure at this path.

        Raises:
            ColumnError: there is nothing at the path.
        """
        for depth, key in enumerate(self.keys):
            place = _key_of(struct, key)
            if place is None:
                raise self._nothing_there(struct, depth)
            struct = struct[place]
        return struct

    def without(self, struct: Any) -> Any:
        """Return a structure without the part at this path. In Tuples later parts move up.

        Raises:
            ColumnError: there is nothing at the path.
        """
        self.part(struct)

        def left(found: Any) -> Any:
            if isinstance(found, dict):
                return {key: part for key, part in found.items() if key != self.keys[-1]}
            return tuple(part for position, part in enumerate(found) if position != int(self.keys[-1]))

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
        place = _key_of(struct, keys[0])
        if place is None:
            raise self._nothing_there(struct, len(self.keys) - len(keys))
        new_part = self._changed(struct[place], keys[1:], function)
        if isinstance(struct, dict):
            return {**struct, place: new_part}
        return (*struct[:place], new_part, *struct[place + 1 :])

    def _nothing_there(self, struct: Any, depth: int) -> ColumnError:
        parts = struct if isinstance(struct, dict) else () if is_leaf(struct) else range(len(struct))
        names, key, above = list(map(str, parts)), self.keys[depth], str(ColumnPath(self.column, self.keys[:depth]))
        return ColumnError(
            f"column {str(self)!r}",
            expected=f"a part {key!r} of {above!r}",
            found=f"parts {', '.join(names)}" if names else "one array",
            do=nearest(key, names) if names else f"write {above!r}",
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


def observation_paths(piece: str, columns: Any) -> tuple[ColumnPath, ...]:
    """Return the addresses of observations, or of parts of them, in what a piece's `columns` says.

    Args:
        piece: Name of the piece, for messages.
        columns: `obs`, a part such as `obs/camera`, or several parts.

    Raises:
        PieceError: no name, or one of another column.
    """
    paths = tuple(dict.fromkeys(paths_from(piece, columns)))
    for path in paths:
        if path.column != Columns.OBS:
            is_next = path.column == Columns.NEXT_OBS
            raise PieceError(
                f"{piece}.columns",
                expected="'obs', or parts of it such as 'obs/camera'",
                found=repr(str(path)),
                do="leave it out: new_obs is made as obs is" if is_next else f"name parts of {Columns.OBS!r} only",
            )
    return paths


def addresses_in(struct: Any, address: str) -> dict[str, Any]:
    """Return the address of each leaf of a structure that has an address itself, with the leaf.

    Examples:
        >>> addresses_in({"arm": (1, 2), "camera": 3}, "obs")
        {'obs/arm/0': 1, 'obs/arm/1': 2, 'obs/camera': 3}
    """
    if is_leaf(struct):
        return {address: struct}
    parts = struct.items() if isinstance(struct, dict) else enumerate(struct)
    return {name: leaf for key, part in parts for name, leaf in addresses_in(part, f"{address}/{key}").items()}


def _part(struct: Any, key: Any) -> Any:
    """One part of a structure; None if there is none."""
    place = _key_of(struct, key if isinstance(struct, dict) else str(key))
    return None if place is None else struct[place]


def _beside(struct: Any, space: Any, function: Callable[[Any, Any], Any]) -> Any:
    if isinstance(struct, dict):
        return {key: _beside(part, _part(space, key), function) for key, part in struct.items()}
    if isinstance(struct, tuple):
        return tuple(_beside(part, _part(space, i), function) for i, part in enumerate(struct))
    return function(struct, space if is_leaf(space) else None)
