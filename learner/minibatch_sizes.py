"""Sizes of an epoch's minibatches when rows hold different numbers of timesteps."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["REMAINDERS", "minibatch_sizes"]

REMAINDERS = ("keep", "drop", "spread")


def minibatch_sizes(steps: npt.NDArray[np.int64], size: int | None, remainder: str) -> list[int]:
    """Divide rows, in their order, into minibatches of about `size` timesteps.

    A row is never divided. A minibatch ends with the row that makes it nearest to `size`, and has at least one row.
    With one timestep per row it has exactly `size` rows.

    Args:
        steps: int64 [R], the timesteps of each row; R >= 1.
        size: timesteps per minibatch, None for one minibatch of all rows.
        remainder: handling of the rows at the end that do not reach `size`: "keep" yields them, "drop" leaves
            them out unless they are the only ones, "spread" makes `sum(steps) // size` minibatches as equal as rows
            allow.

    Returns:
        Rows per minibatch; their sum is R, or less with "drop".

    Example:
        >>> minibatch_sizes(np.array([4, 4, 1, 4, 2, 4]), size=8, remainder="keep")
        [2, 3, 1]
    """
    ends = np.cumsum(steps)
    rows, total = len(ends), int(ends[-1])
    if size is None or total <= size:
        return [rows]
    left = min(rows, total // size) if remainder == "spread" else 0
    sizes: list[int] = []
    start = done = 0
    while start < rows:
        goal = done + ((total - done) / left if left else size)
        if left == 1:
            stop = rows
        elif goal > total:  # the rows left are too few
            if remainder == "drop" and sizes:
                break
            stop = rows
        else:
            stop = _nearest(ends, goal, first=start + 1, last=rows - max(0, left - 1))
        sizes.append(stop - start)
        start, done, left = stop, int(ends[stop - 1]), left - 1 if left else 0
    return sizes


def _nearest(ends: npt.NDArray[np.int64], goal: float, *, first: int, last: int) -> int:
    """Return the number of rows, from `first` to `last`, with the timesteps nearest to `goal`; of two, the larger."""
    reached = int(np.searchsorted(ends, goal)) + 1
    if reached > first and goal - ends[reached - 2] < ends[reached - 1] - goal:
        reached -= 1
    return min(max(reached, first), last)
