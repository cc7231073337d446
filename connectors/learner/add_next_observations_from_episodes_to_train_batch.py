"""Adds what was observed after each step to the train batch."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from epibatch.core.column_use import left_out_by
from epibatch.core.columns import Columns
from epibatch.core.structs import map_struct

from ..call import Call
from ..columnar_piece import ColumnarPiece
from ..episode_column import EpisodeColumn
from ..gather import gather

__all__ = ["AddNextObservationsFromEpisodesToTrainBatch"]


class AddNextObservationsFromEpisodesToTrainBatch(ColumnarPiece):
    """Adds column `new_obs`: for each step the observation behind it; a bootstrap row repeats the last one.

    A batch that has the column already is left alone. Losses that bootstrap from the next step's value (Q-learning,
    say) read it; PPO does not.

    Args:
        input_observation_space: Space of one observation.
        input_action_space: Space of one action.

    Example:
        >>> from epibatch.connectors.learner import BatchIndividualItems, LearnerConnectorPipeline
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> episode = SingleAgentEpisode(observations=[5, 6, 7], actions=[0, 1], rewards=[1.0, 2.0],
        ...                              len_lookback_buffer=0)
        >>> pieces = [AddNextObservationsFromEpisodesToTrainBatch(), BatchIndividualItems()]
        >>> LearnerConnectorPipeline(connectors=pieces)(episodes=[episode])["new_obs"]
        array([6, 7])
    """

    pipelines: ClassVar[tuple[str, ...]] = ("learner",)
    takes: ClassVar[tuple[str, ...]] = ("episodes",)
    reads: ClassVar[tuple[str, ...]] = ()
    writes: ClassVar[tuple[str, ...]] = (Columns.NEXT_OBS,)

    def run(self, batch: dict[str, Any], call: Call) -> dict[str, Any]:
        """Add the column."""
        unread = Columns.NEXT_OBS in left_out_by(call.shared_data, call.module_id)
        if Columns.NEXT_OBS in batch or unread or not len(call.episodes):
            return batch
        observations = gather(call, Columns.OBS, plus_one=True)
        rows = np.arange(1, int(call.lengths.sum()) + len(call.lengths) + 1)
        ends = np.cumsum(call.lengths + 1) - 1
        if call.plus_one:
            rows[ends] = ends
        else:
            rows = np.delete(rows, ends)
        batch[Columns.NEXT_OBS] = EpisodeColumn(map_struct(lambda leaf: leaf[rows], observations), call.counts)
        return batch
