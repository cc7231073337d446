"""Nested structures of arrays: dicts and tuples whose leaves are anything else, and batches of them.

A structure is described by its *form*: `None` for a leaf, `("dict", keys, forms)`, `("tuple", (), forms)`, or
`("masked", (), forms)` for a `MaskedColumn`. Flattening once and working on the list of leaves is what keeps
the hot paths free of recursion.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from epibatch.core.errors import ColumnError
from epibatch.core.masked_column import MaskedColumn

Array: TypeAlias = npt.NDArray[Any]
Form: TypeAlias = "tuple[str, tuple[Any, ...], tuple[Form, ...]] | None"


def is_leaf(struct: Any) -> bool:
    """True if `struct` is a leaf, that is neither a dict nor a tuple."""
    return not isinstance(struct, (dict, tuple))


def form_of(struct: Any) -> Form:
    """The form of a structure; two structures of one form have leaves in the same order."""
    if isinstance(struct, dict):
        return ("dict", tuple(struct), tuple(form_of(value) for value in struct.values()))
    if isinstance(struct, tuple):
        return (_tuple_kind(struct), (), tuple(form_of(value) for value in struct))
    return None


def _tuple_kind(struct: tuple[Any, ...]) -> str:
    return "masked" if type(struct) is MaskedColumn else "tuple"


def tuple_like(struct: tuple[Any, ...], parts: Iterable[Any]) -> tuple[Any, ...]:
    """Return a tuple of `parts`, a `MaskedColumn` if `struct` is one."""
    return MaskedColumn(*parts) if type(struct) is MaskedColumn else tuple(parts)


def flatten(struct: Any) -> tuple[list[Any], Form]:
    """Split a structure into its leaves, in order, and its form."""
    leaves: list[Any] = []
    return leaves, _flatten_into(struct, leaves)


def _flatten_into(struct: Any, leaves: list[Any]) -> Form:
    """Add the leaves of a structure to a list; returns the form."""
    if isinstance(struct, dict):
        return ("dict", tuple(struct), tuple([_flatten_into(value, leaves) for value in struct.values()]))
    if isinstance(struct, tuple):
        return (_tuple_kind(struct), (), tuple([_flatten_into(value, leaves) for value in struct]))
    leaves.append(struct)
    return None


def flatten_like(form: Form, struct: Any) -> list[Any]:
    """The leaves of `struct` in the order of `form`; dict keys may come in any order.

    Raises:
        ColumnError: the structure has other keys or another length than `form`.
    """
    if form is None:
        if is_leaf(struct):
            return [struct]
    elif form[0] == "dict" and isinstance(struct, dict):
        if tuple(struct) == form[1]:
            return _leaves_like(form[2], struct.values())
        if len(struct) == len(form[1]) and all(key in struct for key in form[1]):
            return _leaves_like(form[2], [struct[key] for key in form[1]])
    elif form[0] == "dict" and type(struct) is MaskedColumn and {*form[1]} == {*struct._fields}:
        return flatten_like(form, struct._asdict())
    elif form[0] != "dict" and isinstance(struct, tuple) and len(struct) == len(form[2]):
        return _leaves_like(form[2], struct)
    raise ColumnError(
        "nested structure",
        expected=form_text(form),
        found=form_text(form_of(struct)),
        do="give every step of a column the same keys and nesting",
    )


def _leaves_like(forms: tuple[Form, ...], structs: Iterable[Any]) -> list[Any]:
    leaves: list[Any] = []
    for form, struct in zip(forms, structs):
        if form is None and not isinstance(struct, (dict, tuple)):
            leaves.append(struct)
        else:
            leaves += flatten_like(form, struct)
    return leaves


def form_text(form: Form) -> str:
    """Spell a form for a message.

    Examples:
        >>> form_text(form_of({"a": 1, "b": (2, 3)}))
        '{a: leaf, b: (leaf, leaf)}'
    """
    if form is None:
        return "leaf"
    if form[0] == "dict":
        return "{" + ", ".join(f"{key}: {form_text(sub)}" for key, sub in zip(form[1], form[2])) + "}"
    name = "MaskedColumn" if form[0] == "masked" else ""
    return f"{name}(" + ", ".join(form_text(sub) for sub in form[2]) + ")"


def paths_of(form: Form) -> list[str]:
    """Return the index expressions of the leaves of a form, in their order.

    Examples:
        >>> paths_of(form_of({"a": 1, "b": (2, {"c": 3})}))
        ["['a']", "['b'][0]", "['b'][1]['c']"]
    """
    if form is None:
        return [""]
    keys = form[1] if form[0] == "dict" else range(len(form[2]))
    return [f"[{key!r}]{path}" for key, sub in zip(keys, form[2]) for path in paths_of(sub)]


def unflatten(form: Form, leaves: Sequence[Any]) -> Any:
    """Rebuild the structure of `form` from `leaves`."""
    if form is None:
        return leaves[0]
    if form[0] == "dict" and len(leaves) == len(form[1]) == form[2].count(None):
        return dict(zip(form[1], leaves))
    remaining = iter(leaves)
    return _build(form, remaining)


def _build(form: Form, leaves: Iterator[Any]) -> Any:
    if form is None:
        return next(leaves)
    if form[0] == "dict":
        return {key: _build(sub, leaves) for key, sub in zip(form[1], form[2])}
    parts = [_build(sub, leaves) for sub in form[2]]
    return MaskedColumn(*parts) if form[0] == "masked" else tuple(parts)


def map_struct(function: Callable[..., Any], struct: Any, *others: Any) -> Any:
    """Apply `function` to every leaf of `struct` (and the matching leaves of `others`)."""
    if is_leaf(struct):
        return function(struct, *others)
    if not others:
        if isinstance(struct, dict):
            return {key: map_struct(function, value) for key, value in struct.items()}
        return tuple_like(struct, [map_struct(function, value) for value in struct])
    if isinstance(struct, dict):
        return {key: map_struct(function, value, *(o[key] for o in others)) for key, value in struct.items()}
    return tuple_like(struct, [map_struct(function, value, *(o[i] for o in others)) for i, value in enumerate(struct)])


class BatchedNdArray(np.ndarray[Any, Any]):
    """An array tagged as many rows: its first axis is the batch axis already.

    The tag is a view and copies nothing. In a nested item each leaf is tagged by itself.

    Examples:
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
        list_of_structs: Items of one nesting; leaves are numbers or arrays of one shape.
        individual_items_already_have_batch_dim: False stacks the items, True concatenates them along
            their first axis, "auto" concatenates leaves tagged as `BatchedNdArray` and takes any other
            leaf as one row.

    Raises:
        ColumnError: no items, items of different nesting, or leaves whose shapes do not fit together.

    Examples:
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


def stack_rows(rows: Sequence[Any]) -> Any:
    """Stack equally nested rows into one structure whose leaves have a new first axis.

    Raises:
        ColumnError: there are no rows, or the rows differ in nesting or shape.
    """
    return batch(rows)


def unbatch(batched_struct: Any) -> list[Any]:
    """Take a batched structure apart into a list with one structure per row.

    Args:
        batched_struct: Leaves of shape [B, ...]. Rows of arrays are views, not copies.

    Raises:
        ColumnError: a leaf has no batch axis, or leaves differ in their number of rows.

    Examples:
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

    Examples:
        >>> flatten_to_single_ndarray({"b": 1.0, "a": np.ones((2, 2))})
        array([1., 1., 1., 1., 1.])
    """
    if is_leaf(input_) and not isinstance(input_, list):
        return np.asarray(input_)
    leaves = [np.asarray(leaf).reshape(-1) for leaf in flatten(sorted_struct(input_))[0]]
    return np.concatenate(leaves) if leaves else np.zeros(0, np.float32)


def sorted_keys(mapping: Mapping[Any, Any]) -> list[Any]:
    """The keys in sorted order; in order of insertion when they cannot be compared."""
    try:
        return sorted(mapping)
    except TypeError:
        return list(mapping)


def sorted_struct(struct: Any) -> Any:
    """The same structure with dict entries by sorted key, and lists as tuples."""
    if isinstance(struct, Mapping):
        return {key: sorted_struct(struct[key]) for key in sorted_keys(struct)}
    if isinstance(struct, tuple):
        return tuple_like(struct, map(sorted_struct, struct))
    return tuple(map(sorted_struct, struct)) if isinstance(struct, list) else struct


def sorted_leaves(struct: Any) -> list[Any]:
    """The leaves of a structure, dict entries by sorted key.

    Examples:
        >>> sorted_leaves({"b": (1, 2), "a": 0})
        [0, 1, 2]
    """
    if isinstance(struct, dict):
        return [leaf for key in sorted_keys(struct) for leaf in sorted_leaves(struct[key])]
    return [leaf for part in struct for leaf in sorted_leaves(part)] if isinstance(struct, tuple) else [struct]


def convert_to_numpy(x: Any, reduce_type: bool = False) -> Any:
    """Turn every tensor in a structure into an array, sharing memory where the tensor lies on the CPU.

    bfloat16, which NumPy does not have, becomes float32.

    Args:
        x: A structure whose leaves are tensors, arrays or anything else (left as it is); lists are opened too.
        reduce_type: Make floating arrays float32. Integers keep their type: ids above 2**31 survive.

    Examples:
        >>> convert_to_numpy({"a": np.zeros(2)}, reduce_type=True)["a"].dtype
        dtype('float32')
    """
    if isinstance(x, Mapping):
        return {key: convert_to_numpy(value, reduce_type) for key, value in x.items()}
    if isinstance(x, tuple):
        return tuple_like(x, [convert_to_numpy(value, reduce_type) for value in x])
    if isinstance(x, list):
        return [convert_to_numpy(value, reduce_type) for value in x]
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        x = x.detach().float() if x.dtype is torch.bfloat16 else x.detach()
        x = x.cpu().resolve_conj().resolve_neg().numpy()
    if reduce_type and isinstance(x, np.ndarray) and x.dtype.kind == "f" and x.dtype != np.float32:
        return x.astype(np.float32)
    return x


def make_action_immutable(obj: Any) -> Any:
    """Make one node of an action read-only: an array, in place, or a dict, as a read-only view of it.

    Anything else is returned as it is. `tree.traverse(make_action_immutable, action, top_down=False)` does it for all
    nodes of a nested action.

    Examples:
        >>> make_action_immutable(np.zeros(2)).flags.writeable
        False
    """
    if isinstance(obj, np.ndarray):
        obj.setflags(write=False)
        return obj
    return MappingProxyType(obj) if isinstance(obj, dict) else obj
