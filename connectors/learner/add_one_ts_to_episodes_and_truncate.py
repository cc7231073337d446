"""Gives each chunk a row for the value after its last step."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError
from epibatch.core.structs import map_struct

from .._engine.call import ADDED_LOSS_MASK, Call
from .._engine.columns import EpisodeColumn
from .._engine.gather import end_flags
from ..columnar_piece import ColumnarPiece

__all__ = ["AddOneTsToEpisodesAndTruncate"]

_ZEROED = (Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS, Columns.LOSS_MASK)


class AddOneTsToEpisodesAndTruncate(ColumnarPiece):
    """Adds one virtual bootstrap row to each chunk of the batch, whose loss is masked out.

    The row holds the last observation, so that a value function sees what came after the last
    step. Rewards there are 0, flags and `loss_mask` False; other columns repeat their last row.
    Chunks that were not terminated count as truncated; one that was both keeps both flags. The
    episodes stay as they are. A column that the batch has already gains the row if it has one per
    step, and is kept if it has one more; `obs` must have it, because only the piece that made it can
    make the last observation's row.

    Args:
        input_observation_space: Space of one observation.
        input_action_space: Space of one action.

    Raises:
        ColumnError: a column with another number of rows.
    """

    pipelines: ClassVar[tuple[str, ...]] = ("learner",)
    takes: ClassVar[tuple[str, ...]] = ("episodes",)
    reads: ClassVar[tuple[str, ...]] = ()
    writes: ClassVar[tuple[str, ...]] = (Columns.LOSS_MASK, Columns.TERMINATEDS, Columns.TRUNCATEDS)
    adds_bootstrap_rows: ClassVar[bool] = True

    def run(self, batch: dict[str, Any], call: Call) -> dict[str, Any]:
        """Add flags and mask, and lengthen what is there."""
        call.plus_one = True
        call.shared_data[ADDED_LOSS_MASK] = True
        for name, column in batch.items():
            if isinstance(column, EpisodeColumn):
                batch[name] = self._lengthened(name, column, call)
        counts = call.counts
        mask = np.ones(int(counts.sum()), np.bool_)
        mask[np.cumsum(counts) - 1] = False
        terminateds, truncateds = end_flags(call, truncate=True)
        for name, flags in (
            (Columns.LOSS_MASK, mask),
            (Columns.TERMINATEDS, terminateds),
            (Columns.TRUNCATEDS, truncateds),
        ):
            if name not in batch:
                batch[name] = EpisodeColumn(flags, counts, single=True)
        return batch

    def _without_last(self, chunk: int, rows: int, call: Call) -> ColumnError:
        steps = call.lengths[chunk]
        return ColumnError(
            f"column 'obs', {call.describe(chunk)}",
            expected=f"{steps + 1} rows: one per step and one for the last observation, whose value bootstraps",
            found=f"{rows} rows",
            do="write the last observation's row too (get_observations() has it), or insert the piece behind "
            "AddOneTsToEpisodesAndTruncate, where episodes have it as a step",
        )

    def _lengthened(self, name: str, column: EpisodeColumn, call: Call) -> EpisodeColumn:
        counts = np.ones_like(call.lengths) if column.counts is None else column.counts
        wrong = np.flatnonzero((counts != call.lengths) & (counts != call.lengths + 1))
        if len(wrong):
            chunk = int(wrong[0])
            if name == Columns.OBS:
                raise self._without_last(chunk, int(counts[chunk]), call)
            raise ColumnError(
                f"column {name!r}, {call.describe(chunk)}",
                expected=f"{call.lengths[chunk]} rows, or {call.lengths[chunk] + 1} with one for the bootstrap",
                found=f"{counts[chunk]} rows",
                do="let the piece that writes it add one row per step",
            )
        if bool((counts == call.lengths + 1).all()) or isinstance(column.data, list):
            return column
        if name == Columns.OBS:
            chunk = int(np.flatnonzero(counts == call.lengths)[0])
            raise self._without_last(chunk, int(counts[chunk]), call)
        # Position of each new row's source: the chunk's own rows, then its last one again if it is short.
        starts = np.cumsum(counts) - counts
        at = np.arange(int(call.counts.sum())) - np.repeat(np.cumsum(call.counts) - call.counts, call.counts)
        rows = np.repeat(starts, call.counts) + np.minimum(at, np.repeat(counts - 1, call.counts))
        data = map_struct(lambda leaf: np.take(leaf, rows, axis=0), column.data)
        if name in _ZEROED:
            short = counts == call.lengths
            map_struct(lambda leaf: leaf.__setitem__((np.cumsum(call.counts) - 1)[short], 0), data)
        return EpisodeColumn(data, call.counts, single=column.single)
