"""Gives the batch of a recurrent module its time axis."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from epibatch.core.arrays_or_tensors import beside, is_tensor
from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, EpisodeError
from epibatch.core.padding import SequenceLayout
from epibatch.core.rl_module.module_facts import sequence_settings
from epibatch.core.structs import map_struct

from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from .._engine.sequences import layout_of
from ..columnar_piece import TwoSidedPiece
from ..tensor_step import TensorStep
from .batch_individual_items import wrong_rows

__all__ = ["AddTimeDimToBatchAndZeroPad"]


class AddTimeDimToBatchAndZeroPad(TwoSidedPiece):
    """Makes every column [rows, time, ...] if the module is recurrent.

    For acting, time has length 1. In training each chunk is cut into sequences of the module's
    `max_seq_len`; the last one of a chunk is padded with zeros on the right. `seq_lens` says how
    many steps of each sequence are real (an artificial bootstrap step is not), `loss_mask` which. A
    `loss_mask` that is in the batch already is combined with it: rows that either leaves out carry no loss.

    The module's `model_config` may say `sequence_end` ("pad", "drop", "truncate", "overlap" or
    "continue", see `epibatch.core.sequence_ends.sequence_layout`) and `burn_in`. Rows that two
    sequences share carry loss in one of them. With "continue" the column `resets` is True where
    another chunk begins after a sequence's first place.

    Counterparts: RLlib's `AddTimeDimToBatchAndZeroPad`.

    Raises:
        ConfigError: the module's settings do not fit together, or it has no `max_seq_len`.
        ColumnError: a column with another number of rows than the chunks have, or a `loss_mask` that is no bools.
        EpisodeError: no chunk is long enough for a sequence that is kept.
    """

    reads: ClassVar[tuple[str, ...]] = (Columns.OBS,)
    writes: ClassVar[tuple[str, ...]] = (Columns.SEQ_LENS, Columns.LOSS_MASK, Columns.RESETS)

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Reshape all columns, or none if the module has no state."""
        if not group.stateful or Columns.STATE_IN in columns:
            return columns
        if self.as_learner_connector:
            return self._pad(columns, group)
        for column in columns.values():
            if isinstance(column, EpisodeColumn) and not isinstance(column.data, list):
                column.data = map_struct(lambda leaf: leaf[:, None], column.data)
        group.shared_data["_added_single_ts_time_rank"] = True
        return columns

    def run_tensors(self, columns: dict[str, Any], step: TensorStep) -> dict[str, Any]:
        """Give all columns a time axis of length 1, if the module has a state."""
        if step.state_in is None:
            return columns
        return {name: map_struct(lambda leaf: leaf.unsqueeze(1), column) for name, column in columns.items()}

    def _pad(self, batch: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        layout = layout_of(group)
        if not layout.num_sequences and not group.several:
            raise _none_left(group)
        counts = group.counts
        per_chunk = np.bincount(layout.sequence_chunks, minlength=len(counts))
        for name in group.left_out:
            batch.pop(name, None)
        for name, column in batch.items():
            if isinstance(column, EpisodeColumn) and not column.holds_objects:
                found = np.ones_like(counts) if column.counts is None else column.counts
                if found is not counts and not np.array_equal(found, counts):
                    raise wrong_rows(name, found, counts, group)
                batch[name] = EpisodeColumn(column.padded(layout), per_chunk, item_per_row=True)
        group.shared_data[f"_zero_padded_for_mid={group.module_id}"] = True
        group.rows = per_chunk
        batch[Columns.SEQ_LENS] = EpisodeColumn(_real_steps(layout, group), per_chunk, item_per_row=True)
        if Columns.LOSS_MASK in batch or not group.plus_one:
            batch[Columns.LOSS_MASK] = EpisodeColumn(_mask(batch, layout), per_chunk, item_per_row=True)
        if layout.resets is not None:
            batch[Columns.RESETS] = EpisodeColumn(layout.resets, per_chunk, item_per_row=True)
        return batch


def _mask(batch: dict[str, Any], layout: SequenceLayout) -> Any:
    """Return the loss mask: that of the layout, combined with the mask that is in the batch already, if any."""
    column = batch.get(Columns.LOSS_MASK)
    if column is None:
        return layout.loss
    mask = column.data if isinstance(column, EpisodeColumn) else column
    if is_tensor(mask) and mask.dtype == beside(layout.loss, mask).dtype and mask.shape == layout.loss.shape:
        return beside(layout.loss, mask) & mask
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != layout.loss.shape:
        found = f"{mask.dtype} of shape {list(mask.shape)}" if isinstance(mask, np.ndarray) else type(mask).__name__
        raise ColumnError(
            "column 'loss_mask', which an earlier piece has made",
            expected="one bool per row",
            found=f"{found}, with the time axis",
            do="write True for rows that carry loss, np.array(..., bool); weights are a column of another name",
        )
    return layout.loss & mask


def _real_steps(layout: SequenceLayout, group: ChunkGroup) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The rows of each sequence, without a bootstrap row at its end; where chunks follow one another all of them."""
    if not group.plus_one or layout.resets is not None:
        return layout.seq_lens
    ends = layout.offsets + layout.seq_lens == layout.counts[layout.sequence_chunks]
    real: np.ndarray[Any, np.dtype[np.int64]] = layout.seq_lens - ends
    return real


def _none_left(group: ChunkGroup) -> EpisodeError:
    """Return the error if no chunk gives a sequence: the lengths there are, and the setting that rules them out."""
    settings = sequence_settings(group.rl_module) if group.cut is None else group.cut.settings(group.rl_module)
    lengths = group.lengths.tolist()
    longest, burned = max(lengths, default=0), settings.burn_in
    needed = f"max_seq_len={settings.max_seq_len}" + f" less burn_in={burned}" * bool(burned)
    keeps = "sequence_end='pad' or 'overlap' in the model_config, which keep"
    rule = "sequence_end='drop' leaves out"
    if group.cut is not None:
        keeps, rule = "RandomSubsequences(short='pad'), which keeps", "RandomSubsequences(short='drop') leaves out"
    return EpisodeError(
        "AddTimeDimToBatchAndZeroPad",
        expected=f"a chunk of {settings.max_seq_len - burned} steps or more ({needed}); {rule} shorter ones",
        found=f"{len(lengths)} chunks of at most {longest} steps: {', '.join(map(str, lengths[:8]))}"
        + ", ..." * (len(lengths) > 8),
        do=f"take {keeps} short chunks; or a max_seq_len of at most {longest + burned}; or longer chunks (a larger "
        "rollout_fragment_length, if they are cut and no whole episodes)",
    )
