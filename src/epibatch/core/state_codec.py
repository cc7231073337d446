"""State as JSON plus arrays: the encoding of checkpoints, which never runs code when it is read."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np

from epibatch.core.errors import CheckpointError, UnknownNameError, nearest
from epibatch.core.masked_column import MaskedColumn
from epibatch.core.plain import plain_key
from epibatch.core.sealed_arrays import SealedArrays, SealedFile
from epibatch.core.structs import convert_to_numpy

_TAG = "$"
_MAX_DEPTH = 200
_PLAIN_BITS = 8192  # Python refuses to print or parse much longer decimals
_ARRAY_KINDS = "biufcSUmMV"
_LONG = 1000
"""Lists of numbers, dicts and bytes from this length on are kept as arrays."""
_MAX_ROWS = 3
_PLAIN = {bool, int, float, str, type(None)}
_SCALAR = re.compile(r"[<>|=]?[biufcmM]\d{1,3}(\[\w{1,20}\])?")


def encode_state(state: Any) -> tuple[Any, dict[str, np.ndarray[Any, Any]]]:
    """Split a state into something JSON can hold and the arrays it refers to.

    Args:
        state: dicts, lists and tuples of arrays, tensors, NumPy scalars, numbers of any size, strings, bytes and
            None. Keys are as for `plain_key`, which those of NumPy become.

    Raises:
        CheckpointError: something else, or an object array; the message names its place.

    Examples:
        >>> encode_state({"n": 3, "w": np.ones(2)})
        ({'n': 3, 'w': {'$': 'array', 'name': 'a0'}}, {'a0': array([1., 1.])})
    """
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    return _encode(state, "state", 0, arrays), arrays


def _encode(value: Any, place: str, depth: int, arrays: dict[str, np.ndarray[Any, Any]]) -> Any:
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int:
        return value if value.bit_length() <= _PLAIN_BITS else {_TAG: "int", "hex": hex(value)}
    if depth > _MAX_DEPTH:
        raise _unfit(place, f"at most {_MAX_DEPTH} nested levels", "more, or a structure that holds itself")
    if kind is float:
        return value if math.isfinite(value) else {_TAG: "float", "value": repr(value)}
    if kind is list:
        packed = _packed(value, place, depth, arrays)
        return packed or [_encode(item, f"{place}[{i}]", depth + 1, arrays) for i, item in enumerate(value)]
    if kind is MaskedColumn:
        return {_TAG: "masked", "items": _encode(list(value), place, depth, arrays)}
    if kind is tuple:
        return {_TAG: "tuple", "items": _encode(list(value), place, depth, arrays)}
    if kind is bytes:
        if len(value) < _LONG:
            return {_TAG: "bytes", "hex": value.hex()}
        return {_TAG: "bytes", "items": _encode_array(np.frombuffer(value, np.uint8), place, arrays)}
    if isinstance(value, Mapping):
        return _encode_dict(value, place, depth, arrays)
    if isinstance(value, np.generic):
        return _encode_scalar(value, place)
    if kind is SealedArrays:
        return {_TAG: "sealed", "file": value.file.description}
    return _encode_array(value, place, arrays)


def _encode_dict(value: Mapping[Any, Any], place: str, depth: int, arrays: dict[str, np.ndarray[Any, Any]]) -> Any:
    if all(type(key) is str for key in value) and _TAG not in value:
        return {key: _encode(item, f"{place}[{key!r}]", depth + 1, arrays) for key, item in value.items()}
    value = {_key(key, place): item for key, item in value.items()}
    packed = _packed(list(value), place, depth, arrays)
    if packed is not None:
        items = _packed(list(value.values()), place, depth, arrays)
        items = items or [_encode(item, f"{place}[{key!r}]", depth + 1, arrays) for key, item in value.items()]
        return {_TAG: "dict", "keys": packed, "values": items}
    pairs = []
    for key, item in value.items():
        where = f"{place}[{key!r}]"
        pairs.append([_encode(key, where, depth + 1, arrays), _encode(item, where, depth + 1, arrays)])
    return {_TAG: "dict", "items": pairs}


def _packed(items: list[Any], place: str, depth: int, arrays: dict[str, np.ndarray[Any, Any]]) -> Any:
    """A long list of numbers of one type as an array, and one of rows of plain values by columns; None for others."""
    if len(items) < _LONG:
        return None
    if _are_rows(items):
        columns = [_encode(list(column), place, depth + 1, arrays) for column in zip(*items, strict=True)]
        return {_TAG: "list", "columns": columns}
    kinds = set(map(type, items))
    if kinds not in ({bool}, {int}, {float}):
        return None
    try:
        numbers = np.array(items, float if float in kinds else np.int64)
    except OverflowError:
        return None
    return {_TAG: "list", "type": kinds.pop().__name__, "items": _encode_array(numbers, place, arrays)}


def _are_rows(items: Iterable[Any], depth: int = 0) -> bool:
    """Tuples of one length that hold plain values, or tuples of these."""
    if set(map(type, items)) != {tuple} or len(set(map(len, items))) != 1 or depth == _MAX_ROWS:
        return False
    columns = list(zip(*items, strict=True))
    return bool(columns) and all(set(map(type, column)) <= _PLAIN or _are_rows(column, depth + 1) for column in columns)


def _key(key: Any, place: str) -> Any:
    try:
        return plain_key(key)
    except TypeError as error:
        raise CheckpointError(
            f"saving {place}, key {key!r}",
            expected="a str, number, bool, None or tuple of these",
            found=str(error),
            do="use such a key; names of agents and modules are keys too",
        ) from error


def _encode_scalar(value: np.generic, place: str) -> Any:
    if isinstance(value, np.str_):
        return {_TAG: "np_str", "value": str(value)}
    if value.dtype.kind not in "biufcmM":
        raise _unfit(place, "a NumPy number, bool, string or time", type(value).__name__)
    return {_TAG: "scalar", "dtype": value.dtype.str, "hex": value.tobytes().hex()}


def _encode_array(value: Any, place: str, arrays: dict[str, np.ndarray[Any, Any]]) -> Any:
    value = value if isinstance(value, (list, tuple)) else convert_to_numpy(value)
    if type(value) not in (np.ndarray, np.memmap):
        raise _unfit(
            place,
            "dicts, lists and tuples of arrays, tensors, numbers, strings, bytes and None",
            f"{type(value).__module__}.{type(value).__qualname__}",
        )
    latin = max(map(ord, str(value.dtype))) < 256  # NumPy writes other names of fields in a way that is not read here
    if value.dtype.hasobject or value.dtype.kind not in _ARRAY_KINDS or not latin:
        raise _unfit(
            place,
            "an array of numbers, bools, strings or times, with names of fields in Latin-1",
            f"an array of dtype {value.dtype}",
        )
    name = f"a{len(arrays)}"
    arrays[name] = np.asarray(value)
    return {_TAG: "array", "name": name}


def _unfit(place: str, expected: str, found: str) -> CheckpointError:
    do = "convert it in get_state and back in set_state, or leave it out"
    return CheckpointError(f"saving {place}", expected=expected, found=found, do=do)


def require_mapping(where: str, state: Any) -> Mapping[Any, Any]:
    """A state that `get_state` gave, if it can be one.

    Raises:
        CheckpointError: it is no dict.
    """
    if isinstance(state, Mapping):
        return state
    found, do = f"{type(state).__name__} {state!r}", "pass what get_state gave"
    raise CheckpointError(where, expected="a dict of states", found=found, do=do)


def select_components(
    parts: Mapping[str, Callable[[], Any]],
    components: str | Collection[str] | None,
    not_components: str | Collection[str] | None,
    *,
    where: str = "get_state(...)",
    expected: str = "parts of the state",
) -> dict[str, Any]:
    """Make the parts of a state that are asked for.

    Args:
        parts: What makes each part, by name.
        components: Names of those to make; None: all.
        not_components: Names of those to leave out.
        where: Whose state it is, for messages.
        expected: What the names are, for messages.

    Raises:
        UnknownNameError: a name that is none of the parts'.

    Examples:
        >>> select_components({"weights": dict, "counts": list}, None, "weights")
        {'counts': []}
    """
    left_out = [not_components] if isinstance(not_components, str) else list(not_components or ())
    selected = [components] if isinstance(components, str) else list(parts if components is None else components)
    for name in (*left_out, *selected):
        if name not in parts:
            do = nearest(str(name), map(str, parts))
            raise UnknownNameError(where, expected=expected, found=repr(name), do=do)
    return {name: part() for name, part in parts.items() if name in selected and name not in left_out}


def decode_state(data: Any, arrays: Mapping[str, np.ndarray[Any, Any]]) -> Any:
    """Put together again what `encode_state` split.

    Args:
        data: The part that JSON held.
        arrays: The arrays by name.

    Raises:
        CheckpointError: `data` is not what `encode_state` writes, or does not hold each array once.
    """
    left = dict(arrays)
    try:
        state = _decode(data, left)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise _unreadable(f"an entry that cannot be read ({type(error).__name__}: {error})") from error
    if left:
        raise _unreadable(f"arrays that the state does not hold: {', '.join(list(left)[:5])}")
    return state


def _unreadable(found: str) -> CheckpointError:
    do = "restore the files from a copy, or load an earlier checkpoint"
    return CheckpointError("reading a checkpoint", expected="a state that save_state wrote", found=found, do=do)


def _decode(data: Any, arrays: dict[str, np.ndarray[Any, Any]]) -> Any:
    if isinstance(data, list):
        return [_decode(item, arrays) for item in data]
    if not isinstance(data, dict):
        return data
    if _TAG not in data:
        return {key: _decode(item, arrays) for key, item in data.items()}
    tag = data[_TAG]
    if tag == "array":
        return arrays.pop(data["name"])
    if tag == "list":
        return _decode_list(data, arrays)
    if tag == "masked":
        return MaskedColumn(*_decode(data["items"], arrays))
    if tag == "tuple":
        return tuple(_decode(data["items"], arrays))
    if tag == "dict":
        if "keys" in data:
            items = dict(zip(_decode(data["keys"], arrays), _decode(data["values"], arrays), strict=True))
        else:
            items = {_decode(key, arrays): _decode(item, arrays) for key, item in data["items"]}
        return {plain_key(key): item for key, item in items.items()}
    if tag == "int":
        return int(data["hex"], 16)
    if tag == "float":
        return float(data["value"])
    if tag == "bytes":
        return bytes.fromhex(data["hex"]) if "hex" in data else bytes(_decode(data["items"], arrays).tobytes())
    if tag == "np_str":
        return np.str_(data["value"])
    if tag == "sealed":
        return SealedArrays(tuple, SealedFile(dict(data["file"])))
    if tag == "scalar":
        if not _SCALAR.fullmatch(data["dtype"]):
            raise ValueError(f"a scalar of dtype {data['dtype']!r}")
        return np.frombuffer(bytes.fromhex(data["hex"]), np.dtype(data["dtype"]), 1)[0]
    raise ValueError(f"unknown tag {tag!r}")


def _decode_list(data: Any, arrays: dict[str, np.ndarray[Any, Any]]) -> list[Any]:
    """A long list; the rows of a stranger's may not be nested without end, because each level takes memory."""
    if "columns" in data:
        rows = list(zip(*(_decode(column, arrays) for column in data["columns"]), strict=True))
        if rows and _levels(rows[0]) > _MAX_ROWS:
            raise ValueError(f"rows in more than {_MAX_ROWS} levels")
        return rows
    numbers = _decode(data["items"], arrays)
    if numbers.ndim != 1 or numbers.dtype != (float if data["type"] == "float" else np.int64):
        raise ValueError(f"a list of {data['type']} as {numbers.dtype} of shape {numbers.shape}")
    return list((numbers.astype(bool) if data["type"] == "bool" else numbers).tolist())


def _levels(row: Any) -> int:
    return 1 + max(map(_levels, row), default=0) if type(row) is tuple else 0
