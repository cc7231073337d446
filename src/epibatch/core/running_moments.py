"""Running mean and variance of rows, exact however the rows are spread and in whatever order they come."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from epibatch.core.errors import ColumnError, EpibatchWarning, StateError

__all__ = ["HUGE", "LARGEST", "RunningMoments", "warn_of_huge"]

Floats = npt.NDArray[np.float64]

LARGEST = np.float64(1e100)  # of a type of its own: float32 rows are compared as float64
"""The largest absolute value that is counted; squares of larger ones leave no room in a float64."""


HUGE = np.float64(1e15)
"""From here on one value decides the deviation alone, so that ordinary ones come out as 0."""


def warn_of_huge(where: str, value: float, kind: str) -> None:
    """Warn that a huge value was counted.

    Args:
        where: Where it was met.
        value: The value.
        kind: What it is: "observations", say.
    """
    warning = EpibatchWarning(
        where,
        expected=f"{kind} of at most {HUGE:g}",
        found=f"{value:g}; its deviation is now so large that ordinary {kind} come out as 0",
        do="correct the environment, or clip or replace such values with a piece before this one",
    )
    warnings.warn(warning, stacklevel=2)


class RunningMoments:
    """Count, mean and sum of squared deviations of all rows seen, each column by itself.

    A batch of rows is added in one step, and two of these are merged, with the formula of Chan,
    Golub and LeVeque (1979), "Updating formulae and a pairwise algorithm for computing sample
    variances"; for a single row it is Welford's (1962). Up to float64 rounding the result is that
    of all rows at once.

    Args:
        size: Number of columns.

    Attributes:
        largest: The largest absolute value that this object has counted; it is no part of the state.

    Example:
        >>> moments = RunningMoments(1)
        >>> moments.add(np.array([[1.0], [2.0]]))
        >>> moments.add(np.array([[6.0]]))
        >>> moments.count, moments.mean, moments.std() ** 2
        (3, array([3.]), array([7.]))
    """

    __slots__ = ("count", "largest", "mean", "squares")

    def __init__(self, size: int) -> None:
        self.count = 0
        self.largest = 0.0
        self.mean: Floats = np.zeros(size)
        self.squares: Floats = np.zeros(size)

    def add(self, rows: Floats) -> None:
        """Count rows in.

        Args:
            rows: float64, shape [number of rows, size].

        Raises:
            ColumnError: a value is NaN, or its absolute value is above 1e100; nothing was counted.
        """
        largest = float(np.abs(rows).max(initial=0.0))
        if not largest <= LARGEST:
            raise ColumnError(
                "running moments",
                expected=f"finite numbers of at most {LARGEST:g}",
                found=f"one of {largest:g}",
                do="correct what makes such values, or clip them first",
            )
        count = len(rows)
        if count == 1:
            self._add(1, rows[0], 0.0)
        elif count:
            mean = np.add.reduce(rows, 0) / count
            deviations = rows - mean
            deviations *= deviations
            self._add(count, mean, np.add.reduce(deviations, 0))
        if largest > self.largest:
            self.largest = largest

    def _add(self, count: int, mean: Floats, squares: Floats | float) -> None:
        total = self.count + count
        delta = mean - self.mean
        self.squares = self.squares + squares
        self.squares += delta * delta * (self.count * count / total)
        delta *= count / total
        delta += self.mean
        self.mean, self.count = delta, total

    def merged(self, others: Iterable[RunningMoments]) -> RunningMoments:
        """The moments of this one's rows and those of others, which must be rows of their own."""
        result = RunningMoments(len(self.mean))
        result.count, result.mean, result.squares = self.count, self.mean, self.squares
        for other in others:
            if other.count:
                result._add(other.count, other.mean, other.squares)
        return result

    def std(self) -> Floats:
        """Standard deviation of each column, with n - 1 in the denominator; 0 for fewer than two rows."""
        deviation: Floats = np.sqrt(self.squares / max(self.count - 1, 1))
        return deviation

    def same_as(self, other: RunningMoments) -> bool:
        """True if both are equal bit by bit."""
        return (
            self.count == other.count
            and np.array_equal(self.mean, other.mean)
            and np.array_equal(self.squares, other.squares)
        )

    def to_state(self) -> dict[str, Any]:
        """The moments as plain data: `count`, `mean` and `squares` (copies)."""
        return {"count": self.count, "mean": self.mean.copy(), "squares": self.squares.copy()}

    @classmethod
    def from_state(cls, state: Any) -> RunningMoments:
        """The moments that `to_state` described.

        Raises:
            StateError: something else.
        """
        moments = cls(0)
        try:
            count, mean, squares = state["count"], np.array(state["mean"]), np.array(state["squares"])
        except (KeyError, TypeError, ValueError) as error:
            raise _no_moments(f"{type(error).__name__}: {error}") from error
        kinds = mean.dtype.kind + squares.dtype.kind
        if mean.ndim != 1 or mean.shape != squares.shape or set(kinds) - set("fiu"):
            raise _no_moments(f"mean of shape {mean.shape}, squares of shape {squares.shape}, of kinds {kinds}")
        if not isinstance(count, (int, np.integer)) or isinstance(count, bool) or count < 0:
            raise _no_moments(f"a count of {count!r}")
        if not np.isfinite([mean, squares]).all() or (squares < 0).any() or (not count and np.any([mean, squares])):
            raise _no_moments(f"numbers that no {count} rows have: mean {mean}, squares {squares}")
        moments.count = int(count)
        moments.mean, moments.squares = mean.astype(np.float64), squares.astype(np.float64)
        return moments

    def __repr__(self) -> str:
        return f"RunningMoments(count={self.count}, size={len(self.mean)})"


def _no_moments(found: str) -> StateError:
    keys: Mapping[str, str] = {"count": "rows", "mean": "one number per column", "squares": "one number per column"}
    return StateError(
        "state of running moments",
        expected="; ".join(f"{key!r}: {meaning}" for key, meaning in keys.items()),
        found=found,
        do="pass what to_state() gave",
    )
