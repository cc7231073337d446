"""Learners that update together."""

from __future__ import annotations

from typing import Any


class Learners:
    """The learners that update together, as one of them sees the others; of this class itself, one that is alone.

    Each learner has its own share of the episodes. All learners call the same methods in the same order.

    Attributes:
        index: the number of this learner, from 1 to `count`.
        count: the number of learners.

    Examples:
        >>> Learners().gather("one learner")
        ['one learner']
    """

    index: int = 1
    count: int = 1

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all learners, in the order of their indexes.

        Args:
            value: This learner's value; it can be pickled.

        Raises:
            WorkerLostError: the connection to another learner is lost.
        """
        return [value]

    def add_up(self, tensor: Any) -> None:
        """Replace the entries of a tensor by their sums over all learners, which are the same on all of them.

        Args:
            tensor: floats, of the same shape and type on all learners.

        Raises:
            WorkerLostError: the connection to another learner is lost.
        """
