"""Some columns of a batch as one structure of arrays, in which parts are moved about, and the way back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from epibatch.core.columns import Columns, nearest_column
from epibatch.core.errors import ColumnError
from epibatch.core.spaces import get_base_struct_from_space, space_of_struct
from epibatch.core.structs import flatten

from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from .._engine.gather import column_or_gather
from .._engine.sequences import leading_axes
from ..authoring.column_paths import ColumnPath
from ..authoring.fields import ParameterPiece
from ..columnar_piece import Piece

MARKS = (Columns.LOSS_MASK, Columns.SEQ_LENS, Columns.RESETS, Columns.RESET_STATES)
"""Columns that say which rows of a batch are real, and where states start again."""
_SAID = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS, Columns.LOSS_MASK)


def known_names(names: Iterable[str]) -> tuple[str, ...]:
    """Of columns' names those that some built-in piece says it writes, so that pipelines can check for them."""
    return tuple(name for name in dict.fromkeys(names) if name in _SAID)


def in_tree(path: ColumnPath) -> ColumnPath:
    """The same address in a structure `{column: {part: ...}}`."""
    return ColumnPath("", (path.column, *path.keys))


def column_named(batch: dict[str, Any], name: str, piece: str) -> Any:
    """A column that the batch has.

    Args:
        batch: Columns.
        name: The column.
        piece: Name of the piece, for messages.

    Raises:
        ColumnError: it has no such column.
    """
    if name not in batch:
        names = [str(column) for column in batch]
        advice = f"put {piece} after the piece that makes the column"
        do = f"{nearest_column(name, names)}; or {advice}" if names else advice
        found = f"columns {sorted(names)}" if names else "a batch without columns"
        raise ColumnError(piece, expected=f"a column {name!r}", found=found, do=do)
    return batch[name]


class PieceOfColumns(ParameterPiece, Piece):
    """A piece that moves, joins or leaves out columns, and parts of nested ones, by their addresses."""

    pipelines: ClassVar[tuple[str, ...]] = ("env_to_module", "learner")
    input_layouts: ClassVar[tuple[str, ...]] = ("episodes", "arrays", "tensors")
    needs_episodes: ClassVar[bool] = True


class OpenColumns:
    """Columns of a batch, opened.

    Args:
        batch: Columns.
        call: The running call.
        paths: Addresses of the columns to open. Parts of columns that the batch lacks are read from the episodes.
        piece: Name of the piece, for messages.
        pull: Whether whole columns may come from the episodes, too.

    Attributes:
        tree: `{column: structure of arrays, rows first}`.
        leading: Axes before those of a row: 1, or 2 in sequences `[B, T, ...]`.

    Raises:
        ColumnError: a column is missing, or columns have rows of other steps.
    """

    def __init__(
        self, batch: dict[str, Any], group: ChunkGroup, paths: Iterable[ColumnPath], piece: str, *, pull: bool = False
    ) -> None:
        self._batch, self._call, self._piece = batch, group, piece
        self._columns: dict[str, Any] = {}
        for path in paths:
            name = path.column
            if name not in self._columns:
                from_episodes = bool(path.keys) or pull
                column = (
                    column_or_gather(batch, group, name, piece) if from_episodes else column_named(batch, name, piece)
                )
                self._columns[name] = column
        items = self._columns.items()
        self.tree = {name: column.data if isinstance(column, EpisodeColumn) else column for name, column in items}
        self._first = next(iter(self._columns))
        self._like = self._columns[self._first]
        self.leading = leading_axes(group, self._first, self._like)

    def check_rows(self, *, joined: bool = True) -> None:
        """Make sure that all have rows of the same steps, as far as their layout says.

        Args:
            joined: Whether rows of several columns are brought together, so that either all have a time axis or none.

        Raises:
            ColumnError: they do not.
        """
        for name, column in self._columns.items():
            mixed = joined and self._is_per_sequence(name) != self._is_per_sequence(self._first)
            if mixed or not _alike(self._like, column):
                raise ColumnError(
                    self._piece,
                    expected="columns with rows of the same steps, in one layout",
                    found=f"{self._first!r} and {name!r}, whose rows are of others",
                    do="put them into the batch by the same kind of piece, before it",
                )

    def _is_per_sequence(self, name: str) -> bool:
        return self._call.stateful and self._call.is_per_sequence(name)

    def batch_with(self, tree: dict[str, Any]) -> dict[str, Any]:
        """The batch with other columns in the place of those that were opened.

        Raises:
            ColumnError: a column of which nothing is left.
        """
        out = {name: column for name, column in self._batch.items() if name not in self._columns}
        for name, data in tree.items():
            if isinstance(data, (dict, tuple)) and not flatten(data)[0]:
                do = f"name {name!r} itself, after the piece that makes it; or keep a part of it"
                raise ColumnError(self._piece, expected=f"a part of {name!r} that stays", found="none", do=do)
            source = self._columns.get(name, self._like)
            if name in self._columns and data is self.tree[name]:
                if name in self._batch:
                    out[name] = source
            else:
                wrapped = isinstance(source, EpisodeColumn)
                out[name] = source.with_data(data) if wrapped else data
                if self._is_per_sequence(name if name in self._columns else self._first):
                    self._call.has_per_sequence(name)
        return out


def _alike(left: Any, right: Any) -> bool:
    if not (isinstance(left, EpisodeColumn) and isinstance(right, EpisodeColumn)):
        return isinstance(left, EpisodeColumn) == isinstance(right, EpisodeColumn)
    if left.counts is None or right.counts is None:
        return left.counts is right.counts
    return bool(np.array_equal(left.counts, right.counts))


def moved_space(space: gym.Space[Any], move: Any) -> gym.Space[Any]:
    """Return the observation space after a piece that moves parts of columns.

    Args:
        space: The space before it.
        move: Function of `{"obs": structure of spaces}` that gives such a structure; without "obs" nothing changes.
    """
    struct = get_base_struct_from_space(space)
    moved = move({Columns.OBS: struct})
    return space if moved.get(Columns.OBS, struct) is struct else space_of_struct(moved[Columns.OBS])
