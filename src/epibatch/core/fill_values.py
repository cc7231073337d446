"""A number that fills rows, in the type of the column it goes into."""

from __future__ import annotations

from typing import Any

import numpy as np

from epibatch.core.errors import ColumnError

__all__ = ["exact_fill_value", "fill_value", "promoting_fill_value"]

_OBJECT = np.dtype(object)


def fill_value(dtype: np.dtype[Any], fill: Any) -> Any:
    """A fill value as one of `dtype`; a fraction is cut to a whole number where that is what `dtype` holds.

    Raises:
        ColumnError: `dtype` cannot hold it: a negative number among unsigned ones, NaN among integers, 1e300 among
            floats of 32 bits.
    """
    do = "fill with another value, or convert what the getter gives without fill"
    return _cast(dtype, fill, "fill rows", do)


def exact_fill_value(dtype: np.dtype[Any], fill: float, where: str) -> Any:
    """A fill value as one of `dtype`, which is the same number up to the rounding of floats.

    Args:
        dtype: Type of the column, with everything in it that is not filled in.
        fill: A number.
        where: For the message.

    Raises:
        ColumnError: `dtype` cannot hold it: as for `fill_value`, and a fraction among integers or bools.

    Example:
        >>> exact_fill_value(np.dtype(np.int8), -1.0, "a view")
        array(-1, dtype=int8)
    """
    whole = ", a whole number" if dtype.kind in "iu" else ", 0 or 1" if dtype.kind == "b" else ""
    do = f"fill with a value of that type{whole}; mask=True tells real values from those filled in"
    value = _cast(dtype, fill, where, do)
    if dtype.kind in "biu" and value != fill:
        raise _cannot_hold(dtype, fill, where, do)
    return value


def promoting_fill_value(dtype: np.dtype[Any], fill: Any) -> Any:
    """A fill value as one of `dtype` if that holds it, up to the rounding of floats; else of the type that holds both.

    Raises:
        ColumnError: no type holds both, as for text among numbers.

    Example:
        >>> ints = np.dtype(np.int32)
        >>> promoting_fill_value(ints, -1.0).dtype, promoting_fill_value(ints, 0.5).dtype
        (dtype('int32'), dtype('float64'))
    """
    if dtype == _OBJECT:
        return fill
    try:
        value = fill_value(dtype, fill)
        if dtype.kind not in "biu" or (value == fill).all():
            return value
    except ColumnError:
        if np.asarray(fill).dtype.kind not in "biufc":
            raise
    return np.asarray(fill, np.result_type(dtype, np.asarray(fill).dtype))


def _cast(dtype: np.dtype[Any], fill: Any, where: str, do: str) -> Any:
    if dtype == _OBJECT:
        return fill
    if isinstance(fill, (np.ndarray, np.generic)):
        fill = fill.tolist()  # NumPy's numbers wrap around where Python's are refused
    try:
        with np.errstate(over="ignore"):
            value = np.array(fill, dtype)
        if dtype.kind == "f" and np.isinf(value).any() and (np.isinf(value) != np.isinf(np.asarray(fill, float))).any():
            raise OverflowError
        return value
    except (OverflowError, ValueError, TypeError):
        raise _cannot_hold(dtype, fill, where, do) from None


def _cannot_hold(dtype: np.dtype[Any], fill: Any, where: str, do: str) -> ColumnError:
    expected = f"a fill value that a column of {dtype} can hold"
    return ColumnError(where, expected=expected, found=repr(fill), do=do)
