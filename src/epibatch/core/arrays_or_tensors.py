"""Operations on rows that are arrays, or tensors of a device, which stay there."""

from __future__ import annotations

import sys
from functools import reduce
from typing import Any, TypeAlias

import numpy as np

Rows: TypeAlias = Any
"""An array or a tensor; torch is not loaded before a tensor came."""
_KEPT_AS = {"float64": "float32", "uint16": "int32", "uint32": "int64", "uint64": "int64"}
"""Types of tensors -> those that replay keeps in their place; torch does not promote unsigned integers."""
_BITS = {"torch.uint16": "int16", "torch.uint32": "int32", "torch.uint64": "int64"}
"""Types of tensors whose rows torch cannot write -> types of the same size."""


def is_tensor(rows: Rows) -> bool:
    """True if rows are a tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(rows, torch.Tensor)


def on_device(array: Any, device: Any) -> Rows:
    """Return an array, or a tensor, as a tensor on a device."""
    return sys.modules["torch"].as_tensor(array, device=device)


def as_tensor(rows: Rows, device: Any) -> Rows:
    """Return rows as a tensor on a device; float64 becomes float32, and uint16 and wider become int32 and int64."""
    torch = sys.modules["torch"]
    if isinstance(rows, np.ndarray):
        rows = np.require(rows, np.float32 if rows.dtype.char in "dg" else rows.dtype.newbyteorder("="), ["C", "W"])
    tensor = torch.as_tensor(rows)
    name = str(tensor.dtype).removeprefix("torch.")
    return tensor.to(device, getattr(torch, _KEPT_AS.get(name, name)))


def beside(array: Any, rows: Rows) -> Rows:
    """Return an array as what rows are: as a tensor on their device, or as it is."""
    return array if isinstance(rows, np.ndarray) else on_device(array, rows.device)


def take(rows: Rows, places: Any) -> Rows:
    """Return copies of the rows at some places, in page-locked memory if the rows are.

    Args:
        rows: Shape [R, ...].
        places: int64 array of any shape, or for tensors a tensor too.
    """
    if isinstance(rows, np.ndarray):
        return rows.take(places, 0, mode="clip")
    at = beside(places, rows).reshape(-1)
    out = rows.new_empty((len(at), *rows.shape[1:]), pin_memory=True) if rows.is_pinned() else None
    picked = sys.modules["torch"].index_select(rows, 0, at, out=out)
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
        if str(rows.dtype) in _BITS:
            bits = getattr(sys.modules["torch"], _BITS[str(rows.dtype)])
            rows, values = rows.view(bits), values.view(bits)
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


def common_type(*rows: Rows) -> Any:
    """Return the type that holds the values of arrays, or of tensors."""
    if isinstance(rows[0], np.ndarray):
        return np.result_type(*rows)
    return reduce(sys.modules["torch"].promote_types, [part.dtype for part in rows])


def as_floats(rows: Rows) -> Rows:
    """Return rows as floats of 32 bits or more."""
    if isinstance(rows, np.ndarray):
        return rows.astype(np.result_type(rows, np.float32))
    torch = sys.modules["torch"]
    return rows.to(torch.promote_types(rows.dtype, torch.float32))


def new_zeros(shape: tuple[int, ...], dtype: Any, device: Any, pin_memory: bool) -> Rows:
    """Return a tensor of zeros on a device, or in page-locked memory, if there is a GPU."""
    torch = sys.modules["torch"]
    with torch.inference_mode(False):  # a loop may act in this mode, and learn from the tensors outside of it
        return torch.zeros(shape, dtype=dtype, device=device, pin_memory=pin_memory and torch.cuda.is_available())


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
