"""Comparison of two batches."""

from __future__ import annotations

from typing import Any

from epibatch.core.structs import convert_to_numpy
from epibatch.testing.comparing import differences


def compare_batches(theirs: Any, ours: Any, *, rtol: float = 0.0, atol: float = 0.0) -> list[str]:
    """Return the differences of two batches as sentences; none if they are equal.

    The function compares nesting, columns, shapes, types and values; NaN equals NaN. Tensors and arrays compare by
    their values, lists of numbers by the arrays made from them.

    Args:
        theirs: RLlib's batch: a dict of columns, per module or not, of any nesting.
        ours: The batch to compare with it.
        rtol: Relative tolerance of floating-point values; 0 requires bit-identical values.
        atol: Absolute tolerance of floating-point values.

    Examples:
        >>> import numpy as np
        >>> compare_batches({"obs": np.zeros((3, 2)), "t": [1, 2]}, {"obs": np.zeros((3, 2), np.float32), "t": [1, 3]})
        ['obs: float64 in RLlib, float32 here', 't: 1 of 2 values differ, first at (1,): 2 in RLlib, 3 here']
    """
    batches = convert_to_numpy(theirs), convert_to_numpy(ours)
    return list(differences(*batches, ("in RLlib", "here"), rtol=rtol, atol=atol))
