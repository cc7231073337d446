"""Columns of groups of chunks: rows that are one array already, and the batch that they make up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

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
        single: Whether a plain piece sees each row as an item of its own; otherwise it sees one
            item that holds all of a chunk's rows.
    """

    __slots__ = ("_data", "counts", "single")

    def __init__(
        self,
        data: Any,
        counts: np.ndarray[Any, np.dtype[np.int64]] | None = None,
        *,
        single: bool = False,
    ) -> None:
        self._data = data
        self.counts = counts
        self.single = single or counts is None

    @property
    def data(self) -> Any:
        """Arrays of shape [sum of counts, ...] in the column's nesting, or a list of Python objects."""
        data = self._data
        if isinstance(data, LazyRows):
            data = self._data = data.joined()
        return data

    @data.setter
    def data(self, data: Any) -> None:
        self._data = data

    @property
    def parts(self) -> LazyRows | None:
        """The chunks' own rows, as long as `data` was not read."""
        return self._data if isinstance(self._data, LazyRows) else None

    def materialise(self) -> None:
        """Copy the rows now if they are not copied yet, because a piece may write to the episodes next."""
        if isinstance(self._data, LazyRows):
            self._data = self._data.joined()

    def batched(self, *, as_float32: bool) -> Any:
        """The same as `data`, for a batch.

        Args:
            as_float32: Join float64 as float32.
        """
        data = self._data
        if not isinstance(data, LazyRows):
            return data
        return data.joined(as_float32=True) if as_float32 else self.data

    @property
    def holds_objects(self) -> bool:
        """True if the rows are a list of Python objects, which no piece turns into arrays."""
        return isinstance(self._data, list)

    def padded(self, layout: SequenceLayout) -> Any:
        """The arrays of shape [B, T, ...] in a padded layout, zeros where no row is.

        Args:
            layout: Of chunks with as many rows as these.
        """
        if isinstance(self._data, LazyRows):
            return self._data.padded(layout)
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
            key: {name: _subset(column, rows[key]) for name, column in columns.items()}
            for key, columns in self.groups.items()
            if key in rows
        }


def _subset(column: Any, rows: np.ndarray[Any, np.dtype[np.int64]]) -> Any:
    if not isinstance(column, EpisodeColumn):
        return column
    data = column.data
    selection = [data[i] for i in rows] if isinstance(data, list) else map_struct(lambda leaf: leaf[rows], data)
    return EpisodeColumn(selection, None if column.counts is None else column.counts[rows], single=column.single)
