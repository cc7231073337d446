"""Writes the batch's observations back into the episodes."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError
from epibatch.core.structs import flatten, map_struct

from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from ..columnar_piece import Piece
from ..tensor_step import TensorStep

__all__ = ["WriteObservationsToEpisodes"]


class WriteObservationsToEpisodes(Piece):
    """Makes column `obs` the newest observations of the episodes, so that the learner sees what the module saw.

    Put it after a piece that changes the column and before BatchIndividualItems. The batch stays as it is. A
    piece that changes observations in the episodes, such as a `SingleAgentObservationPreprocessor`, does not need it.

    Counterparts: RLlib's `WriteObservationsToEpisodes`.

    Args:
        input_observation_space: Space of the observations in the batch.

    Raises:
        ColumnError: there is no column `obs`, or it has not exactly one row per episode.

    Examples:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> episodes = [SingleAgentEpisode(observations=[np.zeros(2)]) for _ in range(2)]
        >>> batch = {"obs": [np.array([1.0, 2.0]), np.array([3.0, 4.0])]}
        >>> _ = WriteObservationsToEpisodes()(batch=batch, episodes=episodes)
        >>> [episode.get_observations(-1).tolist() for episode in episodes]
        [[1.0, 2.0], [3.0, 4.0]]
    """

    pipelines: ClassVar[tuple[str, ...]] = ("env_to_module",)
    input_layouts: ClassVar[tuple[str, ...]] = ("episodes",)
    needs_episodes: ClassVar[bool] = True
    reads: ClassVar[tuple[str, ...]] = (Columns.OBS,)
    rewrites_observations = True
    uses_spaces: ClassVar[bool] = True
    takes_tensors: ClassVar[bool] = True

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Write the column to the episodes."""
        column = self.need(columns, Columns.OBS, "put AddObservationsFromEpisodesToBatch before it")
        self._check(column, group)
        rows = column.data if isinstance(column, EpisodeColumn) else column
        if not isinstance(rows, list):
            rows = map_struct(np.asarray, rows)
        group.reader.write_newest(rows, None if self.input_observation_space is None else self.observation_space)
        return columns

    def run_tensors(self, columns: dict[str, Any], step: TensorStep) -> dict[str, Any]:
        """Let the episodes have the column."""
        step.obs = self.need(columns, Columns.OBS, "put AddObservationsFromEpisodesToBatch before it")
        return columns

    def _check(self, column: Any, group: ChunkGroup) -> None:
        if isinstance(column, EpisodeColumn):
            counts = [1] * len(column) if column.counts is None else column.counts.tolist()
        else:
            counts = [1] * len(column if isinstance(column, list) else flatten(column)[0][0])
        if counts == [1] * len(group.episodes):
            return
        raise ColumnError(
            f"{type(self).__name__}, column {Columns.OBS!r}",
            expected=f"one row for each of {len(group.episodes)} episodes",
            found=f"{sum(counts)} rows" if len(counts) != len(group.episodes) else f"{counts} rows",
            do="add one item per episode: add_batch_item(batch, 'obs', item, episode)",
        )
