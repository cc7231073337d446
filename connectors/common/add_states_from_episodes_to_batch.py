"""Adds the states that a recurrent module starts from."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import LookbackError, explain
from epibatch.core.structs import Form, flatten, flatten_like, map_struct, unflatten

from ..acting_module import acting_module, is_stateful, max_seq_len
from ..call import Call
from ..columnar_piece import ColumnarPiece
from ..episode_column import EpisodeColumn

__all__ = ["AddStatesFromEpisodesToBatch"]


class AddStatesFromEpisodesToBatch(ColumnarPiece):
    """Adds column `state_in` for a recurrent module.

    For acting it is the newest `state_out` of each episode, or the initial state at its start. In
    training there is one state per sequence: the one before its first step, which for the first
    sequence of a chunk comes from the chunk's lookback. No time axis is added.

    Args:
        input_observation_space: Space of one observation.
        input_action_space: Space of one action.
        as_learner_connector: Whether the batch is for training.

    Raises:
        LookbackError: a chunk goes on in the middle of an episode and kept no lookback.
    """

    pipelines: ClassVar[tuple[str, ...]] = ("env_to_module", "learner")
    takes: ClassVar[tuple[str, ...]] = ("episodes",)
    reads: ClassVar[tuple[str, ...]] = ()
    writes: ClassVar[tuple[str, ...]] = (Columns.STATE_IN,)
    lookback = 1

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
        """Add the column, unless the module has no state or the batch has the column already."""
        if not is_stateful(call.rl_module) or Columns.STATE_IN in batch or not len(call.episodes):
            return batch
        initial = map_struct(_to_array, acting_module(call.rl_module).get_initial_state())
        if self._as_learner_connector:
            states, counts = self._before_each_sequence(call, initial)
            batch[Columns.STATE_IN] = EpisodeColumn(states, counts, single=True)
            if Columns.NEXT_OBS in batch:
                later, _ = self._before_each_sequence(call, initial, shift=1)
                batch[Columns.NEXT_STATE_IN] = EpisodeColumn(later, counts, single=True)
        else:
            batch[Columns.STATE_IN] = EpisodeColumn(self._newest(call, initial))
        return batch

    def _newest(self, call: Call, initial: Any) -> Any:
        first, form = flatten(initial)
        if call.recording is not None:
            found = call.recording.latest_output(Columns.STATE_OUT)
            if found is None:
                return _repeated(initial, len(call.episodes))
            rows, has = found
            leaves = [np.array(leaf) for leaf in flatten_like(form, rows)]
            for leaf, start in zip(leaves, first):
                leaf[~has] = start
            return unflatten(form, leaves)
        rows_of = []
        for episode in call.episodes:
            column = episode.extra_model_outputs.get(Columns.STATE_OUT)
            empty = column is None or not column.len_incl_lookback()
            rows_of.append(first if empty else column.last_leaves(form))
        return unflatten(form, [_stacked(rows) for rows in zip(*rows_of)])

    def _before_each_sequence(self, call: Call, initial: Any, shift: int = 0) -> tuple[Any, Any]:
        """The state before each sequence's first step, or `shift` steps later."""
        steps = max_seq_len(call.rl_module)
        counts = -(-call.counts // steps)
        first, form = flatten(initial)
        known = self._have_states(call)
        wanted, starts = [], []
        for chunk, count in enumerate(counts.tolist()):
            at = np.arange(count, dtype=np.int64) * steps - 1
            starts.append(_fresh(at, known[chunk], call, chunk) if not shift else np.full(count, not known[chunk]))
            wanted.append(np.minimum(at + shift, call.lengths[chunk] - 1))
        fresh = np.concatenate(starts)
        out = [np.empty((len(fresh), *leaf.shape), leaf.dtype) for leaf in first]
        if not fresh.all():
            rows = self._rows(call, [at[~own] for at, own in zip(wanted, starts)], form)
            out = [leaf.astype(row.dtype, copy=False) for leaf, row in zip(out, rows)]
            for leaf, row in zip(out, rows):
                leaf[~fresh] = row
        for leaf, start in zip(out, first):
            leaf[fresh] = start
        return unflatten(form, out), counts

    def _have_states(self, call: Call) -> list[bool]:
        """Which chunks recorded the module's states."""
        if call.vector is not None:
            return [Columns.STATE_OUT in call.vector.output_names()] * len(call.episodes)
        return [Columns.STATE_OUT in episode.extra_model_outputs for episode in call.episodes]

    def _rows(self, call: Call, steps: list[Any], form: Form) -> list[Any]:
        """Leaves of `state_out` at given steps of each chunk, in the order of `form`."""
        if call.vector is not None:
            return flatten_like(form, call.vector.gather_before(Columns.STATE_OUT, steps))
        parts = []
        for episode, at in zip(call.episodes, steps):
            if len(at):
                column = episode.extra_model_outputs[Columns.STATE_OUT]
                parts.append([leaf[column.lookback + at] for leaf in flatten_like(form, column.data)])
        return [np.concatenate(leaf) for leaf in zip(*parts)]


def _fresh(at: Any, known: bool, call: Call, chunk: int) -> Any:
    """Which of a chunk's sequences start from the initial state."""
    fresh = np.full(len(at), not known)
    if known and len(at):
        started, lookback = call.history(chunk)
        if started == 0:
            fresh[0] = True
        elif lookback == 0:
            raise LookbackError(
                explain(
                    f"AddStatesFromEpisodesToBatch, {call.describe(chunk)} that starts at t={started}",
                    expected="a lookback of at least 1 step, which holds the state to start from",
                    found="no lookback",
                    do="cut episodes with len_lookback_buffer=1 or more",
                )
            )
    return fresh


def _to_array(leaf: Any) -> Any:
    return leaf.detach().cpu().numpy() if hasattr(leaf, "detach") else np.asarray(leaf)


def _repeated(struct: Any, n: int) -> Any:
    return map_struct(lambda leaf: np.repeat(leaf[None], n, axis=0), struct)


def _stacked(rows: tuple[Any, ...]) -> Any:
    return np.concatenate(rows).reshape(len(rows), *rows[0].shape) if rows[0].ndim else np.array(rows)
