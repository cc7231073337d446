"""Gives the batch of a recurrent module its time axis."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from epibatch.core import DEFAULT_MODULE_ID
from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, explain
from epibatch.core.padding import PaddedLayout, padded_layout
from epibatch.core.structs import map_struct

from ..acting_module import max_seq_len
from ..call import Call
from ..columnar_piece import ColumnarPiece
from ..episode_column import EpisodeColumn

__all__ = ["AddTimeDimToBatchAndZeroPad"]


class AddTimeDimToBatchAndZeroPad(ColumnarPiece):
    """Makes every column [rows, time, ...] if the module is recurrent.

    For acting, time has length 1. In training each chunk is cut into sequences of the module's
    `max_seq_len`; the last one of a chunk is padded with zeros on the right. `seq_lens` says how
    many steps of each sequence are real (an artificial bootstrap step is not), `loss_mask` which.

    Args:
        input_observation_space: Space of one observation.
        input_action_space: Space of one action.
        as_learner_connector: Whether the batch is for training.
    """

    pipelines: ClassVar[tuple[str, ...]] = ("env_to_module", "learner")
    takes: ClassVar[tuple[str, ...]] = ("episodes",)
    reads: ClassVar[tuple[str, ...]] = (Columns.OBS,)
    writes: ClassVar[tuple[str, ...]] = (Columns.SEQ_LENS, Columns.LOSS_MASK)

    def __init__(
        self,
        input_observation_space: gym.Space[Any] | None = None,
        input_action_space: gym.Space[Any] | None = None,
        *,
        as_learner_connector: bool = False,
    ) -> None:
        super().__init__(input_observation_space, input_action_space)
        self._as_learner_connector = as_learner_connector

    def run(self, batch: dict[str, Any], call: Call) -> dict[str, Any]:
        """Reshape all columns, or none if the module has no state."""
        if not call.stateful or Columns.STATE_IN in batch:
            return batch
        if self._as_learner_connector:
            return self._pad(batch, call)
        for column in batch.values():
            if isinstance(column, EpisodeColumn) and not isinstance(column.data, list):
                column.data = map_struct(lambda leaf: leaf[:, None], column.data)
        call.shared_data["_added_single_ts_time_rank"] = True
        return batch

    def _pad(self, batch: dict[str, Any], call: Call) -> dict[str, Any]:
        layout = padded_layout(call.counts, max_seq_len(call.rl_module))
        per_chunk = np.bincount(layout.sequence_chunks, minlength=len(call.counts))
        for name, column in batch.items():
            if isinstance(column, EpisodeColumn) and not column.holds_objects:
                self._check_rows(name, column, call)
                batch[name] = EpisodeColumn(column.padded(layout), per_chunk, single=True)
        module_id = DEFAULT_MODULE_ID if call.module_id is None else call.module_id
        call.shared_data[f"_zero_padded_for_mid={module_id}"] = True
        call.rows = per_chunk
        seq_lens = self._real_steps(layout, call)
        batch[Columns.SEQ_LENS] = EpisodeColumn(seq_lens, per_chunk, single=True)
        if not call.plus_one:
            batch[Columns.LOSS_MASK] = EpisodeColumn(layout.mask, per_chunk, single=True)
        return batch

    def _real_steps(self, layout: PaddedLayout, call: Call) -> np.ndarray[Any, np.dtype[np.int64]]:
        if not call.plus_one:
            return layout.seq_lens
        last = np.append(layout.sequence_chunks[1:] != layout.sequence_chunks[:-1], True)
        real: np.ndarray[Any, np.dtype[np.int64]] = layout.seq_lens - last.astype(np.int64)
        return real

    def _check_rows(self, name: str, column: EpisodeColumn, call: Call) -> None:
        counts = np.ones_like(call.counts) if column.counts is None else column.counts
        wrong = np.flatnonzero(counts != call.counts)
        if len(wrong):
            chunk = int(wrong[0])
            raise ColumnError(
                explain(
                    f"column {name!r}, {call.describe(chunk)}",
                    expected=f"{call.counts[chunk]} rows, one per step" + " and bootstrap row" * call.plus_one,
                    found=f"{counts[chunk]} rows",
                    do="let the piece that writes it add one row per step (add_n_batch_items)",
                )
            )
