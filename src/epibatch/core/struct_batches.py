"""Joining rows into batches and taking batches apart, for nested structures of arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from epibatch.core.errors import ColumnError
from epibatch.core.structs import flatten, flatten_like, is_leaf, map_struct, unflatten

__all__ = [
    "BatchedNdArray",
    "batch",
    "convert_to_numpy",
    "flatten_to_single_ndarray",
    "make_action_immutable",
    "unbatch",
]

Array: TypeAlias = npt.NDArray[Any]


class BatchedNdArray(np.ndarray[Any, Any]):
    """An array tagged as many rows: its first axis is the batch axis already.

    The tag is a view and copies nothing. In a nested item each leaf is tagged by itself.

    Example:
        >>> rows = BatchedNdArray(np.zeros((3, 2)))
        >>> batch([rows, rows], individual_items_already_have_batch_dim="auto").shape
        (6, 2)
    """

    def __new__(cls, input_array: npt.ArrayLike) -> BatchedNdArray:
        """Tag `input_array`, an array-like of shape [rows, ...]."""
        return np.asarray(input_array).view(cls)


def batch(list_of_structs: Sequence[Any], *, individual_items_already_have_batch_dim: bool | str = False) -> Any:
    """Join items into one structure whose leaves have the batch axis first.

    Args:
        list_of_structs: items of one nesting; leaves are numbers or arrays of one shape.
        individual_items_already_have_batch_dim: False stacks the items, True concatenates them along
            their first axis, "auto" concatenates leaves tagged as `BatchedNdArray` and takes any other
            leaf as one row.

    Raises:
        ColumnError: no items, items of different nesting, or leaves whose shapes do not fit together.

    Example:
        >>> batch([{"a": 1}, {"a": 2}])
        {'a': array([1, 2])}
    """
    if not len(list_of_structs):
        raise ColumnError("batch()", expected="at least one item", found="none", do="skip empty columns")
    join: Callable[[Sequence[Any]], Array]
    if individual_items_already_have_batch_dim == "auto":
        join = _join_auto
    elif individual_items_already_have_batch_dim:
        join = _concatenate
    else:
        join = _stack
    first, form = flatten(list_of_structs[0])
    if form is None:
        if not all(is_leaf(item) for item in list_of_structs):
            flatten_like(None, next(item for item in list_of_structs if not is_leaf(item)))
        return join(list_of_structs)
    columns = zip(first, *(flatten_like(form, item) for item in list_of_structs[1:]))
    return unflatten(form, [join(column) for column in columns])


def _stack(rows: Sequence[Any]) -> Array:
    first = rows[0]
    if isinstance(first, np.ndarray) and first.ndim:
        shape = first.shape
        if all(isinstance(row, np.ndarray) and row.shape == shape for row in rows):
            return _plain(np.concatenate(rows)).reshape(len(rows), *shape)
    try:
        return np.array(rows)
    except ValueError:
        raise _ragged(rows) from None


def _concatenate(parts: Sequence[Any]) -> Array:
    try:
        return _plain(np.concatenate([np.asarray(part) for part in parts]))
    except ValueError:
        raise _ragged(parts) from None


def _join_auto(items: Sequence[Any]) -> Array:
    if not any(isinstance(item, BatchedNdArray) for item in items):
        return _stack(items)
    return _concatenate([item if isinstance(item, BatchedNdArray) else np.asarray(item)[None] for item in items])


def _plain(array: Array) -> Array:
    return array.view(np.ndarray) if type(array) is not np.ndarray else array


def _ragged(rows: Sequence[Any]) -> ColumnError:
    shapes = list(dict.fromkeys(np.shape(row) if isinstance(row, np.ndarray) else type(row).__name__ for row in rows))
    return ColumnError(
        "batch()",
        expected="leaves of one shape (apart from the batch axis)",
        found=", ".join(str(shape) for shape in shapes),
        do="pad the items to one shape before batching them",
    )


def unbatch(batched_struct: Any) -> list[Any]:
    """Take a batched structure apart into a list with one structure per row.

    Args:
        batched_struct: leaves of shape [B, ...]. Rows of arrays are views, not copies.

    Raises:
        ColumnError: a leaf has no batch axis, or leaves differ in their number of rows.

    Example:
        >>> unbatch({"a": np.array([1, 2])}) == [{"a": 1}, {"a": 2}]
        True
    """
    leaves, form = flatten(batched_struct)
    if not leaves:
        return []
    counts = [len(leaf) if np.ndim(leaf) or isinstance(leaf, list) else None for leaf in leaves]
    if None in counts or len(set(counts)) > 1:
        found = ", ".join("no batch axis" if count is None else f"{count} rows" for count in counts)
        raise ColumnError(
            "unbatch()", expected="leaves with one number of rows", found=found, do="batch all leaves alike"
        )
    rows = [_plain(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
    if form is None:
        return list(rows[0])
    return [unflatten(form, row) for row in zip(*rows)]


def flatten_to_single_ndarray(input_: Any) -> Array:
    """Join all leaves of one structure into a single 1-D array; a plain array is returned as it is.

    Dict entries go by sorted key, whatever their order of insertion; lists are opened too.

    Example:
        >>> flatten_to_single_ndarray({"b": 1.0, "a": np.ones((2, 2))})
        array([1., 1., 1., 1., 1.])
    """
    if is_leaf(input_) and not isinstance(input_, list):
        return np.asarray(input_)
    leaves: list[Array] = []
    _collect(input_, leaves)
    return np.concatenate(leaves) if leaves else np.zeros(0, np.float32)


def _collect(struct: Any, leaves: list[Array]) -> None:
    if isinstance(struct, dict):
        for key in sorted_keys(struct):
            _collect(struct[key], leaves)
    elif isinstance(struct, (tuple, list)):
        for value in struct:
            _collect(value, leaves)
    else:
        leaves.append(np.asarray(struct).reshape(-1))


def sorted_keys(mapping: dict[Any, Any]) -> list[Any]:
    """The keys in sorted order; in order of insertion when they cannot be compared."""
    try:
        return sorted(mapping)
    except TypeError:
        return list(mapping)


def sorted_leaves(struct: Any) -> list[Any]:
    """The leaves of a structure, dict entries by sorted key.

    Example:
        >>> sorted_leaves({"b": (1, 2), "a": 0})
        [0, 1, 2]
    """
    if isinstance(struct, dict):
        return [leaf for key in sorted_keys(struct) for leaf in sorted_leaves(struct[key])]
    return [leaf for part in struct for leaf in sorted_leaves(part)] if isinstance(struct, tuple) else [struct]


def convert_to_numpy(x: Any, reduce_type: bool = False) -> Any:
    """Turn every tensor in a structure into an array, sharing memory where the tensor lies on the CPU.

    Args:
        x: a structure whose leaves are tensors, arrays or anything else (left as it is); lists are opened too.
        reduce_type: make floating arrays float32. Integers keep their type: ids above 2**31 survive.

    Example:
        >>> convert_to_numpy({"a": np.zeros(2)}, reduce_type=True)["a"].dtype
        dtype('float32')
    """
    torch = sys.modules.get("torch")
    tensor_class = torch.Tensor if torch is not None else ()

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, list):
            return [map_struct(convert, item) for item in leaf]
        if isinstance(leaf, tensor_class):
            leaf = leaf.detach().cpu()
            leaf = (leaf.float() if "bfloat16" in str(leaf.dtype) else leaf).numpy()
        if reduce_type and isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f" and leaf.dtype != np.float32:
            return leaf.astype(np.float32)
        return leaf

    return map_struct(convert, x)


def make_action_immutable(obj: Any) -> Any:
    """Make one node of an action read-only: an array, in place, or a dict, as a read-only view of it.

    Anything else is returned as it is. `tree.traverse(make_action_immutable, action, top_down=False)` does it for all
    nodes of a nested action.

    Example:
        >>> make_action_immutable(np.zeros(2)).flags.writeable
        False
    """
    if isinstance(obj, np.ndarray):
        obj.setflags(write=False)
        return obj
    return MappingProxyType(obj) if isinstance(obj, dict) else obj
