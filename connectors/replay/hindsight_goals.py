"""Gives steps of the past other goals: those that were reached later."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError
from epibatch.core.restoring import restore_generator, restoring

from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from .._engine.gather import column_or_gather, rows_of
from ..columnar_piece import LearnerPiece

__all__ = ["HindsightGoals"]


class HindsightGoals(LearnerPiece):
    """Lets steps have been about a goal that their episode reached: with its rewards, and ends if you like.

    (Hindsight experience replay: Andrychowicz et al. 2017, arXiv:1707.01495.) Observations are a Dict with an achieved
    and a desired goal, as Gymnasium's `GoalEnv` has it. Of `num_goals + 1` rows of the batch about one keeps its goal.
    The others get what was achieved at a step of their episode that the buffer holds: `future`, one after theirs;
    `final`, the last one; `episode`, any of them. Their rewards are computed again.

    Rows that belong together have one goal: those of a row's steps with `NStepReturns`, and those of a recurrent
    module's sequence. The piece needs raw observations, so put pieces that flatten or normalise them after it.

    Counterparts: Tianshou's `HERReplayBuffer`.

    Args:
        compute_reward: Gives rewards [R] of achieved goals [R, ...], desired goals [R, ...] and `{}`, in the place of
            infos, as `env.unwrapped.compute_reward` does.
        strategy: "future", "final" or "episode".
        num_goals: Rows with a new goal for each one that keeps its own, at least 0.
        compute_terminated: Tells which of them ended their episode, called alike: bool [R]. None: those that did.
        achieved: Key of the achieved goal.
        desired: Key of the desired goal.

    Raises:
        ColumnError: observations that are no Dict with both goals, or not one reward for each row.
        ConfigError: an argument out of its range.

    Examples:
        >>> from epibatch.connectors.learner import BatchIndividualItems, LearnerConnectorPipeline
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> rows = [{"at": np.array([t]), "goal": np.array([9])} for t in range(4)]
        >>> episode = SingleAgentEpisode(observations=rows, actions=[0, 0, 0], rewards=[-1.0, -1.0, -1.0],
        ...                              truncated=True, len_lookback_buffer=0)
        >>> reached = lambda achieved, desired, info: (achieved == desired)[:, 0] - 1.0
        >>> piece = HindsightGoals(
        ...     compute_reward=reached, strategy="final", num_goals=10**9, achieved="at", desired="goal")
        >>> batch = LearnerConnectorPipeline(connectors=[piece, BatchIndividualItems()])(episodes=[episode])
        >>> batch["obs"]["goal"].ravel().tolist(), batch["rewards"].tolist()
        ([3, 3, 3], [-1.0, -1.0, 0.0])
    """

    writes = (Columns.OBS, Columns.NEXT_OBS, Columns.REWARDS)
    compute_reward: Callable[[Any, Any, Any], Any]
    strategy: Literal["future", "final", "episode"] = "future"
    num_goals: Annotated[int, Ge(0)] = 4
    compute_terminated: Callable[[Any, Any, Any], Any] | None = None
    achieved: str = "achieved_goal"
    desired: str = "desired_goal"

    def __post_init__(self) -> None:
        """Say what it writes, and draw from a stream of its own."""
        ends = (Columns.TERMINATEDS,) if self.compute_terminated else ()
        self.writes = (Columns.OBS, Columns.NEXT_OBS, Columns.REWARDS, *ends)  # type: ignore[misc]
        self._random = np.random.default_rng()

    def seed(self, seed: np.random.SeedSequence | int) -> None:
        """Draw from a random stream of this piece's own from now on."""
        self._random = np.random.default_rng(seed)

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """Return the state of the random stream, so that a restored run draws the same numbers."""
        return {"random": copy.deepcopy(self._random.bit_generator.state)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on drawing where a state was taken.

        Raises:
            CheckpointError: a state of another kind.
        """
        with restoring("HindsightGoals.set_state", "random"):
            restore_generator("HindsightGoals.set_state", self._random, state["random"])

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Change goals, rewards and ends."""
        name = type(self).__name__
        obs = dict(self._goals_of(column_or_gather(columns, group, Columns.OBS, name).data))
        after = dict(self._goals_of(column_or_gather(columns, group, Columns.NEXT_OBS, name).data))
        rows = np.flatnonzero(self._chosen(group))
        chunks, steps = self._reached(group, rows)
        goals = self._goals_of(group.reader.at(Columns.OBS, chunks, steps))[self.achieved]
        for each in (obs, after):
            each[self.desired] = each[self.desired].copy()
            each[self.desired][rows] = goals
        made = {Columns.OBS: obs, Columns.NEXT_OBS: after}
        for column, compute in ((Columns.REWARDS, self.compute_reward), (Columns.TERMINATEDS, self.compute_terminated)):
            if compute is not None:
                values = column_or_gather(columns, group, column, name).data.copy()
                values[rows] = self._computed(compute, after[self.achieved][rows], goals)
                made[column] = values
        columns.update({key: EpisodeColumn(data, group.counts, item_per_row=True) for key, data in made.items()})
        return columns

    def _together(self, group: ChunkGroup) -> bool:
        """True if all rows of a chunk have one goal."""
        return group.own is not None or group.stateful

    def _chosen(self, group: ChunkGroup) -> Any:
        """A mask of the rows that get a new goal."""
        counts, together = group.counts, self._together(group)
        draws = self._random.random(len(counts) if together else int(counts.sum()))
        chosen = draws * (self.num_goals + 1) < self.num_goals
        return np.repeat(chosen, counts) if together else chosen

    def _reached(self, group: ChunkGroup, rows: Any) -> Any:
        """The chunk, and the step there, at which the goal of each of these rows was reached."""
        table, together = group.reader.table, self._together(group)
        chunks, steps = (part[rows] for part in rows_of(group))
        last = (table.lengths + table.ahead)[chunks]
        if self.strategy == "final":
            return chunks, last
        low = np.minimum((0 if together else steps) + 1, last)
        if self.strategy == "episode":
            low = np.minimum(1 - table.lookbacks[chunks], last)
        draws = self._random.random(len(table.lengths))[chunks] if together else self._random.random(len(rows))
        return chunks, low + (draws * (last - low + 1)).astype(np.int64)

    def _goals_of(self, rows: Any) -> Any:
        if isinstance(rows, dict) and self.achieved in rows and self.desired in rows:
            return rows
        raise ColumnError(
            "HindsightGoals, observations",
            expected=f"a Dict with {self.achieved!r} and {self.desired!r}",
            found=f"a Dict with {', '.join(map(repr, rows))}" if isinstance(rows, dict) else "no Dict",
            do="name the keys, `achieved=` and `desired=`, and put the piece before those that flatten observations",
        )

    def _computed(self, compute: Any, achieved: Any, goals: Any) -> Any:
        values = np.asarray(compute(achieved, goals, {}))
        if values.shape != (len(goals),):
            raise ColumnError(
                f"HindsightGoals, {getattr(compute, '__name__', compute)!r}",
                expected=f"an array of {len(goals)} values, one for each row",
                found=f"one of shape {values.shape}",
                do="compute all rows at once: `np.linalg.norm(achieved - desired, axis=-1)`",
            )
        return values
