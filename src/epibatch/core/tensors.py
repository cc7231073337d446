"""NumPy arrays to torch tensors and back, over nested structures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from epibatch.core.errors import ColumnError
from epibatch.core.structs import tuple_like

__all__ = ["FLOAT_MAX", "FLOAT_MIN", "convert_to_torch_tensor", "try_import_torch"]

FLOAT_MIN = -3.4e38
"""A logit that makes an action impossible: nearly the least float32, so that sums of it do not overflow at once."""
FLOAT_MAX = 3.4e38
"""Nearly the greatest float32."""

_KEPT_KINDS = "OSUMmV"  # objects, strings, times, records: no tensor can hold them
_FLOATS_TO_HALVE = "dg"  # float64 and longer


def convert_to_torch_tensor(struct: Any, device: Any = None, pin_memory: bool = False) -> Any:
    """Turn every array, number and list of numbers in a structure into a torch tensor.

    float64 becomes float32; float16, float32, integers and bools keep their type; objects, strings and
    None are left as they are. Memory is shared wherever torch can share it: a writable, aligned array with
    positive strides that needs no change of type.

    Args:
        struct: An array, number, tensor or list of numbers, or nested dicts and tuples of these.
        device: Where the tensors go (a `torch.device` or its name); None leaves them on the CPU.
        pin_memory: Copy into page-locked memory first, so that the transfer to a GPU runs alongside
            the program; without a GPU, and for tensors of one, it changes nothing.

    Raises:
        ColumnError: a list of numbers is ragged.

    Examples:
        >>> out = convert_to_torch_tensor({"obs": np.zeros((2, 4)), "info": np.array(["a"])})
        >>> out["obs"].dtype, out["info"].dtype
        (torch.float32, dtype('<U1'))
    """
    if not isinstance(struct, (torch.Tensor, np.ndarray)):
        if type(struct) is dict or isinstance(struct, Mapping):
            return {key: convert_to_torch_tensor(value, device, pin_memory) for key, value in struct.items()}
        if isinstance(struct, tuple):
            return tuple_like(struct, [convert_to_torch_tensor(value, device, pin_memory) for value in struct])
    tensor = _tensor(struct)
    if not isinstance(tensor, torch.Tensor):
        return tensor
    if pin_memory and tensor.device.type == "cpu" and torch.cuda.is_available():
        tensor = tensor.pin_memory()
    if device is None:
        return tensor
    return tensor.to(device, non_blocking=pin_memory)


def _tensor(leaf: Any) -> Any:
    """One leaf as a tensor; what no tensor can hold comes back as it is."""
    if type(leaf) is np.ndarray:
        array = leaf
    elif isinstance(leaf, torch.Tensor):
        return leaf.float() if leaf.dtype is torch.float64 else leaf
    elif leaf is None or isinstance(leaf, (str, bytes)):
        return leaf
    else:
        array = _array(leaf)
    if array.dtype.kind in _KEPT_KINDS:
        return leaf
    dtype, flags = array.dtype, array.flags
    if dtype.char in _FLOATS_TO_HALVE:
        array = array.astype(np.float32)
    elif not dtype.isnative:
        array = array.astype(dtype.newbyteorder("="))
    elif not flags.writeable or not (flags.c_contiguous or min(array.strides) >= 0):
        array = array.copy()
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError):  # strides that are no multiple of the item size, as fields of records have
        return torch.from_numpy(np.array(array, order="C"))


def _array(leaf: Any) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(leaf)
    except ValueError as error:
        raise ColumnError(
            "converting a list to a tensor",
            expected="rows of one shape",
            found=str(error),
            do="pad the rows to one length, or keep them as an object array",
        ) from error


def try_import_torch(error: bool = False) -> tuple[Any, Any]:
    """`(torch, torch.nn)`, as code written for RLlib asks for them; torch is always there.

    Args:
        error: Not needed; RLlib raises if it is True and torch is missing.

    Examples:
        >>> torch_, nn = try_import_torch()
        >>> nn is torch_.nn
        True
    """
    return torch, torch.nn
