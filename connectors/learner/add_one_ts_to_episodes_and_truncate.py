"""Gives each chunk a row for the value after its last step."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from epibatch.core.arrays_or_tensors import take
from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError
from epibatch.core.structs import map_struct

from .._engine.call import ADDED_LOSS_MASK
from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from .._engine.gather import end_flags
from ..columnar_piece import Piece

__all__ = ["AddOneTsToEpisodesAndTruncate"]

_ZEROED = (Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS, Columns.LOSS_MASK)


class AddOneTsToEpisodesAndTruncate(Piece):
    """Adds one virtual bootstrap row to each chunk of the batch, with its loss masked out.

    The row holds the last observation, so that a value function sees what came after the last
    step. Rewards there are 0, flags and `loss_mask` False; other columns repeat their last row.
    Chunks that were not terminated count as truncated; one that was both keeps both flags. The
    episodes stay as they are. A column that the batch has already gains the row if it has one per
    step, and is kept if it has one more; `obs` must have it, because only the piece that made it can
    make the last observation's row.

    Counterparts: RLlib's `AddOneTsToEpisodesAndTruncate`.

    Raises:
        ColumnError: a column with another number of rows.
    """

    pipelines: ClassVar[tuple[str, ...]] = ("learner",)
    input_layouts: ClassVar[tuple[str, ...]] = ("episodes",)
    writes: ClassVar[tuple[str, ...]] = (Columns.LOSS_MASK, Columns.TERMINATEDS, Columns.TRUNCATEDS)
    takes_tensors: ClassVar[bool] = True

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Add flags and mask, and lengthen what is there."""
        group.add_bootstrap_rows()
        group.shared_data[ADDED_LOSS_MASK] = True
        for name, column in columns.items():
            if isinstance(column, EpisodeColumn):
                columns[name] = self._with_bootstrap_rows(name, column, group)
        counts = group.counts
        mask = np.ones(int(counts.sum()), np.bool_)
        mask[np.cumsum(counts) - 1] = False
        terminateds, truncateds = end_flags(group, truncate=True)
        for name, flags in (
            (Columns.LOSS_MASK, mask),
            (Columns.TERMINATEDS, terminateds),
            (Columns.TRUNCATEDS, truncateds),
        ):
            if name not in columns:
                columns[name] = EpisodeColumn(flags, counts, item_per_row=True)
        return columns

    def _without_last(self, chunk: int, rows: int, group: ChunkGroup) -> ColumnError:
        steps = group.lengths[chunk]
        return ColumnError(
            f"column 'obs', {group.describe(chunk)}",
            expected=f"{steps + 1} rows: one per step and one for the last observation, whose value bootstraps",
            found=f"{rows} rows",
            do="write the last observation's row too (get_observations() has it), or insert the piece after "
            "AddOneTsToEpisodesAndTruncate, where episodes have it as a step",
        )

    def _with_bootstrap_rows(self, name: str, column: EpisodeColumn, group: ChunkGroup) -> EpisodeColumn:
        counts = np.ones_like(group.lengths) if column.counts is None else column.counts
        misfits = np.flatnonzero((counts != group.lengths) & (counts != group.lengths + 1))
        if len(misfits):
            chunk = int(misfits[0])
            if name == Columns.OBS:
                raise self._without_last(chunk, int(counts[chunk]), group)
            raise ColumnError(
                f"column {name!r}, {group.describe(chunk)}",
                expected=f"{group.lengths[chunk]} rows, or {group.lengths[chunk] + 1} with one for the bootstrap",
                found=f"{counts[chunk]} rows",
                do="let the piece that writes it add one row per step",
            )
        if bool((counts == group.lengths + 1).all()) or isinstance(column.data, list):
            return column
        if name == Columns.OBS:
            chunk = int(np.flatnonzero(counts == group.lengths)[0])
            raise self._without_last(chunk, int(counts[chunk]), group)
        # Position of each new row's source: the chunk's own rows, then its last one again if it is short.
        starts = np.cumsum(counts) - counts
        at = np.arange(int(group.counts.sum())) - np.repeat(np.cumsum(group.counts) - group.counts, group.counts)
        rows = np.repeat(starts, group.counts) + np.minimum(at, np.repeat(counts - 1, group.counts))
        data = map_struct(lambda leaf: take(leaf, rows), column.data)
        if name in _ZEROED:
            short = counts == group.lengths
            map_struct(lambda leaf: leaf.__setitem__((np.cumsum(group.counts) - 1)[short], 0), data)
        return EpisodeColumn(data, group.counts, item_per_row=column.item_per_row)
