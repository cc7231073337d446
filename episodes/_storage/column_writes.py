"""Overwriting rows of a column: everything is checked before anything is stored."""

from __future__ import annotations

from typing import Any

import numpy as np

from epibatch.core.errors import EpisodeIndexError
from epibatch.core.structs import Form, flatten, flatten_like, unflatten

from .arrays import (
    Leaf,
    as_value,
    copied,
    fits,
    leaf_from_rows,
    object_leaf,
    store,
    unaliased,
)
from .growing_column import GrowingColumn
from .indexing import Positions

__all__ = ["stacked_rows", "write_row", "write_rows"]


_OTHER_SHAPE = "rows of another nesting, shape or kind in the place of committed ones"


def stacked_rows(data: Any) -> tuple[Form, list[Leaf] | None, int]:
    """Bring rows into the form of a column.

    Args:
        data: A list of rows, or stacked arrays of shape [T, ...].

    Returns:
        The rows' nesting, one array per leaf (stacked arrays are not copied; None without rows),
        and how many rows there are.

    Raises:
        EpisodeIndexError: stacked arrays without a time axis, or of unequal length.
        ColumnError: rows that differ in nesting.
    """
    if isinstance(data, list):
        if not data:
            return None, None, 0
        _, form = flatten(data[0])
        columns = zip(*(flatten_like(form, row) for row in data))
        return form, [leaf_from_rows(column) for column in columns], len(data)
    values, form = flatten(data)
    leaves = [as_value(value) for value in values]
    lengths = sorted({len(leaf) if leaf.ndim else -1 for leaf in leaves})
    if len(lengths) != 1 or lengths[0] < 0:
        raise EpisodeIndexError(
            "stacked rows",
            expected="arrays with a time axis of one length",
            found=f"shapes {[leaf.shape for leaf in leaves]}",
            do="pass a list of rows, or arrays of shape [T, ...]",
        )
    return form, leaves, lengths[0]


def write_row(column: GrowingColumn, position: int, row: Any) -> None:
    """Overwrite one row that lies in the column's arrays.

    Raises:
        ColumnError: another nesting than the column's; nothing changed.
        EpisodeStateError: another shape than the column's while it is recorded; nothing changed.
    """
    values = flatten_like(column._form, row)
    dtypes = [fits(leaf, value) for leaf, value in zip(column._leaves or [], values)]
    if column._source is not None and _makes_objects(column, dtypes):
        column.own(_OTHER_SHAPE)
    for i, value in enumerate(unaliased(values)):
        store(column._promote(i, dtypes[i]), position, value)


def write_rows(column: GrowingColumn, positions: Positions, new_data: Any) -> None:
    """Overwrite rows.

    Types are promoted and never cast down. Only a column that is overwritten as a whole, with rows
    of another nesting or shape, is made anew; so is a provisional row that is addressed alone.

    Args:
        column: Whose rows.
        positions: Absolute positions that exist.
        new_data: As many rows: a list of rows, or stacked arrays.

    Raises:
        EpisodeIndexError: another number of rows; nothing changed.
        ColumnError: another nesting than the column's; nothing changed.
        EpisodeStateError: another nesting or shape than the column's while it is recorded; nothing changed.
    """
    form, leaves, count = stacked_rows(new_data)
    if count != len(positions):
        raise EpisodeIndexError(
            "writing rows", expected=f"{len(positions)} rows", found=f"{count}", do="pass one row per index"
        )
    if leaves is None or not count:
        return
    total = column.len_incl_lookback()
    if count == 1 and positions[0] == total - 1 and column.provisional:
        column._write_row(total - 1, _row_of(form, leaves, 0))
        return
    where = np.asarray(positions, np.int64)
    anew = count >= total and not _like_before(column, form, leaves) and len(np.unique(where)) == total
    if column._source is not None and (anew or _would_make_objects(column, form, leaves)):
        column.own(_OTHER_SHAPE)
    if anew:
        order = np.empty(total, np.int64)
        order[where] = np.arange(count)
        column.replace(form, [copied(leaf[order]) for leaf in leaves], total)
        return
    raw = np.flatnonzero(where == column._stop)
    if not len(raw):
        _write_stored(column, positions, unflatten(form, leaves))
        return
    rest = np.flatnonzero(where != column._stop)
    if len(rest):
        _write_stored(column, where[rest], unflatten(form, [leaf[rest] for leaf in leaves]))
    column._write_row(column._stop, _row_of(form, leaves, int(raw[-1])))


def _row_of(form: Form, leaves: list[Leaf], i: int) -> Any:
    return unflatten(form, [leaf[i] for leaf in leaves])


def _like_before(column: GrowingColumn, form: Form, leaves: list[Leaf]) -> bool:
    shapes = [leaf.shape[1:] for leaf in column._leaves or []]
    return form == column._form and shapes == [leaf.shape[1:] for leaf in leaves]


def _makes_objects(column: GrowingColumn, dtypes: list[np.dtype[Any] | None]) -> bool:
    """Whether a write would turn an array of a block, which other episodes share, into one of objects."""
    leaves = column._leaves or []
    return any(dtype is None or dtype.kind == "O" != leaf.dtype.kind for leaf, dtype in zip(leaves, dtypes))


def _would_make_objects(column: GrowingColumn, form: Form, rows: list[Leaf]) -> bool:
    values = flatten_like(column._form, unflatten(form, rows))
    return _makes_objects(column, [fits(leaf, v, v.shape[1:]) for leaf, v in zip(column._leaves or [], values)])


def _write_stored(column: GrowingColumn, positions: Positions, rows: Any) -> None:
    values = flatten_like(column._form, rows)
    dtypes = [fits(leaf, value, value.shape[1:]) for leaf, value in zip(column._leaves or [], values)]
    where: Any = positions
    if isinstance(positions, range):
        where = slice(positions[0], positions[-1] + 1) if positions.step == 1 else np.asarray(positions, np.int64)
    for i, value in enumerate(unaliased(values)):
        leaf = column._promote(i, dtypes[i])
        leaf[where] = copied(object_leaf(value)) if leaf.dtype == object else value
