"""Adds what a policy gradient without value function is weighted with: the discounted rewards still to come."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from annotated_types import Interval

from epibatch.core.advantages import cut_at_ends, discounted_sums
from epibatch.core.columns import Columns

from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from .._engine.gather import column_or_gather
from ..columnar_piece import LearnerPiece

__all__ = ["ComputeReturnsToGo"]


class ComputeReturnsToGo(LearnerPiece):
    """Adds column `returns_to_go`: at each step the discounted sum of its chunk's rewards from there on.

    Nothing is added for what follows a chunk's last step, so chunks should be whole episodes. The
    sums are those of REINFORCE (Williams 1992). No default pipeline has this piece. Rewards that an earlier
    piece put into the batch are the ones that are summed, and sums stop at ends that one wrote (`terminateds`).

    Counterparts: RLlib's `ComputeReturnsToGo`, TorchRL's `Reward2GoTransform`.

    Args:
        gamma: Discount, in [0, 1].

    Raises:
        ConfigError: gamma outside [0, 1].

    Examples:
        >>> from epibatch.connectors.learner import BatchIndividualItems, LearnerConnectorPipeline
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> episode = SingleAgentEpisode(observations=[0, 1, 2, 3], actions=[0, 0, 0], rewards=[1.0, 1.0, 1.0],
        ...                              terminated=True, len_lookback_buffer=0)
        >>> pipeline = LearnerConnectorPipeline(connectors=[ComputeReturnsToGo(gamma=0.5), BatchIndividualItems()])
        >>> pipeline(episodes=[episode])["returns_to_go"]
        array([1.75, 1.5 , 1.  ])
    """

    writes: ClassVar[tuple[str, ...]] = (Columns.RETURNS_TO_GO,)
    takes_tensors: ClassVar[bool] = True
    gamma: Annotated[float, Interval(ge=0, le=1)]

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Add the column."""
        rewards = column_or_gather(columns, group, Columns.REWARDS, type(self).__name__)
        counts, ended = rewards.counts, columns.get(Columns.TERMINATEDS)
        if isinstance(ended, EpisodeColumn):
            counts = cut_at_ends(counts, ended.data.reshape(-1), bootstraps=group.plus_one)
        sums = discounted_sums(rewards.data, counts, self.gamma)
        columns[Columns.RETURNS_TO_GO] = EpisodeColumn(sums, rewards.counts)
        return columns
