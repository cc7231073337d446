"""The newest rows of many columns as one array per leaf."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from epibatch.core.structs import unflatten

from ..infinite_lookback_buffer import NOTHING, InfiniteLookbackBuffer
from .arrays import Leaf

__all__ = ["newest_rows"]

_ARRAYS = {np.ndarray}


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
    form = columns[0]._form
    if form is None:
        try:  # each column is looked at once: many are more than the caches hold
            rows = [own._flat[own._stop - 1] if own._stop else None for own in columns]  # type: ignore[index]
            return _stacked(rows)
        except TypeError:  # one of them is nested, or has no array of its own that holds all its rows
            return None
    stops = [column._stop for column in columns]
    if 0 in stops:
        return None
    if [column._form for column in columns].count(form) < len(columns):
        return None
    for column in columns:
        if column._source is not None or column._pending is not NOTHING:
            return None
    leaves = [column._leaves or [] for column in columns]
    each = range(len(leaves[0]))
    stacked = [_stacked([own[i][stop - 1] for own, stop in zip(leaves, stops)]) for i in each]
    return None if any(leaf is None for leaf in stacked) else unflatten(form, stacked)


def _stacked(rows: list[Any]) -> Leaf | None:
    """Rows of one leaf as one array; None if they are not of one shape, or no numbers."""
    kinds = set(map(type, rows))
    if kinds == _ARRAYS:
        first = rows[0]
        try:
            if first.dtype.kind in "biufc" and len(set(map(len, rows))) == 1:
                return np.concatenate(rows).reshape(len(rows), *first.shape)
        except (TypeError, ValueError):  # no dimension at all, another number of them, or a later one that differs
            pass
        return None
    return np.array(rows) if all(issubclass(kind, (np.number, np.bool_)) for kind in kinds) else None
