"""Arrays with time as the first axis: building, growing, promoting and filling them."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from epibatch.core.errors import ColumnError, EpisodeIndexError
from epibatch.core.structs import Form, flatten, flatten_like, map_struct

Leaf: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

_FIRST_BYTES, _LEAST_ROWS, _MOST_ROWS = 4096, 16, 256  # small columns of an episode are full at the same step
_SMALL_BYTES = 4096
_OBJECT = np.dtype(object)
UNCHANGING = frozenset({float, int, bool, str, type(None), np.float64, np.float32, np.int64, np.bool_})
"""The most frequent types of values that cannot change."""
_PYTHON_TYPES = {np.bool_: bool, np.int64: int, np.float64: float, np.complex128: complex}


def as_value(item: Any) -> Leaf:
    """One row's leaf as an array; text and other Python objects become a 0-d object array."""
    if isinstance(item, np.ndarray) and item.dtype.kind not in "US":
        return item
    value = None if isinstance(item, (str, bytes)) else _numbers(item, np.asarray)
    if value is None:
        value = np.empty((), _OBJECT)
        value[()] = item
    return value


def _numbers(item: Any, convert: Callable[[Any], Leaf]) -> Leaf | None:
    """Numbers, or lists of them, as an array; None if they are ragged, or something else."""
    try:
        array = convert(item)
    except ValueError:  # ragged
        return None
    return array if array.dtype.kind in "biufcmM" else None


def owned(row: Any) -> Any:
    """A copy of the arrays and lists in a row: environments may reuse theirs."""
    if type(row) is np.ndarray:
        return row.copy()
    if isinstance(row, (dict, tuple)):
        return map_struct(owned, row)
    return copy.deepcopy(row) if isinstance(row, list) else row


def make_writable(value: Any) -> Any:
    """Return nested dicts, lists, tuples and object arrays with copies in place of arrays in read-only memory.

    Args:
        value: What came from another process; its dicts, lists and object arrays are changed, and stay the same ones.
    """
    return rebuilt(
        value, lambda part: part.copy() if isinstance(part, np.ndarray) and not part.flags.writeable else part
    )


def rebuilt(value: Any, replace: Callable[[Any], Any], known: dict[int, tuple[Any, Any]] | None = None) -> Any:
    """Return nested containers in which each part is another; tuples become new ones where their items do.

    Args:
        value: Anything, which may contain itself.
        replace: Returns a part that is neither a number nor text, or what takes its place; dicts, lists and object
            arrays of those get new items.
        known: What was done already and what came of it, by `id()`: a part that is there twice stays one.
    """
    if type(value) in UNCHANGING:
        return value
    known = {} if known is None else known
    if id(value) in known:
        return known[id(value)][1]
    if isinstance(value, tuple):
        items = [rebuilt(item, replace, known) for item in value]
        if all(new is old for new, old in zip(items, value)):
            return value
        changed = tuple.__new__(type(value), items)
        if hasattr(value, "__dict__"):
            changed.__dict__.update(value.__dict__)
        return changed
    own = replace(value)
    known[id(value)] = value, own
    places: Any
    if isinstance(own, np.ndarray) and own.dtype == _OBJECT:
        places = own.ravel(order="K")
    elif isinstance(own, (dict, list, deque)):
        places = own
    else:
        return own
    for key, item in list(places.items() if isinstance(places, dict) else enumerate(places)):
        if (new := rebuilt(item, replace, known)) is not item:
            places[key] = new
    return own


def first_capacity(values: Sequence[Leaf]) -> int:
    """Rows that a new column of such parts gets: four kilobytes of the largest part, but from 16 to 256 rows."""
    return min(max(_FIRST_BYTES // max([1, *(value.nbytes for value in values)]), _LEAST_ROWS), _MOST_ROWS)


def empty_leaf(value: Leaf, capacity: int) -> Leaf:
    """Room for `capacity` rows that look like `value`."""
    return np.zeros((capacity, *value.shape), value.dtype)  # unused rows are cast along when a column is promoted


def leaf_from_rows(rows: Sequence[Any]) -> Leaf:
    """Stack rows of one leaf; rows of different shapes give an object column of copies."""
    if all(isinstance(row, np.ndarray) for row in rows):
        if len({row.shape for row in rows}) == 1 and rows[0].dtype.kind not in "US":
            return np.array(rows)
        return object_leaf([owned(row) for row in rows])
    leaf = None if any(isinstance(row, (str, bytes)) for row in rows) else _numbers(rows, np.array)
    return object_leaf([owned(row) for row in rows]) if leaf is None else leaf


def leaves_like(form: Form, row: Any) -> list[Any] | None:
    """The leaves of a row in the order of a column's; None if it is nested differently."""
    leaf = not isinstance(row, (dict, tuple))
    if form is None or leaf:  # said at once: an error costs more
        return [row] if form is None and leaf else None
    try:
        return flatten_like(form, row)
    except ColumnError:
        return None


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


def object_leaf(rows: Sequence[Any]) -> Leaf:
    """A column of Python objects, one per row."""
    leaf = np.empty(len(rows), _OBJECT)
    for i, row in enumerate(rows):
        leaf[i] = row
    return leaf


def copied(leaf: Leaf) -> Leaf:
    """A copy of `leaf`; of an object column also the rows that are arrays are copied."""
    if leaf.dtype != _OBJECT:
        return leaf.copy()
    out = leaf.copy()
    for at in np.ndindex(out.shape):
        out[at] = owned(out[at])
    return out


@lru_cache(maxsize=256)
def plain_types(dtype: np.dtype[Any]) -> frozenset[type]:
    """The scalar types that an array of `dtype` holds without any conversion."""
    if dtype.kind not in "biufc":
        return frozenset()
    python = _PYTHON_TYPES.get(dtype.type)
    return frozenset([dtype.type] if python is None else [dtype.type, python])


def fits_exactly(leaf: Leaf, value: Any) -> bool:
    """True if `leaf` holds rows like `value` as they are: of its shape and type."""
    if leaf.dtype == _OBJECT:
        return True
    if isinstance(value, np.ndarray):
        return bool(value.dtype == leaf.dtype) and value.shape == leaf.shape[1:]
    if leaf.ndim != 1 or type(value) not in plain_types(leaf.dtype):
        return False
    return type(value) is not int or _in_range(value, leaf.dtype)


def fits(leaf: Leaf, value: Any, shape: tuple[int, ...] | None = None) -> np.dtype[Any] | None:
    """The dtype `leaf` must have to hold rows like `value`; None if their shapes differ.

    Python numbers count as numbers of the leaf's type as long as it can hold their magnitude
    (NumPy's rule for them, NEP 50).

    Args:
        leaf: The column, shape [T, ...].
        value: Array or scalar to be written.
        shape: Shape of one row of `value`; default: `value` is one row.
    """
    if leaf.dtype == _OBJECT:
        return _OBJECT
    if type(value) in (int, float) and leaf.ndim == 1:
        return _fits_number(leaf.dtype, value)
    array = as_value(value)
    if (array.shape if shape is None else shape) != leaf.shape[1:] or array.dtype == _OBJECT:
        return None
    try:
        return np.result_type(leaf.dtype, value if isinstance(value, (bool, complex)) else array.dtype)
    except TypeError:
        return None


def _fits_number(dtype: np.dtype[Any], value: int | float) -> np.dtype[Any] | None:
    try:
        target = np.result_type(dtype, value)
    except TypeError:
        return None
    if target.kind in "iu" and isinstance(value, int) and not _in_range(value, target):
        return np.result_type(dtype, np.asarray(value))
    if target.kind in "fc":
        size = abs(value)
        if size != float("inf") and size > float(np.finfo(target).max):
            return None if size > float(np.finfo(np.float64).max) else np.result_type(target, np.float64)
    return target


def _in_range(value: int, dtype: np.dtype[Any]) -> bool:
    limits = np.iinfo(dtype)
    return int(limits.min) <= value <= int(limits.max)


def promoted(leaf: Leaf, dtype: np.dtype[Any] | None, axes: int = 1) -> Leaf:
    """`leaf` with another dtype (a copy, if it differs); None makes it an array of objects, its rows.

    Args:
        leaf: The array.
        dtype: The dtype.
        axes: How many of its axes number rows.
    """
    if dtype is not None and dtype == leaf.dtype:  # NumPy takes None for float64
        return leaf
    if dtype is not None and dtype != _OBJECT:
        return leaf.astype(dtype)
    out = np.empty(leaf.shape[:axes], _OBJECT)
    for at in np.ndindex(out.shape):
        out[at] = leaf[at]
    return out


def roomier(leaves: Sequence[Leaf], rows: int) -> list[Leaf]:
    """Copies with room for so many rows, and for twice as many as before, four times as many if all are small."""
    factor = 4 if all(leaf.nbytes <= _SMALL_BYTES for leaf in leaves) else 2
    capacity = max(rows, _LEAST_ROWS, *(len(leaf) * factor for leaf in leaves))
    copies = [np.zeros((capacity, *leaf.shape[1:]), leaf.dtype) for leaf in leaves]
    for out, leaf in zip(copies, leaves):
        out[: len(leaf)] = leaf
    return copies


def unaliased(values: Sequence[Any]) -> Sequence[Any]:
    """Values to store one after another: copies where one may show memory that storing another overwrites."""
    if len(values) < 2 or not any(isinstance(value, np.ndarray) and value.base is not None for value in values):
        return values
    return [value.copy() if isinstance(value, np.ndarray) else value for value in values]


def store(leaf: Leaf, where: Any, value: Any) -> None:
    """Write rows that fit; an object column gets copies of their arrays.

    Args:
        leaf: The column.
        where: The position of one row, or what selects several.
        value: The row, or the rows.
    """
    if leaf.dtype != _OBJECT:
        leaf[where] = value
    elif leaf.ndim == 1 and isinstance(where, (int, np.integer)):
        if isinstance(value, np.ndarray) and value.dtype == _OBJECT and not value.ndim:
            value = value[()]
        leaf[where] = owned(value)
    else:
        leaf[where] = copied(object_leaf(list(as_value(value))))


def shielded(rows: Any) -> Any:
    """The same rows; their arrays as views that cannot be written to."""
    if isinstance(rows, (dict, tuple)):
        return map_struct(shielded, rows)
    if isinstance(rows, np.ndarray):
        rows = rows.view()
        rows.flags.writeable = False
    return rows


def same_value(a: Any, b: Any) -> bool:
    """True if two Python objects, with arrays at any depth, are equal; NaN equals NaN."""
    if a is b:
        return True
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and same_leaf(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same_value(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and type(a) is type(b):
        return len(a) == len(b) and all(map(same_value, a, b))
    if getattr(a, "shape", ()) != getattr(b, "shape", ()):
        return False
    equal = a == b
    if hasattr(equal, "all"):  # tensors, and numbers of NumPy
        return bool((equal | ((a != a) & (b != b))).all())
    return bool(equal or (a != a and b != b))


def same_leaf(a: Leaf, b: Leaf) -> bool:
    """True if two leaves are equal in type, shape and values; NaN equals NaN."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype == _OBJECT:
        return all(map(same_value, a.ravel(), b.ravel()))
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fcmM"))
