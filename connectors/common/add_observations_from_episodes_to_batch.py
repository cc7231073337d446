"""Adds the episodes' observations to the batch."""

from __future__ import annotations

from typing import Any, ClassVar

from epibatch.core.columns import Columns

from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from .._engine.gather import gather_column
from ..columnar_piece import TwoSidedPiece
from ..tensor_step import TensorStep

__all__ = ["AddObservationsFromEpisodesToBatch"]


class AddObservationsFromEpisodesToBatch(TwoSidedPiece):
    """Adds column `obs`: the newest observation of each episode, or in training one per step.

    A batch that has the column already is left alone.

    Counterparts: RLlib's `AddObservationsFromEpisodesToBatch`.

    Examples:
        >>> import numpy as np
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> episode = SingleAgentEpisode(id_="e", observations=[np.zeros(2), np.ones(2)], actions=[0], rewards=[1.0])
        >>> AddObservationsFromEpisodesToBatch()(batch={}, episodes=[episode])
        {'obs': {('e',): [array([1., 1.])]}}
    """

    writes: ClassVar[tuple[str, ...]] = (Columns.OBS,)
    needs_episodes: ClassVar[bool] = True

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Add the column."""
        if Columns.OBS in columns:
            return columns
        if self.as_learner_connector:
            columns[Columns.OBS] = gather_column(group, Columns.OBS)
        else:
            columns[Columns.OBS] = EpisodeColumn(group.reader.newest(Columns.OBS)[0])
        return columns

    def run_tensors(self, columns: dict[str, Any], step: TensorStep) -> dict[str, Any]:
        """Add the column."""
        return {Columns.OBS: step.obs, **columns}
