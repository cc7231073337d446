"""Running mean and variance of rows, exact in whatever order they come, also when several copies count them.

Copies are brought together from time to time.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from epibatch.core.errors import ColumnError, ConfigError, EpibatchWarning, StateError
from epibatch.core.structs import convert_to_numpy

__all__ = [
    "HUGE",
    "LARGEST",
    "LeafShapes",
    "RunningMoments",
    "SharedMoments",
    "merge_shared_moments",
    "moments_of",
    "pooled_moments",
    "prior_moments",
    "rebased",
    "unsynchronised",
    "warn_of_huge",
]

Floats = npt.NDArray[np.float64]

LARGEST = np.float64(1e100)  # of a type of its own: float32 rows are compared as float64
"""The largest absolute value that is counted; squares of larger ones leave no room in a float64."""


HUGE = np.float64(1e15)
"""From here on one value decides the deviation alone, so that ordinary ones come out as 0."""


def prior_moments(piece: str, prior: Any, row: Callable[[Any], Floats]) -> RunningMoments:
    """Return the moments of rows that a piece is to have seen before it began.

    Args:
        piece: Name of the piece, for messages.
        prior: `(count, mean, std)`.
        row: Makes a float64 [size] of a mean or a deviation; raises ValueError or TypeError for something else.

    Raises:
        ConfigError: something else than that.
    """
    try:
        count, mean, std = prior
        count, mean, std = float(count), row(mean), row(std)
        if 0 < count < math.inf and np.isfinite([mean, std]).all() and (std >= 0).all():
            return RunningMoments.of(count, mean, std)
        found = repr(prior)
    except (TypeError, ValueError, KeyError) as error:
        found = f"{prior!r}: {error}"
    raise ConfigError(
        f"{piece}.prior",
        expected="(count, mean, std): how many rows they count for, and finite numbers, one or one for each entry",
        found=found,
        do="write say (1000, 0.0, 1.0)",
    )


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
        count: Number of rows, an int; of each column, float64 [size], since `add` was given `present` or `decay`.
        kept: What of earlier rows' weight `decay` has left: a factor, or one for each column.
        lost: The count less the sum of squared weights, both of which are the number of rows without `decay`: 0.0, or
            one number for each column.
        largest: The largest absolute value that this object has counted; it is no part of the state.

    Examples:
        >>> moments = RunningMoments(1)
        >>> moments.add(np.array([[1.0], [2.0]]))
        >>> moments.add(np.array([[6.0]]))
        >>> moments.count, moments.mean, moments.std() ** 2
        (3, array([3.]), array([7.]))
    """

    __slots__ = ("count", "kept", "largest", "lost", "mean", "squares")

    def __init__(self, size: int) -> None:
        self.count: Any = 0
        self.kept: Any = 1.0
        self.lost: Any = 0.0
        self.largest = 0.0
        self.mean: Floats = np.zeros(size)
        self.squares: Floats = np.zeros(size)

    @classmethod
    def of(cls, count: float, mean: Floats, std: Floats) -> RunningMoments:
        """The moments of rows with this mean and standard deviation."""
        moments = cls(0)
        moments.mean, moments.count = mean, mean * 0 + count
        moments.squares = std * std * _one_or_more(moments.count - 1)
        return moments

    def add(self, rows: Any, present: Any = None, decay: float = 1.0) -> None:
        """Count rows in.

        Args:
            rows: float64, shape [number of rows, size]; tensors where the moments are, see `place_beside`.
            present: Bool, shape of rows: which entries count; the others must be 0. None: all.
            decay: Each row makes the weight of those of earlier calls this many times as large.

        Raises:
            ColumnError: a value is NaN, or its absolute value is above 1e100; nothing was counted.
        """
        on_device, count = not isinstance(rows, np.ndarray), len(rows)
        if not count:
            return
        largest = float(abs(rows).max() if rows.shape[1] else 0.0)
        if not largest <= LARGEST:
            raise ColumnError(
                "running moments",
                expected=f"finite numbers of at most {LARGEST:g}",
                found=f"one of {largest:g}",
                do="correct what makes such values, or clip them first",
            )
        if decay != 1.0:
            factor = decay ** (count if present is None else present.sum(0) * 1.0)
            earlier = self.scaled(factor)
            self.count, self.squares, self.lost = earlier.count, earlier.squares, earlier.lost
            self.kept = self.kept * factor
        if present is not None:
            counts = present.sum(0) * 1.0
            mean = rows.sum(0) / _one_or_more(counts)
            deviations = (rows - mean) * present
            self._add(counts, mean, (deviations * deviations).sum(0))
        elif count == 1:
            self._add(1, rows[0], 0.0)
        else:
            mean = rows.mean(0) if on_device else np.add.reduce(rows, 0) / count
            deviations = rows - mean
            deviations *= deviations
            self._add(count, mean, deviations.sum(0) if on_device else np.add.reduce(deviations, 0))
        if largest > self.largest:
            self.largest = largest

    def __bool__(self) -> bool:
        """False if no rows were counted."""
        return not isinstance(self.count, int) or self.count > 0

    def _add(self, count: Any, mean: Floats, squares: Floats | float) -> None:
        total = _one_or_more(self.count + count)
        delta = mean - self.mean
        self.squares = self.squares + squares
        self.squares += delta * delta * (self.count * count / total)
        delta *= count / total
        delta += self.mean
        self.mean, self.count = delta, self.count + count

    def scaled(self, factor: Any) -> RunningMoments:
        """The same moments of rows whose weights are multiplied by a factor, or by one for each column."""
        result = RunningMoments(0)
        result.count, result.mean, result.squares = self.count, self.mean, self.squares
        result.kept, result.lost = self.kept, self.lost
        if self and not (isinstance(factor, float) and factor == 1.0):
            result.count, result.squares = self.count * factor + 0 * self.mean, self.squares * factor
            result.lost = result.count * (1 - factor) + factor * factor * self.lost
        return result

    def place_beside(self, rows: Any) -> None:
        """Move the moments to the device of rows that are tensors; to arrays for rows that are arrays."""
        for name in ("mean", "squares", "count", "kept", "lost"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)):
                values = convert_to_numpy(value)
                setattr(self, name, values if isinstance(rows, np.ndarray) else rows.new_tensor(values))

    def merged(self, others: Sequence[RunningMoments]) -> RunningMoments:
        """The moments of this one's rows and those of others, which must be rows of their own, at the same later time.

        If the others were counted with `decay`, all of their rows decay this one's; they do not decay each other.
        """
        kept: Any = math.prod((other.kept for other in others), start=1.0)
        result = self.scaled(kept)
        result.kept = self.kept * kept
        for other in others:
            if other:
                result._add(other.count, other.mean, other.squares)
                result.lost = result.lost + other.lost
        return result

    def std(self) -> Floats:
        """Standard deviation of each column; 0 for fewer than two rows.

        The denominator of the variance is n - 1. With weights w it is sum(w) - sum(w^2) / sum(w), which makes the
        variance unbiased for them, too.
        """
        variance = self.squares / self._freedom()
        deviation: Floats = np.sqrt(variance) if isinstance(variance, np.ndarray) else variance.sqrt()
        return deviation

    def _freedom(self) -> Any:
        if isinstance(self.count, int):
            return _one_or_more(self.count - 1)
        freedom = self.count - 1 + self.lost / self.count.clip(1e-300)
        return freedom + (1 - freedom).clip(0) * (self.lost == 0)  # at least 1 without decay

    def same_as(self, other: RunningMoments) -> bool:
        """True if both are equal bit by bit."""
        return all(
            np.array_equal(getattr(self, part), getattr(other, part)) for part in self.__slots__ if part != "largest"
        )

    def to_state(self) -> dict[str, Any]:
        """The moments as plain data: `count`, `mean` and `squares` (copies)."""
        mean, squares = convert_to_numpy((self.mean, self.squares))
        count = self.count if isinstance(self.count, int) else np.array(convert_to_numpy(self.count))
        kept = {} if isinstance(self.kept, float) and self.kept == 1.0 else {"kept": convert_to_numpy(self.kept)}
        lost = {} if isinstance(self.lost, float) else {"lost": np.array(convert_to_numpy(self.lost))}
        return {"count": count, "mean": np.array(mean), "squares": np.array(squares), **kept, **lost}

    @classmethod
    def from_state(cls, state: Any) -> RunningMoments:
        """The moments that `to_state` described.

        Raises:
            StateError: something else.
        """
        moments = cls(0)
        try:
            count, mean, squares = state["count"], np.array(state["mean"]), np.array(state["squares"])
            kept, lost = (np.asarray(state.get(*item), np.float64) for item in (("kept", 1.0), ("lost", 0.0)))
        except (KeyError, TypeError, ValueError) as error:
            raise _no_moments(f"{type(error).__name__}: {error}") from error
        kinds = mean.dtype.kind + squares.dtype.kind
        if mean.ndim != 1 or mean.shape != squares.shape or set(kinds) - set("fiu"):
            raise _no_moments(f"mean of shape {mean.shape}, squares of shape {squares.shape}, of kinds {kinds}")
        if kept.shape not in ((), mean.shape) or not ((kept >= 0) & (kept <= 1)).all():
            raise _no_moments(f"kept {kept}, which are no factors from 0 to 1")
        if lost.shape not in ((), mean.shape) or not ((lost >= 0) & (lost < math.inf)).all():
            raise _no_moments(f"lost {lost}, which no weights have")
        if np.any(count):  # others have decayed nothing
            moments.kept = kept if kept.ndim else float(kept)
            moments.lost = lost if lost.ndim else float(lost)
        if isinstance(count, np.ndarray) and count.shape == mean.shape and (count >= 0).all():
            if np.any([mean, squares], 0)[count == 0].any() or not np.isfinite([mean, squares, count]).all():
                raise _no_moments(f"numbers that no {count} rows have: mean {mean}, squares {squares}")
            moments.count = count.astype(np.float64) if count.any() else 0
            moments.mean, moments.squares = mean.astype(np.float64), squares.astype(np.float64)
            return moments
        if not isinstance(count, (int, np.integer)) or isinstance(count, bool) or not 0 <= count < 2**63:
            raise _no_moments(f"a count of {count!r}")
        if not np.isfinite([mean, squares]).all() or (squares < 0).any() or (not count and np.any([mean, squares])):
            raise _no_moments(f"numbers that no {count} rows have: mean {mean}, squares {squares}")
        moments.count = int(count)
        moments.mean, moments.squares = mean.astype(np.float64), squares.astype(np.float64)
        return moments

    def __repr__(self) -> str:
        return f"RunningMoments(count={self.count}, size={len(self.mean)})"


def _one_or_more(count: Any) -> Any:
    return max(count, 1) if isinstance(count, int) else count.clip(1)


def _no_moments(found: str) -> StateError:
    keys: Mapping[str, str] = {"count": "rows", "mean": "one number per column", "squares": "one number per column"}
    return StateError(
        "state of running moments",
        expected="; ".join(f"{key!r}: {meaning}" for key, meaning in keys.items()),
        found=found,
        do="pass what to_state() gave",
    )


LeafShapes = dict[str, list[int]]


class SharedMoments:
    """Moments that all copies had at the last merge, and moments of the rows that this copy has added since.

    Storing the two separately makes repeated merging exact: the common part counts once, and the
    rest of each copy once. With `decay`, all rows since the last merge decay the common part. Rows of different copies
    since then do not decay each other, since nothing tells which came first.

    Args:
        shapes: Shape of each leaf that has statistics, by its name, in the order of their columns.
        synchronised: What all copies know.
        since: What only this one has seen.

    Attributes:
        total: Both together.

    Examples:
        >>> import numpy as np
        >>> copies = [SharedMoments.nothing({"x": [1]}) for _ in range(2)]
        >>> for _ in range(2):  # two rounds
        ...     copies[0].add(np.array([[1.0], [2.0]]))
        ...     copies[1].add(np.array([[6.0]]))
        ...     merged = merge_shared_moments([copy.to_state() for copy in copies], "example")
        ...     copies = [SharedMoments.from_state(merged, "example") for _ in copies]
        >>> copies[0].total.count, copies[0].total.mean
        (6, array([3.]))
    """

    __slots__ = ("shapes", "since", "synchronised", "total")

    def __init__(self, shapes: LeafShapes, synchronised: RunningMoments, since: RunningMoments) -> None:
        self.shapes, self.synchronised, self.since = shapes, synchronised, since
        self._add_up()

    @classmethod
    def nothing(cls, shapes: LeafShapes) -> SharedMoments:
        """No rows seen yet."""
        return cls(shapes, RunningMoments(_size(shapes)), RunningMoments(_size(shapes)))

    def _add_up(self) -> None:
        self.total = self.synchronised.merged([self.since]) if self.synchronised else self.since

    def add(self, rows: Any, present: Any = None, decay: float = 1.0) -> None:
        """Count rows in; see `RunningMoments.add`.

        Args:
            rows: float64, shape [number of rows, entries of all leaves].
            present: Bool, shape of rows: which entries count; None: all.
            decay: Factor of the weight of earlier rows, for each row.
        """
        self.since.add(rows, present, decay)
        self._add_up()

    def place_beside(self, rows: Any) -> None:
        """Move all moments to the device of rows that are tensors; to arrays for rows that are arrays."""
        if getattr(rows, "device", None) != getattr(self.total.mean, "device", None):
            for moments in (self.synchronised, self.since):
                moments.place_beside(rows)
            self._add_up()

    def to_state(self) -> dict[str, Any]:
        """Plain data: `synchronised` and `since` (see `RunningMoments.to_state`), and `leaves`, the shapes."""
        leaves = {name: list(shape) for name, shape in self.shapes.items()}
        return {"synchronised": self.synchronised.to_state(), "since": self.since.to_state(), "leaves": leaves}

    @classmethod
    def from_state(cls, state: Any, where: str) -> SharedMoments:
        """The moments that `to_state` described.

        Args:
            state: What `to_state` gave.
            where: Whose state it is, for messages.

        Raises:
            StateError: something else.
        """
        keys = ("synchronised", "since", "leaves")
        if not isinstance(state, dict) or set(keys) - state.keys() or not isinstance(state["leaves"], dict):
            raise _unknown(where, f"keys {sorted(map(str, state))}" if isinstance(state, dict) else repr(state))
        leaves = state["leaves"]
        if not all(isinstance(name, str) and _is_shape(leaves[name]) for name in leaves):
            raise _unknown(where, f"leaves {leaves}")
        shapes = {name: [int(axis) for axis in leaves[name]] for name in sorted(leaves)}
        synchronised, since = (RunningMoments.from_state(state[part]) for part in keys[:2])
        for moments in (synchronised, since):
            if len(moments.mean) != _size(shapes):
                raise _unknown(where, f"{len(moments.mean)} entries for leaves of {_size(shapes)}")
        return cls(shapes, synchronised, since)

    def check(self, shapes: LeafShapes, where: str) -> None:
        """Make sure that these are moments of such leaves.

        Raises:
            StateError: they are not.
        """
        if self.shapes != shapes:
            raise StateError(
                where,
                expected=f"statistics of {shapes}",
                found=str(self.shapes),
                do="use the state of a piece for the same observation space",
            )


def merge_shared_moments(states: Sequence[Any], where: str) -> dict[str, Any]:
    """One state that knows what any copy has seen; to be given to each before it goes on.

    Args:
        states: What `to_state` of each copy gave; of one copy, too.
        where: Whose states they are, for messages.

    Raises:
        StateError: states of other leaves, or of copies that were last brought together with
            different states. Copies that never were may be among them.
    """
    copies = [SharedMoments.from_state(state, f"{where}, state {i}") for i, state in enumerate(states)]
    first = next((copy for copy in copies if copy.synchronised), copies[0])
    for i, copy in enumerate(copies):
        copy.check(first.shapes, f"{where}, state {i}")
        if copy.synchronised and not copy.synchronised.same_as(first.synchronised):
            raise StateError(
                f"{where}, state {i}",
                expected=f"a copy last synchronised with the others, at {first.synchronised.count} rows",
                found=f"one last synchronised at {copy.synchronised.count} rows, with another state",
                do="give all copies the merged state (set_state) each time before any of them goes on; "
                "what this one has seen cannot be told from what the others know already",
            )
    moments = first.synchronised.merged([copy.since for copy in copies])
    return SharedMoments(first.shapes, moments, RunningMoments(len(moments.mean))).to_state()


def rebased(state: Any, base: Any) -> Any:
    """Return the state of a copy as if it had been synchronised with `base` before it saw what is new to it.

    Statistics keep apart what all copies knew at the last merge (`synchronised`) and what this copy has seen
    (`since`). Wherever a dict of the state has both keys, `synchronised` becomes that of the base at the same place.
    The states of copies that were synchronised at different times can then be merged: each counts once.

    Args:
        state: What `get_state` of a piece or pipeline gave, or a part of it.
        base: What `merge_states` gave for all copies so far; places that it lacks stay as they are.

    Returns:
        The state, in new dicts; arrays are shared with `state` and `base`.

    Examples:
        >>> base = SharedMoments.nothing({"x": [1]})
        >>> base.add(np.array([[1.0], [2.0]]))
        >>> base = merge_shared_moments([base.to_state()], "example")
        >>> late = SharedMoments.nothing({"x": [1]})  # it began before the base was merged
        >>> late.add(np.array([[6.0]]))
        >>> merged = merge_shared_moments([base, rebased(late.to_state(), base)], "example")
        >>> SharedMoments.from_state(merged, "example").total.mean
        array([3.])
    """
    if not isinstance(state, Mapping) or not isinstance(base, Mapping):
        return state
    result = {name: rebased(part, base.get(name)) for name, part in state.items()}
    if {"synchronised", "since"} <= state.keys():
        result["synchronised"] = base.get("synchronised", state["synchronised"])
        result["since"] = state["since"]
    return result


def unsynchronised(state: Any) -> Any:
    """Return the state of a copy as if it had never been synchronised: only what it has seen since the last time.

    Args:
        state: What `get_state` of a piece or pipeline gave, or a part of it; see `rebased`.

    Returns:
        The state, in new dicts; wherever a dict has `synchronised` and `since`, the numbers of the first are 0.

    Examples:
        >>> unsynchronised({"piece": {"synchronised": {"count": 7}, "since": {"count": 2}}})
        {'piece': {'synchronised': {'count': 0}, 'since': {'count': 2}}}
    """
    if not isinstance(state, Mapping):
        return state
    result = {name: unsynchronised(part) for name, part in state.items()}
    if {"synchronised", "since"} <= state.keys():
        result["synchronised"], result["since"] = _zeros(state["synchronised"]), state["since"]
    return result


def _zeros(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _zeros(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_zeros, value))
    if isinstance(value, (np.ndarray, np.generic)):
        return np.zeros_like(value)[()]
    return type(value)() if isinstance(value, (int, float)) else value


def moments_of(values: Floats) -> Floats:
    """Return the count, mean and sum of squared deviations of values, float64 [3]; of no values zeros.

    Args:
        values: float64 [N]; others than finite ones give NaN.
    """
    if not len(values):
        return np.zeros(3)
    mean = values.mean()
    return np.array([len(values), mean, np.square(values - mean).sum()])


def pooled_moments(parts: Sequence[Floats]) -> Floats:
    """Return the moments of all values from those of parts of them.

    Args:
        parts: What `moments_of` gave for each part, float64 [3]; or several of these side by side, [3, ...].

    Examples:
        >>> pooled_moments([moments_of(np.array([1.0, 2.0])), moments_of(np.array([6.0]))])
        array([ 3.,  3., 14.])
    """
    counts, means, squares = np.stack(parts, axis=1)
    count = counts.sum(0)
    mean = (counts * means).sum(0) / np.maximum(count, 1)
    return np.stack([count, mean, squares.sum(0) + (counts * np.square(means - mean)).sum(0)])


def _size(shapes: LeafShapes) -> int:
    return sum(map(math.prod, shapes.values()))


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, (list, tuple)) and all(type(axis) is int and axis >= 0 for axis in shape)


def _unknown(where: str, found: str) -> StateError:
    return StateError(
        where,
        expected="a state with the keys 'synchronised', 'since' and 'leaves', of one size",
        found=found,
        do="pass what get_state or merge_states gave",
    )
