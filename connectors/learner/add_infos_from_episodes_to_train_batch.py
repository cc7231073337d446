"""Adds the environments' infos to the train batch."""

from __future__ import annotations

from typing import Any, ClassVar

from epibatch.core.columns import Columns

from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from ..columnar_piece import LearnerPiece

__all__ = ["AddInfosFromEpisodesToTrainBatch"]


class AddInfosFromEpisodesToTrainBatch(LearnerPiece):
    """Adds column `infos`: for each step the info dict that came with the observation before it.

    The column is a list of dicts. No piece makes arrays of it, and it is not cut into sequences for recurrent
    modules. A bootstrap row has the info of the last observation. A batch that has the column already is left alone.

    Counterparts: RLlib's `AddInfosFromEpisodesToTrainBatch`.

    Examples:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> episode = SingleAgentEpisode(id_="e", observations=[0, 1, 2], actions=[0, 0], rewards=[1.0, 1.0],
        ...                              infos=[{"at": 0}, {"at": 1}, {"at": 2}], len_lookback_buffer=0)
        >>> AddInfosFromEpisodesToTrainBatch()(batch={}, episodes=[episode])
        {'infos': {('e',): [{'at': 0}, {'at': 1}]}}
    """

    writes: ClassVar[tuple[str, ...]] = (Columns.INFOS,)

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Add the column."""
        if Columns.INFOS in columns:
            return columns
        counts = group.counts
        infos: list[Any] = []
        for episode, count in zip(group.plain_episodes(), counts.tolist()):
            infos += episode.get_infos(slice(0, count))
        columns[Columns.INFOS] = EpisodeColumn(infos, counts, item_per_row=True)
        return columns
