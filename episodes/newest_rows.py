"""The newest rows of many columns as one array per leaf."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from epibatch.core.structs import unflatten

from .buffer_source import NOTHING
from .infinite_lookback_buffer import InfiniteLookbackBuffer
from .leaves import Leaf

__all__ = ["newest_rows"]


def newest_rows(columns: Sequence[InfiniteLookbackBuffer]) -> Any:
    """Stack what `last()` gives for each column, without asking them one by one.

    Args:
        columns: At least one.

    Returns:
        Arrays of shape [number of columns, ...], copies, nested like the rows; None if that cannot be had this
        way: a column has no row, or does not own it, or holds it apart from the others; or the rows differ in
        nesting or shape, or are no numbers.

    Example:
        >>> newest_rows([InfiniteLookbackBuffer([1.0, 2.0]), InfiniteLookbackBuffer([3.0])]).tolist()
        [2.0, 3.0]
    """
    stops = [column._stop for column in columns]
    if 0 in stops:
        return None
    try:
        return _stacked([column._flat[stop - 1] for column, stop in zip(columns, stops)])  # type: ignore[index]
    except TypeError:  # one of them is nested, or does not own its rows
        return _nested(columns, stops)


def _nested(columns: Sequence[InfiniteLookbackBuffer], stops: list[int]) -> Any:
    first, count = columns[0]._form, len(columns)
    if any(column._pending is not NOTHING for column in columns):
        return None
    if [column._source for column in columns].count(None) != count:
        return None
    if [column._form for column in columns].count(first) != count:
        return None
    leaves = [column._leaves or [] for column in columns]
    each = range(len(leaves[0]))
    stacked = [_stacked([own[i][stop - 1] for own, stop in zip(leaves, stops)]) for i in each]
    return None if any(leaf is None for leaf in stacked) else unflatten(first, stacked)


def _stacked(rows: list[Any]) -> Leaf | None:
    """Rows of one leaf as one array; None if they are not of one shape, or no numbers."""
    kinds = set(map(type, rows))
    if all(issubclass(kind, (np.number, np.bool_)) for kind in kinds):
        return np.array(rows)
    shape = rows[0].shape if kinds == {np.ndarray} else ()
    if not shape or rows[0].dtype.kind not in "biufc":
        return None
    try:
        if len(set(map(len, rows))) == 1:
            return np.concatenate(rows).reshape(len(rows), *shape)
    except (TypeError, ValueError):  # no dimension at all, another number of them, or a later one that differs
        pass
    return None
