"""Comparison of two batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from epibatch.core.structs import convert_to_numpy
from epibatch.episodes._storage.arrays import same_value

__all__ = ["compare_batches"]


def compare_batches(theirs: Any, ours: Any, *, rtol: float = 0.0, atol: float = 0.0) -> list[str]:
    """Return the differences of two batches as sentences; none if they are equal.

    The function compares nesting, columns, shapes, types and values; NaN equals NaN. Tensors and arrays compare by
    their values, lists of numbers by the arrays made from them.

    Args:
        theirs: RLlib's batch: a dict of columns, per module or not, of any nesting.
        ours: The batch to compare with it.
        rtol: Relative tolerance of floating-point values; 0 requires bit-identical values.
        atol: Absolute tolerance of floating-point values.

    Example:
        >>> compare_batches({"obs": np.zeros((3, 2)), "t": [1, 2]}, {"obs": np.zeros((3, 2), np.float32), "t": [1, 3]})
        ['obs: float64 in RLlib, float32 here', 't: 1 of 2 values differ, first at (1,): 2 in RLlib, 3 here']
    """
    return _differences(convert_to_numpy(theirs), convert_to_numpy(ours), "", rtol, atol)


def _differences(theirs: Any, ours: Any, path: str, rtol: float, atol: float) -> list[str]:
    where = f"{path}: " if path else ""
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        found = [
            f"{where}{key!r} only {place}"
            for one, other, place in ((theirs, ours, "in RLlib"), (ours, theirs, "here"))
            for key in one
            if key not in other
        ]
        for key in (key for key in theirs if key in ours):
            inner = f"{path}/{key}" if path else str(key)
            found += _differences(theirs[key], ours[key], inner, rtol, atol)
        return found
    if isinstance(theirs, tuple) and isinstance(ours, tuple) and len(theirs) == len(ours):
        pairs = enumerate(zip(theirs, ours))
        return [text for i, (a, b) in pairs for text in _differences(a, b, f"{path}/{i}", rtol, atol)]
    if isinstance(theirs, (Mapping, tuple)) or isinstance(ours, (Mapping, tuple)):
        return [f"{where}nested as {type(theirs).__name__} in RLlib, as {type(ours).__name__} here"]
    return _leaf_differences(theirs, ours, where, rtol, atol)


def _leaf_differences(theirs: Any, ours: Any, where: str, rtol: float, atol: float) -> list[str]:
    if _are_objects(theirs) or _are_objects(ours):
        return [] if _equal_objects(theirs, ours) else [f"{where}{theirs!r} in RLlib, {ours!r} here"]
    one, other = np.asarray(theirs), np.asarray(ours)
    if one.shape != other.shape:
        return [f"{where}shape {one.shape} in RLlib, {other.shape} here"]
    if one.dtype != other.dtype:
        return [f"{where}{one.dtype} in RLlib, {other.dtype} here"]
    wrong = (one != other) & ~((one != one) & (other != other))
    if (rtol or atol) and one.dtype.kind in "fc":
        wrong &= ~np.isclose(one, other, rtol, atol, equal_nan=True)
    if not wrong.any():
        return []
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    values = f"first at {at}: {one[at]} in RLlib, {other[at]} here"
    return [f"{where}{int(wrong.sum())} of {wrong.size} values differ, {values}"]


def _are_objects(value: Any) -> bool:
    try:
        return np.asarray(value).dtype.kind not in "biufcmM"
    except ValueError:  # ragged
        return True


def _equal_objects(theirs: Any, ours: Any) -> bool:
    def as_list(value: Any) -> Any:
        return value.tolist() if isinstance(value, np.ndarray) else value

    return same_value(as_list(theirs), as_list(ours))
