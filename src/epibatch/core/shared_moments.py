"""Running moments that several copies keep at once and bring together from time to time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from epibatch.core.errors import StateError
from epibatch.core.running_moments import Floats, RunningMoments

__all__ = ["LeafShapes", "SharedMoments", "merge_shared_moments"]

LeafShapes = dict[str, list[int]]


class SharedMoments:
    """Moments that all copies had at the last merge, and moments of the rows that this copy has added since.

    Storing the two separately makes repeated merging exact: the common part counts once, and the
    rest of each copy once.

    Args:
        shapes: Shape of each leaf that has statistics, by its name, in the order of their columns.
        synchronised: What all copies know.
        since: What only this one has seen.

    Attributes:
        total: Both together.

    Example:
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
        self.total = self.synchronised.merged([self.since]) if self.synchronised.count else self.since

    def add(self, rows: Floats) -> None:
        """Count rows in; see `RunningMoments.add`.

        Args:
            rows: float64, shape [number of rows, entries of all leaves].
        """
        self.since.add(rows)
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
    first = next((copy for copy in copies if copy.synchronised.count), copies[0])
    for i, copy in enumerate(copies):
        copy.check(first.shapes, f"{where}, state {i}")
        if copy.synchronised.count and not copy.synchronised.same_as(first.synchronised):
            raise StateError(
                f"{where}, state {i}",
                expected=f"a copy last synchronised with the others, at {first.synchronised.count} rows",
                found=f"one last synchronised at {copy.synchronised.count} rows, with another state",
                do="give all copies the merged state (set_state) each time before any of them goes on; "
                "what this one has seen cannot be told from what the others know already",
            )
    known = first.synchronised.merged([copy.since for copy in copies])
    return SharedMoments(first.shapes, known, RunningMoments(len(known.mean))).to_state()


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
