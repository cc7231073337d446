"""Operations on rows that are arrays, or tensors of a device, which stay there."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

Rows: TypeAlias = Any
"""An array or a tensor; torch is not loaded before a tensor came."""


def is_tensor(rows: Rows) -> bool:
    """True if rows are a tensor."""
    if isinstance(rows, np.ndarray):
        return False
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(rows, torch.Tensor)


def beside(array: Any, rows: Rows) -> Rows:
    """Return an array as what rows are: as a tensor on their device, or as it is."""
    if not is_tensor(rows):
        return array
    return sys.modules["torch"].from_numpy(np.ascontiguousarray(array)).to(rows.device)


def take(rows: Rows, places: Any) -> Rows:
    """Return copies of the rows at some places.

    Args:
        rows: Shape [R, ...].
        places: int64 array of any shape.
    """
    if not is_tensor(rows):
        return rows.take(places, 0, mode="clip")
    picked = rows.index_select(0, beside(places.reshape(-1), rows))
    return picked if places.ndim == 1 else picked.reshape(*places.shape, *rows.shape[1:])


def zeros_like(rows: Rows, shape: tuple[int, ...]) -> Rows:
    """Return zeros of the type of rows."""
    return rows.new_zeros(shape) if is_tensor(rows) else np.zeros(shape, rows.dtype)


def as_float64(rows: Rows) -> Rows:
    """Return rows as float64."""
    return rows.detach().double() if is_tensor(rows) else np.asarray(rows, np.float64)


def as_bools(rows: Rows) -> Rows:
    """Return rows as bools."""
    return rows.bool() if is_tensor(rows) else np.asarray(rows, np.bool_)


def copied(rows: Rows) -> Rows:
    """Return a copy."""
    return rows.clone() if is_tensor(rows) else rows.copy()


def concatenate(parts: Sequence[Rows]) -> Rows:
    """Return rows one after the other, of the type that holds all."""
    return sys.modules["torch"].cat(list(parts)) if is_tensor(parts[0]) else np.concatenate(parts)


def where(mask: Rows, rows: Rows, otherwise: float) -> Rows:
    """Return rows where a mask is True, elsewhere a number."""
    return rows.where(mask, otherwise) if is_tensor(rows) else np.where(mask, rows, otherwise)


def are_finite(rows: Rows) -> bool:
    """True if all numbers are finite."""
    finite = sys.modules["torch"].isfinite(rows) if is_tensor(rows) else np.isfinite(rows)
    return bool(finite.all())


def hold_numbers(rows: Rows) -> bool:
    """True if rows are numbers or flags, and no objects or text."""
    return not isinstance(rows, np.ndarray) or rows.dtype.kind in "biufc"
