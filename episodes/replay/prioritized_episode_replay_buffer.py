"""A replay buffer of which steps are drawn in proportion to their priorities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from epibatch.core.errors import CheckpointError, ReplayError
from epibatch.core.restoring import restoring
from epibatch.core.state_codec import require_mapping

from ..store import Ints
from .episode_replay_buffer import EpisodeReplayBuffer
from .lanes import Lanes
from .sampled_episodes import SampledEpisodes
from .sum_tree import SumTree


class PrioritizedEpisodeReplayBuffer(EpisodeReplayBuffer):
    """An `EpisodeReplayBuffer` that draws steps in proportion to priority^alpha (Schaul et al. 2016, arXiv:1511.05952).

    New steps have the highest priority so far. Any number of draws may wait for their priorities, in any order; those
    of steps that were overwritten since are left out.

    Counterparts: RLlib's `PrioritizedEpisodeReplayBuffer`, in which only the newest draw gets priorities.

    Args:
        capacity: As for `EpisodeReplayBuffer`.
        alpha: Exponent of priorities: 0 draws uniformly, 1 in proportion.
        **options: Further arguments of `EpisodeReplayBuffer`.

    Raises:
        ReplayError: a capacity below 2, or a negative alpha.

    Example:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> buffer = PrioritizedEpisodeReplayBuffer(capacity=100, alpha=1.0, seed=0)
        >>> buffer.add(SingleAgentEpisode(observations=[0, 1, 2, 3], actions=[5, 6, 7], rewards=[1.0, 2.0, 3.0],
        ...                               terminated=True, len_lookback_buffer=0))
        >>> drawn = buffer.sample(50)
        >>> buffer.update_priorities(drawn.starts == 1, drawn)  # from now on only step 1
        >>> set(buffer.sample(50).starts.tolist())
        {1}
    """

    def __init__(self, capacity: int = 10_000, *, alpha: float = 1.0, **options: Any) -> None:
        super().__init__(capacity, **options)
        if not alpha >= 0:
            where = "PrioritizedEpisodeReplayBuffer, alpha"
            raise ReplayError(where, expected="a number of at least 0", found=repr(alpha), do="0 draws uniformly")
        self.alpha = alpha
        self._tree = SumTree(0)
        self._highest = 1.0
        self._drawn: SampledEpisodes | None = None

    def _grow(self) -> None:
        before = self.lanes
        super()._grow()
        if self.lanes is before:
            return
        tree = SumTree(self.lanes.num_lanes * self.lanes.rows_per_lane)
        held = self.lanes.places(np.arange(int(self.lanes.filled.sum())))
        tree.set(self.lanes.rows_at(held), self._tree.get(before.rows_at(held)))
        self._tree = tree

    def _written(self, places: Ints) -> None:
        rows = self.lanes.rows_at(places[self.lanes.hold(places)])
        self._tree.set(rows, np.where(self.lanes.are_steps(self.lanes.places_of(rows)), self._highest, 0.0))

    def _candidates(self, count: int) -> Ints:
        masses = self._rng.random(count) * self._tree.total
        return self.lanes.places_of(self._tree.find(masses))

    def _among(self, places: Ints, count: int) -> Ints:
        weights = self._tree.get(self.lanes.rows_at(places))
        total = weights.sum()
        return self._rng.choice(places, count, p=weights / total if total else None)

    def get_state(self) -> dict[str, Any]:
        """Return everything that it holds, with priorities and the state of its random generator."""
        rows = self.lanes.rows_at(self.lanes.places(np.arange(int(self.lanes.filled.sum()))))
        return {**super().get_state(), "priorities": self._tree.get(rows), "highest": self._highest}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` gave; what is added and drawn then is the same, bit for bit.

        Raises:
            CheckpointError: it is something else; the buffer is as it was.
        """
        where = f"state of {type(self).__name__}"
        with restoring(where, "priorities"):
            require_mapping(where, state)
            lanes, highest = Lanes.from_state(state["lanes"]), float(state["highest"])
            priorities = np.array(state["priorities"], np.float64)
            rows = lanes.rows_at(lanes.places(np.arange(int(lanes.filled.sum()))))
            sound = np.isfinite(priorities).all() and priorities.min(initial=highest) >= 0 and np.isfinite(highest)
            if priorities.shape != rows.shape or not sound:
                raise CheckpointError(
                    where,
                    expected=f"{len(rows)} priorities that are finite and not negative",
                    found=_spelled(priorities),
                    do="restore a whole state",
                )
        super().set_state(state)
        self._tree, self._highest, self._drawn = SumTree(self.lanes.num_lanes * self.lanes.rows_per_lane), highest, None
        self._tree.set(rows, priorities)

    def sample(self, num_items: int | None = None, *, beta: float = 0.0, **options: Any) -> SampledEpisodes:
        """Draw parts of episodes, each from a step drawn by its priority, with replacement.

        Args:
            num_items: As for `EpisodeReplayBuffer.sample`, with the further arguments.
            beta: Exponent of the weights that undo the preference, in the batch's column `weights`: 0 leaves it
                as it is, 1 undoes it. The highest weight of a draw is 1.
            **options: Further arguments of `EpisodeReplayBuffer.sample`.

        Raises:
            ReplayError: no step of the buffer is such a start.
        """
        drawn = super().sample(num_items, **options)
        shares = self._tree.get(self.lanes.rows_at(drawn.drawn))
        weights = np.maximum(shares, np.finfo(np.float64).tiny) ** -beta
        drawn.per_chunk = {"weights": (weights / weights.max(initial=0.0)).astype(np.float32)}
        self._drawn = drawn
        return drawn

    def update_priorities(self, priorities: Any, drawn: SampledEpisodes | None = None) -> None:
        """Set the priorities of the steps with which the parts of a draw begin.

        Args:
            priorities: One for each part, not negative: float [C].
            drawn: The draw; default: the newest.

        Raises:
            ReplayError: another number of priorities, one that is negative or not finite, or no draw before.
        """
        drawn = drawn or self._drawn
        values = np.asarray(priorities, np.float64)
        if drawn is None or values.shape != drawn.drawn.shape or not (np.isfinite(values) & (values >= 0)).all():
            raise ReplayError(
                "PrioritizedEpisodeReplayBuffer.update_priorities",
                expected="a draw, and for each of its parts a priority that is finite and not negative",
                found="no draw" if drawn is None else f"{len(drawn)} parts and {_spelled(values)}",
                do="pass the absolute errors of the parts in their order: buffer.update_priorities(errors, drawn)",
            )
        held = self.lanes.hold(drawn.drawn)
        weights = values[held] ** self.alpha
        self._tree.set(self.lanes.rows_at(drawn.drawn[held]), weights)
        self._highest = max(self._highest, float(weights.max(initial=0.0)))


def _spelled(values: Any) -> str:
    wrong = values[~(np.isfinite(values) & (values >= 0))] if values.ndim else values
    return f"an array of shape {values.shape}" + (f" with {wrong.flat[0]}" if wrong.size else "")
