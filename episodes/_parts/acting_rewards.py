"""Reward buffer of a `Policy`. It raises if the caller gave no reward."""

from __future__ import annotations

from typing import Any

import numpy as np

from epibatch.core.errors import ColumnError

from ..arrays import Leaf
from ..indexing import Positions
from ..infinite_lookback_buffer import InfiniteLookbackBuffer


class ActingRewards(InfiniteLookbackBuffer):
    """A buffer of rewards. Reading a reward that the caller did not give (NaN) is an error.

    Examples:
        >>> rewards = ActingRewards([1.0, float("nan")])
        >>> float(rewards.get(0))
        1.0
        >>> rewards.get(-1)
        Traceback (most recent call last):
            ...
        epibatch.core.errors.ColumnError: rewards of the steps before
          expected: a number for each, as they are read here
          found:    none for 1 of them: reward= was left out
          do:       policy.act(obs, state, reward=reward)
    """

    __slots__ = ()

    def rows(self, start: int, stop: int) -> list[Leaf]:
        """The leaves of rows `start` to `stop`, counted from the chunk's start.

        Raises:
            ColumnError: the caller did not give a reward among them.
        """
        leaves = super().rows(start, stop)
        for leaf in leaves:
            known(leaf)
        return leaves

    def _row(self, position: int) -> Any:
        return known(super()._row(position))

    def _span(self, start: int, stop: int) -> Any:
        return known(super()._span(start, stop))

    def _rows(self, positions: Positions) -> Any:
        return known(super()._rows(positions))


def known(rewards: Any) -> Any:
    """Return the rewards, as they are.

    Raises:
        ColumnError: there is NaN among them, which marks a reward that the caller did not give.
    """
    missing = int(np.isnan(rewards).sum())
    if missing:
        raise ColumnError(
            "rewards of the steps before",
            expected="a number for each, as they are read here",
            found=f"none for {missing} of them: reward= was left out",
            do="policy.act(obs, state, reward=reward)",
        )
    return rewards
