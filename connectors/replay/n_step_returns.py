"""Sums the rewards of several steps, and looks as many steps ahead."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Interval

from epibatch.core.arrays_or_tensors import as_floats, beside
from epibatch.core.columns import Columns
from epibatch.core.errors import PipelineError
from epibatch.core.structs import convert_to_numpy, map_struct

from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from .._engine.gather import column_or_gather, observations_at, rows_of
from ..columnar_piece import LearnerPiece

__all__ = ["NStepReturns"]


class NStepReturns(LearnerPiece):
    """Makes each row one of `n_step` steps: from there on, or as many as the episode has left.

    With k steps from a row on, at most `n_step`, the columns of that row are: `rewards`, their discounted sum;
    `new_obs`, the observation after them, made as `obs` is; `terminateds` and `truncateds`, whether the episode ended
    there; `n_step`, k; and `discounts`, gamma^k, with which a loss multiplies the value of `new_obs`. (Sutton and
    Barto, chapter 7.)

    Drawn chunks have the steps ahead that they need, if the buffer holds them. In whole chunks, as runners return them,
    k is what is left of the chunk. What earlier pieces make of rewards is what is summed, so put pieces that shape
    rewards before it, and those that make large observations after it.

    RLlib has it as the argument `n_step` of a buffer's `sample`.

    Counterparts: TorchRL's `MultiStepTransform`.

    Args:
        n_step: Steps of a row, at least 1.
        gamma: Discount, in [0, 1].

    Raises:
        ConfigError: an argument out of its range.
        PipelineError: what was drawn has sums over several steps already.

    Examples:
        >>> from epibatch.connectors.learner import BatchIndividualItems, LearnerConnectorPipeline
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> episode = SingleAgentEpisode(observations=[5, 6, 7, 8], actions=[0, 0, 0], rewards=[1.0, 2.0, 4.0],
        ...                              terminated=True, len_lookback_buffer=0)
        >>> pipeline = LearnerConnectorPipeline(connectors=[NStepReturns(n_step=2, gamma=0.5), BatchIndividualItems()])
        >>> batch = pipeline(episodes=[episode])
        >>> batch["rewards"].tolist(), batch["new_obs"].tolist(), batch["discounts"].tolist()
        ([2.0, 4.0, 4.0], [7, 8, 8], [0.25, 0.25, 0.5])
    """

    writes: ClassVar[tuple[str, ...]] = (
        Columns.REWARDS,
        Columns.NEXT_OBS,
        Columns.TERMINATEDS,
        Columns.TRUNCATEDS,
        "n_step",
        "discounts",
    )
    takes_tensors: ClassVar[bool] = True
    n_step: Annotated[int, Interval(ge=1)] = 1
    gamma: Annotated[float, Interval(ge=0, le=1)] = 0.99

    def __post_init__(self) -> None:
        """Ask for as many rows ahead as a sum needs."""
        self.rows_ahead = self.n_step - 1

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Change the columns."""
        name = type(self).__name__
        if "discounts" in group.reader.table.per_chunk:
            raise PipelineError(
                name,
                expected="rewards of single steps",
                found="a draw with sums over several steps: sample(..., n_step=...)",
                do="draw without n_step, or leave the piece out",
            )
        chunks, steps = rows_of(group)
        rows = np.arange(len(chunks))
        count = np.minimum(group.lengths[chunks] - steps, self.n_step)  # 0 for a bootstrap row
        rewards = column_or_gather(columns, group, Columns.REWARDS, name)
        sums = as_floats(rewards.data * beside(count > 0, rewards.data))
        ended = convert_to_numpy(columns[Columns.TERMINATEDS].data) if Columns.TERMINATEDS in columns else None
        for later in range(1, self.n_step):
            still = np.flatnonzero(count > later)
            if ended is not None:  # by an earlier piece, which may let an episode end before its last step
                count[still[ended[still + later - 1]]] = later
                still = still[count[still] > later]
            sums[still] += self.gamma**later * rewards.data[still + later]
        made = {Columns.REWARDS: sums, "n_step": count, "discounts": (self.gamma**count).astype(np.float32)}
        last = rows + np.maximum(count, 1) - 1
        for flag in (Columns.TERMINATEDS, Columns.TRUNCATEDS):
            made[flag] = column_or_gather(columns, group, flag, name).data[last]
        if Columns.NEXT_OBS in columns:
            made[Columns.NEXT_OBS] = map_struct(lambda leaf: leaf[last], columns[Columns.NEXT_OBS].data)
        elif Columns.NEXT_OBS not in group.left_out:
            made[Columns.NEXT_OBS] = observations_at(group, chunks, steps + count)
        columns.update({key: EpisodeColumn(data, group.counts, item_per_row=True) for key, data in made.items()})
        return group.leave_out_ahead(columns)
