"""Clears the flags of ended episodes in a train batch."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from epibatch.core.columns import Columns

from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from ..columnar_piece import LearnerPiece

__all__ = ["NeverTerminate"]


class NeverTerminate(LearnerPiece):
    """Makes `terminateds` and `truncateds` False in every row, so that values are bootstrapped at every end.

    For tasks that go on forever and whose episodes are only parts of them. Episodes keep their flags, and their rows
    stay apart. Put it before all other pieces; the setting `no_done_at_end` does. After the option of that name of
    RLlib's older versions.

    Examples:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> episode = SingleAgentEpisode(id_="e", observations=[0, 1, 2], actions=[0, 0], rewards=[1.0, 1.0],
        ...                              terminated=True, len_lookback_buffer=0)
        >>> NeverTerminate()(batch={}, episodes=[episode])["terminateds"]
        {('e',): [False, False]}
    """

    writes: ClassVar[tuple[str, ...]] = (Columns.TERMINATEDS, Columns.TRUNCATEDS)

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Add both columns, or replace them."""
        counts = group.counts
        for name in (Columns.TERMINATEDS, Columns.TRUNCATEDS):
            columns[name] = EpisodeColumn(np.zeros(int(counts.sum()), np.bool_), counts, item_per_row=True)
        return columns
