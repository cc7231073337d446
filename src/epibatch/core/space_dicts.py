"""Gymnasium spaces as JSON-able descriptions, for configs and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from epibatch.core.errors import SpaceError, nearest
from epibatch.core.plain import plain_key

_MOST_BYTES = 64 * 2**20


class EncodedBox(spaces.Box):
    """The space of the arrays that values of a registered class of spaces are encoded as, which has its own network.

    Args:
        box: The Box that it is.
        encoded_from: `module:Class` of the registered class.
    """

    def __init__(self, box: spaces.Box, encoded_from: str) -> None:
        dtype: Any = np.dtype(box.dtype).type
        super().__init__(box.low, box.high, box.shape, dtype)
        self.encoded_from = encoded_from


def space_to_dict(space: gym.Space[Any]) -> dict[str, Any]:
    """Describe a space by plain numbers, strings, lists and dicts.

    Box bounds are one number when they are uniform and nested lists otherwise; infinities are the
    strings "inf" and "-inf".

    Raises:
        SpaceError: the space, or one inside it, is of a class that cannot be described.

    Examples:
        >>> space_to_dict(spaces.Discrete(3, start=1))
        {'type': 'Discrete', 'n': 3, 'start': 1, 'dtype': 'int64'}
    """
    writer = _WRITERS.get(type(space))
    if writer is None:
        raise SpaceError(
            "space_to_dict()",
            expected=f"a space of class {', '.join(_READERS)}",
            found=f"{type(space).__module__}.{type(space).__qualname__}",
            do="use one of the expected spaces, or give the space in code",
        )
    return {"type": type(space).__name__, **writer(space)}


def space_from_dict(d: dict[str, Any]) -> gym.Space[Any]:
    """Build the space that `space_to_dict` described; equal to the original, types included.

    Raises:
        SpaceError: an unknown type, or missing or unfit entries.

    Examples:
        >>> space_from_dict({"type": "Box", "low": "-inf", "high": 1.0, "shape": [2], "dtype": "float32"})
        Box(-inf, 1.0, (2,), float32)
    """
    return _read(d, _Budget())


class _Budget:
    """Bytes that the bounds of a space, and of all spaces inside it, may still take."""

    left = _MOST_BYTES

    def spend(self, nbytes: int) -> None:
        self.left -= nbytes
        if self.left < 0:
            raise SpaceError(
                "space_from_dict()",
                expected=f"a space whose bounds take at most {_MOST_BYTES:,} bytes",
                found="a larger one",
                do="give so large a space in code",
            )


def _read(d: Any, budget: _Budget) -> gym.Space[Any]:
    kind = d.get("type") if isinstance(d, dict) else None
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise SpaceError(
            "space_from_dict()",
            expected="a dict with a known 'type'",
            found=repr(d),
            do=nearest(str(kind), _READERS),
        )
    try:
        return reader(d, budget)
    except SpaceError:
        raise
    except (KeyError, TypeError, ValueError, AssertionError, OverflowError) as error:
        found = f"{d!r} ({type(error).__name__}: {error})"
        raise SpaceError(
            "space_from_dict()",
            expected=f"the entries that space_to_dict() gives a {kind}",
            found=found,
            do="write the description with space_to_dict()",
        ) from error


def _write_box(space: Any) -> dict[str, Any]:
    return {
        "low": _write_bound(space.low, space.bounded_below, "-inf"),
        "high": _write_bound(space.high, space.bounded_above, "inf"),
        "shape": list(space.shape),
        "dtype": space.dtype.name,
    }


def _write_bound(bound: npt.NDArray[Any], bounded: npt.NDArray[Any], infinity: str) -> Any:
    if bound.size and (bound == bound.flat[0]).all() and (bounded == bounded.flat[0]).all():
        return _write_number(bound.flat[0], bool(bounded.flat[0]), infinity)
    flat = [_write_number(b, ok, infinity) for b, ok in zip(bound.flat, bounded.flat)]
    return np.array(flat, object).reshape(bound.shape).tolist()


def _write_number(number: Any, bounded: bool, infinity: str) -> Any:
    if not bounded:
        return infinity
    value = number.item()
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _read_box(d: dict[str, Any], budget: _Budget) -> spaces.Box:
    dtype, shape = np.dtype(d["dtype"]), tuple(d["shape"])
    budget.spend(math.prod(shape) * (2 * dtype.itemsize + 2))  # two bounds, and which of them are finite
    low, high = _read_bound(d["low"], shape, dtype), _read_bound(d["high"], shape, dtype)
    return spaces.Box(low, high, shape, dtype.type)


def _write_encoded_box(space: Any) -> dict[str, Any]:
    return {**_write_box(space), "encoded_from": space.encoded_from}


def _read_encoded_box(d: dict[str, Any], budget: _Budget) -> gym.Space[Any]:
    return EncodedBox(_read_box(d, budget), str(d["encoded_from"]))


def _read_bound(bound: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    if isinstance(bound, str):  # Gymnasium takes the infinities of integer Boxes as scalars only
        return float(bound)
    numbers = np.array(bound, object)
    flat = [float(n) if isinstance(n, str) else n for n in numbers.reshape(-1)]
    exact = dtype if all(math.isfinite(n) for n in flat) else np.float64 if dtype.kind != "f" else dtype
    array = np.array(flat, exact).reshape(numbers.shape if numbers.ndim else ())
    return np.full(shape, array, exact) if not numbers.ndim else array.reshape(shape)


def _write_discrete(space: Any) -> dict[str, Any]:
    return {"n": int(space.n), "start": int(space.start), "dtype": space.dtype.name}


def _read_discrete(d: dict[str, Any], budget: _Budget) -> gym.Space[Any]:
    return spaces.Discrete(int(d["n"]), start=int(d.get("start", 0)), **_dtype_argument(d))


def _write_multi_discrete(space: Any) -> dict[str, Any]:
    start = getattr(space, "start", np.zeros_like(space.nvec))
    return {"nvec": space.nvec.tolist(), "start": start.tolist(), "dtype": space.dtype.name}


def _read_multi_discrete(d: dict[str, Any], budget: _Budget) -> gym.Space[Any]:
    dtype = np.dtype(d.get("dtype", "int64"))
    budget.spend(8 * 2 * np.size(d["nvec"]))
    nvec = np.array(d["nvec"], dtype)
    return spaces.MultiDiscrete(nvec, dtype.type, start=np.array(d.get("start", np.zeros_like(nvec)), dtype))


def _dtype_argument(d: dict[str, Any]) -> dict[str, Any]:
    dtype = np.dtype(d.get("dtype", "int64"))
    # older Gymnasium versions know no other type and no argument for it
    return {} if dtype == np.int64 else {"dtype": dtype.type}


def _write_multi_binary(space: Any) -> dict[str, Any]:
    return {"n": list(space.n) if isinstance(space.n, tuple) else int(space.n)}


def _read_multi_binary(d: dict[str, Any], budget: _Budget) -> gym.Space[Any]:
    budget.spend(math.prod(d["n"]) if isinstance(d["n"], (list, tuple)) else 0)
    return spaces.MultiBinary(d["n"])


def _write_dict(space: Any) -> dict[str, Any]:
    parts = []
    for key, sub in space.spaces.items():
        try:
            parts.append([plain_key(key), space_to_dict(sub)])
        except TypeError as error:
            expected = "keys that are strings, numbers, None or tuples of these"
            raise SpaceError("space_to_dict()", expected=expected, found=repr(key), do="rename it") from error
    return {"spaces": parts}


def _read_dict(d: dict[str, Any], budget: _Budget) -> gym.Space[Any]:
    return spaces.Dict([(_read_key(key), _read(sub, budget)) for key, sub in d["spaces"]])


def _read_key(key: Any) -> Any:
    return tuple(map(_read_key, key)) if isinstance(key, list) else key


def _write_tuple(space: Any) -> dict[str, Any]:
    return {"spaces": [space_to_dict(sub) for sub in space.spaces]}


def _read_tuple(d: dict[str, Any], budget: _Budget) -> gym.Space[Any]:
    return spaces.Tuple([_read(sub, budget) for sub in d["spaces"]])


def _write_sequence(space: Any) -> dict[str, Any]:
    return {"feature_space": space_to_dict(space.feature_space), "stack": space.stack}


def _read_sequence(d: dict[str, Any], budget: _Budget) -> gym.Space[Any]:
    return spaces.Sequence(_read(d["feature_space"], budget), stack=bool(d["stack"]))


_WRITERS: dict[type, Callable[[Any], dict[str, Any]]] = {
    spaces.Box: _write_box,
    EncodedBox: _write_encoded_box,
    spaces.Discrete: _write_discrete,
    spaces.MultiDiscrete: _write_multi_discrete,
    spaces.MultiBinary: _write_multi_binary,
    spaces.Dict: _write_dict,
    spaces.Tuple: _write_tuple,
    spaces.Sequence: _write_sequence,
}
_READERS: dict[str, Callable[[dict[str, Any], _Budget], gym.Space[Any]]] = {
    "Box": _read_box,
    "EncodedBox": _read_encoded_box,
    "Discrete": _read_discrete,
    "MultiDiscrete": _read_multi_discrete,
    "MultiBinary": _read_multi_binary,
    "Dict": _read_dict,
    "Tuple": _read_tuple,
    "Sequence": _read_sequence,
}
