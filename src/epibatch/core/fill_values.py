"""A number that fills rows, in the type of the column it goes into."""

from __future__ import annotations

from typing import Any

import numpy as np

from epibatch.core.errors import ColumnError, explain

__all__ = ["fill_value"]

_OBJECT = np.dtype(object)


def fill_value(dtype: np.dtype[Any], fill: Any) -> Any:
    """A fill value as one of `dtype`; a fraction is cut to a whole number where that is what `dtype` holds.

    Raises:
        ColumnError: `dtype` cannot hold it: a negative number among unsigned ones, NaN among integers.
    """
    if dtype == _OBJECT:
        return fill
    if isinstance(fill, (np.ndarray, np.generic)):
        fill = fill.tolist()  # NumPy's numbers wrap around where Python's are refused
    try:
        return np.array(fill, dtype)
    except (OverflowError, ValueError, TypeError):
        raise ColumnError(
            explain(
                "fill rows",
                expected=f"a fill value that a column of {dtype} can hold",
                found=repr(fill),
                do="fill with another value, or convert what the getter gives without fill",
            )
        ) from None
