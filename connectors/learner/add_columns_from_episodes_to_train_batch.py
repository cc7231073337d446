"""Adds everything but the observations to the train batch."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.metrics import WEIGHTS_SEQ_NO

from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from .._engine.gather import end_flags, gather_column
from ..columnar_piece import LearnerPiece

__all__ = ["AddColumnsFromEpisodesToBatch", "AddColumnsFromEpisodesToTrainBatch"]


class AddColumnsFromEpisodesToTrainBatch(LearnerPiece):
    """Adds actions, rewards, terminateds, truncateds and the model's outputs, one row per step.

    Columns that the batch has already are left alone. Recurrent states are not added here. With `columns="auto"` the
    piece skips columns that the learner does not read.

    Counterparts: RLlib's `AddColumnsFromEpisodesToTrainBatch`.
    """

    writes: ClassVar[tuple[str, ...]] = (
        Columns.ACTIONS,
        Columns.REWARDS,
        Columns.TERMINATEDS,
        Columns.TRUNCATEDS,
        *(Columns.ACTION_LOGP, Columns.ACTION_DIST_INPUTS, WEIGHTS_SEQ_NO),  # as every other output of the episodes
    )

    takes_tensors: ClassVar[bool] = True

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Add the columns."""
        unwanted = {Columns.STATE_IN, Columns.STATE_OUT, *group.left_out}
        for name, last in ((Columns.ACTIONS, None), (Columns.REWARDS, 0.0)):
            if name not in columns and name not in unwanted:
                columns[name] = gather_column(group, name, last=last)
        if Columns.TERMINATEDS not in columns or Columns.TRUNCATEDS not in columns:
            for name, flags in zip((Columns.TERMINATEDS, Columns.TRUNCATEDS), end_flags(group)):
                columns.setdefault(name, EpisodeColumn(flags, group.counts, item_per_row=True))
        for name, values in group.reader.table.per_chunk.items():
            if name not in columns and name not in unwanted:
                columns[name] = EpisodeColumn(np.repeat(values, group.counts, axis=0), group.counts, item_per_row=True)
        for name in group.reader.outputs:
            if name not in columns and name not in unwanted:
                columns[name] = gather_column(group, name)
        return columns


AddColumnsFromEpisodesToBatch = AddColumnsFromEpisodesToTrainBatch
