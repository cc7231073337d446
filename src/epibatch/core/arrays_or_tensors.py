"""Operations on rows that are arrays, or tensors of a device, which stay there."""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

import numpy as np

Rows: TypeAlias = Any
"""An array or a tensor; torch is not loaded before a tensor came."""


def is_tensor(rows: Rows) -> bool:
    """True if rows are a tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(rows, torch.Tensor)


def on_device(array: Any, device: Any) -> Rows:
    """Return an array, or a tensor, as a tensor on a device."""
    return sys.modules["torch"].as_tensor(array, device=device)


def beside(array: Any, rows: Rows) -> Rows:
    """Return an array as what rows are: as a tensor on their device, or as it is."""
    return array if isinstance(rows, np.ndarray) else on_device(array, rows.device)


def take(rows: Rows, places: Any) -> Rows:
    """Return copies of the rows at some places.

    Args:
        rows: Shape [R, ...].
        places: int64 array of any shape, or for tensors a tensor too.
    """
    if isinstance(rows, np.ndarray):
        return rows.take(places, 0, mode="clip")
    picked = rows.index_select(0, beside(places, rows).reshape(-1))
    return picked if places.ndim == 1 else picked.reshape(*places.shape, *rows.shape[1:])


def put(rows: Rows, places: Any, values: Any) -> None:
    """Write values to the rows at some places.

    Args:
        rows: Shape [R, ...].
        places: int64 or bool array.
        values: A number, an array or rows.
    """
    if not isinstance(rows, np.ndarray) and not isinstance(values, (int, float)):
        values = beside(values, rows).to(rows.dtype)
    rows[places] = values


def as_type_of(array: Any, rows: Rows) -> Rows:
    """Return an array as what rows are and in their type."""
    return array.astype(rows.dtype) if isinstance(rows, np.ndarray) else rows.new_tensor(array)


def empty_like(rows: Rows, shape: tuple[int, ...]) -> Rows:
    """Return rows of the type of others, whose values are still to come."""
    return np.empty(shape, rows.dtype) if isinstance(rows, np.ndarray) else rows.new_empty(shape)


def zeros_like(rows: Rows, shape: tuple[int, ...]) -> Rows:
    """Return zeros of the type of rows."""
    return np.zeros(shape, rows.dtype) if isinstance(rows, np.ndarray) else rows.new_zeros(shape)


def as_float64(rows: Rows) -> Rows:
    """Return rows as float64."""
    arrays = isinstance(rows, np.ndarray) or not is_tensor(rows)
    return np.asarray(rows, np.float64) if arrays else rows.detach().double()


def as_float32(rows: Rows) -> Rows:
    """Return rows as float32."""
    return rows.astype(np.float32, copy=False) if isinstance(rows, np.ndarray) else rows.float()


def as_bools(rows: Rows) -> Rows:
    """Return rows as bools."""
    arrays = isinstance(rows, np.ndarray) or not is_tensor(rows)
    return np.asarray(rows, np.bool_) if arrays else rows.bool()


def copied(rows: Rows) -> Rows:
    """Return a copy."""
    return rows.copy() if isinstance(rows, np.ndarray) else rows.clone()


def where(mask: Rows, rows: Rows, otherwise: float) -> Rows:
    """Return rows where a mask is True, elsewhere a number."""
    return np.where(mask, rows, otherwise) if isinstance(rows, np.ndarray) else rows.where(mask, otherwise)


def are_finite(rows: Rows) -> bool:
    """True if all numbers are finite."""
    finite = np.isfinite(rows) if isinstance(rows, np.ndarray) else rows.isfinite()
    return bool(finite.all())
