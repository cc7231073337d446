"""Columns of groups of chunks: rows that are one array already, and the batch that they make up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from epibatch.core.arrays_or_tensors import take
from epibatch.core.padding import SequenceLayout, pad
from epibatch.core.structs import flatten, map_struct

from ...episodes.rows import LazyRows


class EpisodeColumn:
    """Rows of all chunks of a group, one chunk after the other.

    It holds the rows of `{key: [items]}` of the plain layout without splitting them by key.

    Args:
        data: Arrays of shape [sum of counts, ...] in the column's nesting, or a list of Python objects, or
            the chunks' own rows as `LazyRows`, which are joined when `data` is read.
        counts: Rows of each chunk (int64, [number of chunks]); None: one row each.
        item_per_row: True: plain pieces get one item per row. False: one item per chunk.

    Attributes:
        data: Arrays of shape [sum of counts, ...] in the column's nesting, or a list of Python objects.
        parts: The chunks' own rows, as long as `data` was not read.
        holds_objects: Whether the rows are a list of Python objects, which no piece turns into arrays.
    """

    __slots__ = ("counts", "data", "holds_objects", "item_per_row", "parts")

    data: Any
    parts: LazyRows | None

    def __init__(
        self, data: Any, counts: np.ndarray[Any, np.dtype[np.int64]] | None = None, *, item_per_row: bool = False
    ) -> None:
        if type(data) is np.ndarray or not isinstance(data, LazyRows):  # an ABC takes its time
            self.parts, self.data = None, data
        else:
            self.parts = data
        self.counts, self.holds_objects = counts, isinstance(data, list)
        self.item_per_row = item_per_row or counts is None

    def __getattr__(self, name: str) -> Any:
        if name != "data" or self.parts is None:
            raise AttributeError(name)
        data, self.parts = self.parts.joined(), None
        self.data, self.holds_objects = data, isinstance(data, list)
        return data

    def with_data(self, data: Any) -> EpisodeColumn:
        """Return other rows of the same steps."""
        return EpisodeColumn(data, self.counts, item_per_row=self.item_per_row)

    def kept(
        self, rows: np.ndarray[Any, np.dtype[np.bool_]], counts: np.ndarray[Any, np.dtype[np.int64]]
    ) -> EpisodeColumn:
        """Return the rows that a mask keeps.

        Args:
            rows: The mask: bool [rows].
            counts: Rows of each chunk that are kept: int64 [chunks].
        """
        data = self.data
        if isinstance(data, list):
            return EpisodeColumn([row for row, keep in zip(data, rows.tolist()) if keep], counts)
        at = np.flatnonzero(rows)
        return EpisodeColumn(map_struct(lambda leaf: take(leaf, at), data), counts, item_per_row=self.item_per_row)

    def picked(self, chunks: np.ndarray[Any, np.dtype[np.int64]]) -> EpisodeColumn:
        """Return the rows of some chunks, in another order.

        Args:
            chunks: Their positions: int64.
        """
        data, counts, rows = self.data, self.counts, chunks
        if counts is not None:
            starts, counts = np.cumsum(counts) - counts, counts[chunks]
            rows = np.arange(counts.sum()) + np.repeat(starts[chunks] - np.cumsum(counts) + counts, counts)
        selection = [data[i] for i in rows] if isinstance(data, list) else map_struct(lambda leaf: leaf[rows], data)
        return EpisodeColumn(selection, counts, item_per_row=self.item_per_row)

    def padded(self, layout: SequenceLayout) -> Any:
        """The arrays of shape [B, T, ...] in a padded layout, zeros where no row is.

        Args:
            layout: Of chunks with as many rows as these.
        """
        if self.parts is not None:
            return self.parts.padded(layout)
        return map_struct(lambda leaf: pad(leaf, layout), self.data)

    def __len__(self) -> int:
        return len(self.data if isinstance(self.data, list) else flatten(self.data)[0][0])

    def __repr__(self) -> str:
        if isinstance(self.data, list):
            return f"EpisodeColumn({len(self)} objects)"
        shapes = [(leaf.shape, str(leaf.dtype)) for leaf in flatten(self.data)[0]]
        return f"EpisodeColumn({shapes})"


class Batch:
    """Columns by group of chunks, and entries that belong to no group.

    Args:
        groups: Group -> columns of its chunks' rows.
        loose: Other entries that a piece added.
    """

    __slots__ = ("groups", "loose")

    def __init__(self, groups: dict[Any, dict[str, Any]], loose: dict[Any, Any] | None = None) -> None:
        self.groups = groups
        self.loose = loose or {}

    def holds_items(self) -> bool:
        """True if rows are items of chunks still, and no batched arrays."""
        return any(EpisodeColumn in map(type, columns.values()) for columns in self.groups.values())

    def keep(self, rows: Mapping[Any, np.ndarray[Any, np.dtype[np.int64]]]) -> None:
        """Leave out rows of columns with one row per chunk.

        Args:
            rows: Per group the positions that stay; groups that are missing lose everything.
        """
        self.groups = {
            key: {
                name: column.picked(rows[key]) if isinstance(column, EpisodeColumn) else column
                for name, column in columns.items()
            }
            for key, columns in self.groups.items()
            if key in rows
        }
