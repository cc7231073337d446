"""Conversion of one column of an episode to the form of the other library."""

from __future__ import annotations

import copy as copying
from typing import Any

import numpy as np

from epibatch.core.structs import flatten, unflatten
from epibatch.episodes._storage.arrays import Leaf, copied, object_leaf, owned, stacked_rows
from epibatch.episodes.infinite_lookback_buffer import NOTHING, InfiniteLookbackBuffer

__all__ = ["our_column", "rows_as_list", "their_buffer", "their_data", "without_lists"]


def their_data(column: InfiniteLookbackBuffer, *, numpy: bool = True, copy: bool = False) -> Any:
    """Return all rows of a column in the form of RLlib's buffer.

    Args:
        column: The column.
        numpy: True for stacked arrays, views of the column's; otherwise a list of rows. A column without
            rows, or with a newest row that does not fit the others yet, is always a list.
        copy: True to copy arrays that would share memory.
    """
    if not numpy or column.raw_row() is not NOTHING:
        rows = rows_as_list(column)
        return [owned(row) for row in rows] if copy else rows
    leaves = column.rows(-column.lookback, column.len_incl_lookback() - column.lookback)
    if not leaves:
        return []
    return unflatten(column.form, [copied(leaf) for leaf in leaves] if copy else leaves)


def rows_as_list(column: InfiniteLookbackBuffer) -> list[Any]:
    """Return the rows of a column as a list: scalars of NumPy, and views of arrays."""
    raw = column.raw_row()
    count = column.len_incl_lookback() - (raw is not NOTHING)
    leaves = column.rows(-column.lookback, count - column.lookback)
    rows: list[Any]
    if column.form is None:
        rows = list(leaves[0]) if leaves else []
    else:
        rows = [unflatten(column.form, list(row)) for row in zip(*leaves)]
    return rows if raw is NOTHING else [*rows, raw]


def their_buffer(make: Any, column: InfiniteLookbackBuffer, *, numpy: bool, copy: bool) -> Any:
    """Return RLlib's buffer with the rows, the lookback and the space of a column.

    Args:
        make: The class of the buffer.
        column: The column.
        numpy: True to stack its rows.
        copy: True to copy arrays that would share memory.
    """
    buffer = make(their_data(column, numpy=numpy, copy=copy), 0, column.space)
    buffer.lookback = column.lookback  # its constructor takes a dict's number of keys for the number of rows
    return buffer


def our_column(buffer: Any, *, newest: bool = False, copy: bool = False, rows: int | None = None) -> Any:
    """Return a column with the rows, the lookback and the space of RLlib's buffer.

    Args:
        buffer: RLlib's buffer.
        newest: True if its last row is an observation that may still be replaced by one of another kind.
        copy: True to copy arrays that would share memory.
        rows: Number of the first rows to take; default: all.

    Raises:
        ColumnError: rows that are nested differently.
    """
    column = InfiniteLookbackBuffer(None, 0, buffer.space)
    if isinstance(buffer.data, list) and not buffer.finalized:
        given = buffer.data[:rows]
        form, leaves, count = stacked_rows(given[:-1] if newest else given)
        if leaves is not None:
            column.replace(form, leaves, count)
        if newest and given:
            column.stage(given[-1])
    else:
        values, form = flatten(without_lists(buffer.data))
        leaves = [_leaf(value, copy)[:rows] for value in values]
        if leaves:
            column.replace(form, leaves, len(leaves[0]))
    column.provisional = newest
    column.lookback = min(buffer.lookback, column.len_incl_lookback())
    return column


def without_lists(data: Any) -> Any:
    """Return stacked rows with tuples instead of lists in their nesting, as RLlib nests lists too."""
    if isinstance(data, dict):
        return {key: without_lists(value) for key, value in data.items()}
    return tuple(map(without_lists, data)) if isinstance(data, (tuple, list)) else data


def _leaf(value: Any, copy: bool) -> Leaf:
    """Return a stacked array as the leaf of a column: the array itself if it is writable and holds no text."""
    array = np.asarray(value)
    if array.dtype.kind in "US":
        return object_leaf(array.tolist())
    if not copy and array.flags.writeable:
        return array
    return copying.deepcopy(array) if array.dtype == object else np.array(array)
