"""Adds what was observed after each step to the train batch."""

from __future__ import annotations

from typing import Any, ClassVar

from epibatch.core.columns import Columns

from .._engine.chunks import ChunkGroup
from .._engine.gather import next_observations
from ..columnar_piece import LearnerPiece

__all__ = ["AddNextObservationsFromEpisodesToTrainBatch"]


class AddNextObservationsFromEpisodesToTrainBatch(LearnerPiece):
    """Adds column `new_obs`: for each step the observation after it; a bootstrap row repeats the last one.

    Where a piece makes `obs` in its own way, such as frame stacks, previous actions or flat vectors, `new_obs` is what
    that piece makes one step later. A batch that has the column already is left alone, so a transform of
    `columns=("obs", "new_obs")` may come before it. One of `obs` alone is refused when the pipeline is built. Losses
    that bootstrap from the next step's value, such as Q-learning, read it; PPO does not.

    Counterparts: RLlib's `AddNextObservationsFromEpisodesToTrainBatch`.

    Examples:
        >>> from epibatch.connectors.learner import BatchIndividualItems, LearnerConnectorPipeline
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> episode = SingleAgentEpisode(observations=[5, 6, 7], actions=[0, 1], rewards=[1.0, 2.0],
        ...                              len_lookback_buffer=0)
        >>> pieces = [AddNextObservationsFromEpisodesToTrainBatch(), BatchIndividualItems()]
        >>> LearnerConnectorPipeline(connectors=pieces)(episodes=[episode])["new_obs"]
        array([6, 7])
    """

    writes: ClassVar[tuple[str, ...]] = (Columns.NEXT_OBS,)

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Add the column."""
        if Columns.NEXT_OBS in columns or Columns.NEXT_OBS in group.left_out:
            return columns
        columns[Columns.NEXT_OBS] = next_observations(group)
        return columns
