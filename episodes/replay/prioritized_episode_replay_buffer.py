"""A replay buffer of which steps are drawn in proportion to their priorities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from epibatch.core.errors import CheckpointError, ReplayError
from epibatch.core.restoring import restoring
from epibatch.core.state_codec import require_mapping

from ..chunk_table import ChunkTable
from ..store import Ints
from .episode_replay_buffer import EpisodeReplayBuffer
from .sampled_episodes import SampledEpisodes
from .sum_tree import SumTree, Weights

Draw = TypeVar("Draw", bound=ChunkTable)


class PrioritizedEpisodeReplayBuffer(EpisodeReplayBuffer):
    """An `EpisodeReplayBuffer` that draws steps in proportion to priority^alpha (Schaul et al. 2016, arXiv:1511.05952).

    New steps have the highest priority so far. Any number of draws may wait for their priorities, in any order; those
    of steps that were overwritten since are left out.

    Counterparts: RLlib's `PrioritizedEpisodeReplayBuffer`, in which only the newest draw gets priorities.

    Args:
        capacity: As for `EpisodeReplayBuffer`.
        alpha: Exponent of priorities: 0 draws uniformly, 1 in proportion.
        eta: Share of the highest error in the priority of a sequence; the rest is the mean error of its steps
            (Kapturowski et al. 2019, R2D2).
        **options: Further arguments of `EpisodeReplayBuffer`.

    Raises:
        ReplayError: an argument out of its range.

    Examples:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> buffer = PrioritizedEpisodeReplayBuffer(capacity=100, alpha=1.0, seed=0)
        >>> buffer.add(SingleAgentEpisode(observations=[0, 1, 2, 3], actions=[5, 6, 7], rewards=[1.0, 2.0, 3.0],
        ...                               terminated=True, len_lookback_buffer=0))
        >>> drawn = buffer.sample(50)
        >>> buffer.update_priorities(drawn.starts == 1, drawn)  # from now on only step 1
        >>> set(buffer.sample(50).starts.tolist())
        {1}
    """

    def __init__(self, capacity: int = 10_000, *, alpha: float = 1.0, eta: float = 0.9, **options: Any) -> None:
        super().__init__(capacity, **options)
        if not alpha >= 0:
            where = "PrioritizedEpisodeReplayBuffer, alpha"
            raise ReplayError(where, expected="a number of at least 0", found=repr(alpha), do="0 draws uniformly")
        if not 0 <= eta <= 1:
            where = "PrioritizedEpisodeReplayBuffer, eta"
            raise ReplayError(where, expected="a number from 0 to 1", found=repr(eta), do="0 takes mean errors")
        self.alpha, self.eta = alpha, eta
        self._tree = SumTree(0)
        self._highest = 1.0
        self._weight: float | None = None  # of the steps that are added now, if it was given
        self._drawn: SampledEpisodes | None = None

    def add(self, episodes: Any, weight: float | None = None, *, source: Any = 0) -> None:
        """Add the steps of episodes; see `EpisodeReplayBuffer.add`.

        Args:
            episodes: As there.
            weight: The priority of the new steps; None: the highest so far.
            source: As there.

        Raises:
            ColumnError: as there.
            ReplayError: as there, or a weight that is negative or not finite. Nothing was added.
        """
        if weight is not None:
            with np.errstate(over="ignore"):
                power = float(np.float64(weight) ** self.alpha) if weight >= 0 else np.nan
            if not np.isfinite(power):
                where = f"{type(self).__name__}.add, weight"
                raise ReplayError(where, expected="a finite number of at least 0", found=repr(weight), do="change it")
            self._weight = power
        try:
            super().add(episodes, source=source)
        finally:
            self._weight = None

    def _grow(self) -> None:
        before = self.lanes
        super()._grow()
        if self.lanes is before:
            return
        tree = SumTree(self.lanes.num_lanes * self.lanes.rows_per_lane)
        held = self.lanes.newest()
        tree.set(self.lanes.rows_at(held), self._tree.get(before.rows_at(held)))
        self._tree = tree

    def _written(self, places: Ints) -> None:
        rows = self.lanes.rows_at(places[self.lanes.hold(places)])
        weight = self._highest if self._weight is None else self._weight
        self._tree.set(rows, np.where(self.lanes.are_steps(self.lanes.places_of(rows)), weight, 0.0))

    def _candidates(self, count: int) -> Ints:
        masses = self._rng.random(count) * self._preferred(self._tree.total)
        return self.lanes.places_of(self._tree.find(masses))

    def _among(self, places: Ints, count: int) -> Ints:
        weights = self._tree.get(self.lanes.rows_at(places))
        return self._rng.choice(places, count, p=weights / self._preferred(float(weights.sum())))

    def _preferred(self, total: float) -> float:
        """The sum of some priorities, if one of them is above 0."""
        if total > 0:
            return total
        do = "give priorities above 0: buffer.update_priorities(errors + 1e-6, drawn)"
        raise ReplayError(self._where, expected="a step with a priority above 0", found="none that may be drawn", do=do)

    def get_state(self) -> dict[str, Any]:
        """Return everything that it holds, with priorities and the state of its random generator."""
        rows = self.lanes.rows_at(self.lanes.newest())
        return {**super().get_state(), "priorities": self._tree.get(rows), "highest": self._highest}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` gave; what is added and drawn then is the same, bit for bit.

        Raises:
            CheckpointError: it is something else; the buffer is as it was.
        """
        where = f"state of {type(self).__name__}"
        with restoring(where, "priorities"):
            require_mapping(where, state)
            priorities, highest = np.array(state["priorities"], np.float64), float(state["highest"])
            count = int(np.minimum(state["lanes"]["written"], state["lanes"]["rows_per_lane"]).sum())
            sound = np.isfinite(priorities).all() and priorities.min(initial=highest) >= 0 and np.isfinite(highest)
            if priorities.shape != (count,) or not sound:
                raise CheckpointError(
                    where,
                    expected=f"{count} priorities that are finite and not negative",
                    found=_spelled(priorities),
                    do="restore a whole state",
                )
        super().set_state(state)
        rows = self.lanes.rows_at(self.lanes.newest())
        self._tree, self._highest, self._drawn = SumTree(self.lanes.num_lanes * self.lanes.rows_per_lane), highest, None
        self._tree.set(rows, priorities)

    def _weigh(self, drawn: SampledEpisodes, beta: float) -> None:
        shares = self._tree.get(self.lanes.rows_at(drawn.drawn))
        weights = np.maximum(shares, np.finfo(np.float64).tiny) ** -beta
        drawn.per_chunk = {**drawn.per_chunk, "weights": (weights / weights.max(initial=0.0)).astype(np.float32)}
        self._drawn = drawn

    def update_priorities(
        self, priorities: Any, drawn: SampledEpisodes | None = None, *, module_id: Any = None
    ) -> None:
        """Set the priorities of the steps that were drawn.

        Args:
            priorities: One for each part, not negative: float [C]. A step with priority 0 is not drawn. Or the absolute
                errors of the steps of each part, NaN at places that are no steps: float [C, T]. The priority is then
                `eta` times the highest of a part and 1 - `eta` times their mean.
            drawn: The draw; default: the newest.
            module_id: Accepted for ported code: all steps are of one module.

        Raises:
            ReplayError: another number of priorities, one that is negative or not finite, or no draw before.
        """
        drawn = self._drawn if drawn is None else drawn
        values = np.asarray(priorities, np.float64)
        values = self._of_sequences(values) if values.ndim == 2 else values
        values, drawn = checked_priorities(f"{type(self).__name__}.update_priorities", values, drawn)
        held = self.lanes.hold(drawn.drawn)
        with np.errstate(over="ignore"):
            weights = values[held] ** self.alpha
        if not np.isfinite(weights).all():
            where, do = f"{type(self).__name__}.update_priorities", "pass smaller ones, or choose a smaller alpha"
            raise ReplayError(where, expected="priorities whose power alpha is finite", found=f"{values.max()}", do=do)
        self._tree.set(self.lanes.rows_at(drawn.drawn[held]), weights)
        self._highest = max(self._highest, float(weights.max(initial=0.0)))

    def _of_sequences(self, errors: Weights) -> Weights:
        """The priority of each row of errors: NaN of one without steps, and negative of one with a negative error."""
        are_steps = ~np.isnan(errors)
        counts = are_steps.sum(1)
        means = np.where(counts > 0, errors.sum(1, where=are_steps) / np.maximum(counts, 1), np.nan)
        lowest, highest = (extreme(1, initial=0.0, where=are_steps) for extreme in (errors.min, errors.max))
        priorities: Weights = np.where(lowest < 0, lowest, self.eta * highest + (1 - self.eta) * means)
        return priorities


def checked_priorities(where: str, priorities: Any, drawn: Draw | None) -> tuple[Weights, Draw]:
    """Return the priorities of a draw's parts (float64 [C]), and the draw.

    Raises:
        ReplayError: another number of priorities, one that is negative or not finite, or no draw.
    """
    values = np.asarray(priorities, np.float64)
    wrong = drawn is None or values.shape != (len(drawn),) or not (np.isfinite(values) & (values >= 0)).all()
    if drawn is None or wrong:
        raise ReplayError(
            where,
            expected="a draw, and for each of its parts a priority that is finite and not negative",
            found="no draw" if drawn is None else f"{len(drawn)} parts and {_spelled(values)}",
            do="pass the absolute errors of the parts in their order: buffer.update_priorities(errors, drawn)",
        )
    return values, drawn


def _spelled(values: Any) -> str:
    wrong = values[~(np.isfinite(values) & (values >= 0))] if values.ndim else values
    return f"an array of shape {values.shape}" + (f" with {wrong.flat[0]}" if wrong.size else "")
