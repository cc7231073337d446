"""Addresses of columns: `rewards`, or one part of a nested one, as in `obs/camera`."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
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
        return self.replaced(struct, lambda found: map_struct(function, found))

    def replaced(self, struct: Any, function: Callable[[Any], Any]) -> Any:
        """A structure with what `function` makes of the whole part at this path in its place.

        Raises:
            ColumnError: there is nothing at the path.
        """
        return self._changed(struct, self.keys, function)

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


class Move(NamedTuple):
    """The address of rows that a piece takes, and of what it makes of them: the same, or a new one."""

    source: ColumnPath
    target: ColumnPath


def moves_from(piece: str, sources: tuple[ColumnPath, ...], to: Any) -> tuple[Move, ...]:
    """Return what a piece's `columns` and `to` say; without `to` results take the place of what they are made of.

    Args:
        piece: Name of the piece, for messages.
        sources: The addresses in `columns`.
        to: A name, or as many as there are sources; None: none.

    Raises:
        PieceError: other names, or observations that are made of another column.
    """
    if to is None:
        return tuple(Move(path, path) for path in sources)
    targets = paths_from(piece, to, "to")
    if len({*targets, *sources}) != 2 * len(sources) or len(targets) != len(sources):
        raise PieceError(
            f"{piece}.to",
            expected=f"a new name for each of {', '.join(map(str, sources))}, all different",
            found=repr(to),
            do="write as many names, in the order of columns",
        )
    for move in map(Move, sources, targets):
        if move.target.column == Columns.OBS != move.source.column:
            raise PieceError(
                f"{piece}.to",
                expected="observations made of parts of 'obs' alone, since their space follows from these",
                found=f"{str(move.target)!r}, made of {str(move.source)!r}",
                do="let the result become a column of its own",
            )
    return tuple(map(Move, sources, targets))


def rewriting_moves(piece: str, sources: tuple[ColumnPath, ...], to: Any) -> tuple[Move, ...]:
    """As `moves_from`, for a piece that writes observations back into the episodes, which have no other columns.

    Raises:
        PieceError: what `moves_from` refuses, or a column of its own.
    """
    moves = moves_from(piece, sources, to)
    column = next((str(move.target) for move in moves if move.target.column != Columns.OBS), None)
    if column is not None:
        raise PieceError(
            f"{piece}.to",
            expected="parts of 'obs', which the piece writes into the episodes",
            found=repr(column),
            do=f'write to="obs/{column}"',
        )
    return moves


def moved(moves: Iterable[Move], before: Any, after: Any) -> Any:
    """Return a structure with what a piece has made of some parts at the places that it is to have.

    Args:
        moves: Whose results are where.
        before: The column of the results before the piece.
        after: The column of the sources, with results in the place of what they are made of.

    Raises:
        ColumnError: there is something at such a place already.
    """
    for source, target in moves:
        if source == target:
            return after
        before = target.put(before, source.part(after))
    return before


def space_after(moves: Iterable[Move], space: gym.Space[Any], after: gym.Space[Any] | None) -> gym.Space[Any] | None:
    """Return the space of what `moved` gives, of the spaces of both; None if that after it is not known."""
    return None if after is None else space_of_struct(moved(moves, *map(get_base_struct_from_space, (space, after))))


def added_columns(moves: Iterable[Move]) -> tuple[str, ...]:
    """Return the columns that no earlier piece may have written: those of results that are made of other columns."""
    return tuple(dict.fromkeys(move.target.column for move in moves if move.target.column != move.source.column))


def refuse_taken(piece: str, moves: Iterable[Move], columns: Container[str]) -> None:
    """Refuse results of a name that the batch has, from a piece that does not declare what it writes, say.

    Raises:
        ColumnError: there is such a name.
    """
    taken = next((column for column in added_columns(moves) if column in columns), None)
    if taken is not None:
        found = f"{taken!r}, which the batch has already"
        raise ColumnError(f"{piece}.to", expected="a new name", found=found, do="choose another name")


def paths_from(piece: str, columns: Any, parameter: str = "columns") -> tuple[ColumnPath, ...]:
    """The addresses in what a parameter of a piece says.

    Args:
        piece: Name of the piece, for messages.
        columns: A name, or several. `infos/speed` is a column of numbers.
        parameter: Name of the parameter, for messages.

    Raises:
        PieceError: no name, or something else.
    """
    names = (columns,) if isinstance(columns, str) else columns
    if not isinstance(names, (tuple, list)) or not names or not all(isinstance(name, str) and name for name in names):
        raise PieceError(
            f"{piece}.{parameter}",
            expected="the name of a column, or several",
            found=repr(columns),
            do=f'write {parameter} = "rewards", or {parameter} = ("obs", "new_obs")',
        )
    return tuple(map(_path_of, names))


def _path_of(name: str) -> ColumnPath:
    column, *keys = name.split("/")
    return ColumnPath(name) if column == Columns.INFOS and keys else ColumnPath(column, tuple(keys))


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
