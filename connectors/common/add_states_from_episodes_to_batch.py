"""Adds the states that a recurrent module starts from."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import LookbackError, explain
from epibatch.core.structs import Form, flatten, flatten_like, form_of, map_struct, unflatten

from ...episodes.newest_rows import newest_rows
from ..acting_module import acting_module, is_stateful, max_seq_len, state_layout
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
        if not self._as_learner_connector:
            batch[Columns.STATE_IN] = EpisodeColumn(self._newest(call))
            return batch
        initial = self._initial(call)
        states, counts = self._before_each_sequence(call, initial)
        batch[Columns.STATE_IN] = EpisodeColumn(states, counts, single=True)
        if Columns.NEXT_OBS in batch:
            later, _ = self._before_each_sequence(call, initial, shift=1)
            batch[Columns.NEXT_STATE_IN] = EpisodeColumn(later, counts, single=True)
        return batch

    def _initial(self, call: Call) -> Any:
        return map_struct(_to_array, acting_module(call.rl_module).get_initial_state())

    def _newest(self, call: Call) -> Any:
        """The newest state of each chunk, or the initial one where there is none."""
        form = state_layout(call.rl_module).form
        recording = call.recording
        found = _newest_of_each(call.episodes) if recording is None else recording.latest_output(Columns.STATE_OUT)
        if found is None:
            return map_struct(lambda leaf: np.repeat(leaf[None], len(call.episodes), axis=0), self._initial(call))
        rows, has = found
        leaves = flatten_like(form, rows)
        if recording is not None:  # rows of the block
            leaves = [np.array(leaf) for leaf in leaves]
        if has is not None and not has.all():
            starts = flatten_like(form, self._initial(call))
            leaves = [_with_starts(leaf, start, has) for leaf, start in zip(leaves, starts)]
        return unflatten(form, leaves)

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


def _with_starts(leaf: Any, start: Any, has: Any) -> Any:
    """One row for each chunk: `start` for those without a state; of the others, if rows are missing, the next."""
    if len(leaf) < len(has):
        held, leaf = leaf, np.empty((len(has), *start.shape), np.result_type(leaf, start))
        leaf[has] = held
    leaf[~has] = start
    return leaf


def _newest_of_each(episodes: Any) -> tuple[Any, Any] | None:
    """The newest states that episodes hold, and which of them hold one (None: all); None if none does."""
    with suppress(KeyError):
        rows = newest_rows([episode.extra_model_outputs[Columns.STATE_OUT] for episode in episodes])
        if rows is not None:
            return rows, None
    columns = [episode.extra_model_outputs.get(Columns.STATE_OUT) for episode in episodes]
    has = np.array([column is not None and column.len_incl_lookback() > 0 for column in columns], np.bool_)
    held = [column for column, own in zip(columns, has.tolist()) if own]
    if not held:
        return None
    rows = newest_rows(held)
    if rows is None:
        form = form_of(held[0].last())
        each = zip(*(column.last_leaves(form) for column in held))
        rows = unflatten(form, [np.stack(leaf) for leaf in each])
    return rows, has
