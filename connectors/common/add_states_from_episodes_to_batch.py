"""Adds the states that a recurrent module starts from."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import LookbackError
from epibatch.core.padding import PaddedLayout
from epibatch.core.structs import Form, flatten, flatten_like, form_of, map_struct, unflatten

from ...episodes._storage.newest_rows import newest_rows
from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from .._engine.modules import initial_state, state_layout, to_array
from .._engine.sequences import layout_of
from ..columnar_piece import ColumnarPiece

__all__ = ["AddStatesFromEpisodesToBatch"]


class AddStatesFromEpisodesToBatch(ColumnarPiece):
    """Adds column `state_in` for a recurrent module.

    For acting it is the newest `state_out` of each episode, or the initial state at its start. In
    training there is one state per sequence: the one before its first step, which for the first
    sequence of a chunk comes from the chunk's lookback. No time axis is added. Where sequences
    hold several chunks, `reset_states` has the states to go on from at their `resets`, in order. If the module draws
    its initial states, each episode that begins while acting gets a draw of its own. It is kept in the episode's
    `custom_data["state_in"]`, where the learner finds it.

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
    writes: ClassVar[tuple[str, ...]] = (Columns.STATE_IN, Columns.RESET_STATES)
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

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Add the column, unless the module has no state or the batch has the column already."""
        if not group.stateful or Columns.STATE_IN in columns or not len(group.episodes):
            return columns
        if not self._as_learner_connector:
            columns[Columns.STATE_IN] = EpisodeColumn(self._newest(group))
            return columns
        initial, layout = self._initial(group), layout_of(group)
        counts = np.bincount(layout.sequence_chunks, minlength=len(group.counts))
        names = [(Columns.STATE_IN, Columns.RESET_STATES)]
        if Columns.NEXT_OBS in columns:
            names.append((Columns.NEXT_STATE_IN, Columns.NEXT_RESET_STATES))
        for shift, (name, at_resets) in enumerate(names):
            states = self._before_each_sequence(group, layout, counts, initial, shift)
            columns[name] = EpisodeColumn(states, counts)
            if layout.resets is not None:
                columns[at_resets] = EpisodeColumn(self._before_resets(group, layout, initial, shift), counts)
        return columns

    def _initial(self, group: ChunkGroup) -> Any:
        return map_struct(to_array, initial_state(group.rl_module))

    def _starts(self, group: ChunkGroup, chunks: Any, initial: Any, *, acting: bool) -> list[Any]:
        """Leaves of the states that the episodes of these chunks start from: `initial`, or one row per chunk.

        A module may draw its initial states. Then each episode gets one of its own, which is noted in its
        `custom_data` while acting, for the learner.
        """
        first, form = flatten(initial)
        if not state_layout(group.rl_module).random or not len(chunks):
            return first
        numbers, each = np.unique(chunks, return_inverse=True)
        rows = []
        for chunk in numbers.tolist():
            notes = group.episodes[chunk].custom_data
            if acting:
                notes[Columns.STATE_IN] = map_struct(np.array, self._initial(group))
            noted = notes[Columns.STATE_IN] if Columns.STATE_IN in notes else self._initial(group)
            rows.append(flatten_like(form, noted))
        return [np.stack(leaf)[each] for leaf in zip(*rows)]

    def _newest(self, group: ChunkGroup) -> Any:
        """The newest state of each chunk, or the initial one where there is none."""
        form = state_layout(group.rl_module).form
        recording = group.recording
        found = _newest_of_each(group.episodes) if recording is None else recording.latest_output(Columns.STATE_OUT)
        if recording is None and (found is None or found[1] is not None):
            _refuse_lost_states(group)
        if found is None:
            initial, every = self._initial(group), np.arange(len(group.episodes))
            first, form = flatten(initial)
            pairs = zip(first, self._starts(group, every, initial, acting=True))
            return unflatten(form, [np.array(np.broadcast_to(own, (len(every), *leaf.shape))) for leaf, own in pairs])
        rows, has = found
        leaves = flatten_like(form, rows)
        if recording is not None:  # rows of the block
            leaves = [np.array(leaf) for leaf in leaves]
        if has is not None and not np.logical_and.reduce(has):
            initial = unflatten(form, flatten_like(form, self._initial(group)))
            starts = self._starts(group, np.flatnonzero(~np.asarray(has)), initial, acting=True)
            leaves = [_with_starts(leaf, start, has) for leaf, start in zip(leaves, starts)]
        return unflatten(form, leaves)

    def _before_each_sequence(
        self, group: ChunkGroup, layout: PaddedLayout, counts: Any, initial: Any, shift: int = 0
    ) -> Any:
        """The state before each sequence's first step, or `shift` steps later."""
        drawn = state_layout(group.rl_module).random
        if not shift and not layout.scattered and layout.resets is None and group.vector is None and not drawn:
            known = self._have_states(group)
            begins = known & (counts > 0) & self._begins(group, known & (counts > 0))
            if known.all() and (counts > begins).any():
                first, form = flatten(initial)
                return unflatten(form, _woven(group, begins, counts, layout.max_seq_len, first, form))
        return self._before(group, layout.sequence_chunks, layout.offsets, initial, shift)

    def _before(self, group: ChunkGroup, chunks: Any, at: Any, initial: Any, shift: int) -> Any:
        """The state before given steps of given chunks, in their order, or `shift` steps later."""
        first, form = flatten(initial)
        known = self._have_states(group)
        fresh = ~known[chunks]
        if not shift:
            wanted = np.zeros(len(known), np.bool_)
            wanted[chunks[at == 0]] = True
            wanted &= known
            fresh |= (at == 0) & (wanted & self._begins(group, wanted))[chunks]
        if fresh.all():
            out = [np.empty((len(fresh), *leaf.shape), leaf.dtype) for leaf in first]
        else:
            old = ~fresh
            steps = np.minimum(at - 1 + shift, group.lengths[chunks] - 1)[old]
            rows = self._rows(group, chunks[old], steps, form)
            out = [np.empty((len(fresh), *leaf.shape), row.dtype) for leaf, row in zip(first, rows)]
            for leaf, row in zip(out, rows):
                leaf[old] = row
        for leaf, start in zip(out, self._starts(group, chunks[fresh], initial, acting=False)):
            leaf[fresh] = start
        return unflatten(form, out)

    def _before_resets(self, group: ChunkGroup, layout: PaddedLayout, initial: Any, shift: int = 0) -> Any:
        """The state that each sequence goes on from at its resets, in order: [B, most of one sequence, ...]."""
        starts = np.flatnonzero(np.asarray(layout.resets))
        sequences = starts // layout.max_seq_len
        chunks = np.searchsorted(np.cumsum(layout.counts), starts, side="right")
        states = self._before(group, chunks, np.zeros_like(chunks), initial, shift)
        per_sequence = np.bincount(sequences, minlength=layout.num_sequences)
        place = np.arange(len(sequences)) - np.repeat(np.cumsum(per_sequence) - per_sequence, per_sequence)
        shape = (layout.num_sequences, int(per_sequence.max(initial=0)))

        def placed(leaf: Any) -> Any:
            out = np.zeros((*shape, *leaf.shape[1:]), leaf.dtype)
            out[sequences, place] = leaf
            return out

        return map_struct(placed, states)

    def _have_states(self, group: ChunkGroup) -> Any:
        """Which chunks recorded the module's states: bool, [chunks]."""
        if group.vector is not None:
            return np.full(len(group.episodes), Columns.STATE_OUT in group.vector.output_names())
        return np.array([Columns.STATE_OUT in episode.extra_model_outputs for episode in group.episodes], np.bool_)

    def _begins(self, group: ChunkGroup, wanted: Any) -> Any:
        """Which chunks start with their episode's reset; each other one that is wanted needs lookback."""
        started, lookbacks = group.histories()
        without = np.flatnonzero(wanted & (started != 0) & (lookbacks == 0))
        if len(without):
            chunk = int(without[0])
            raise LookbackError(
                f"AddStatesFromEpisodesToBatch, {group.describe(chunk)} that starts at t={started[chunk]}",
                expected="a lookback of at least 1 step, which holds the state to start from",
                found="no lookback",
                do=f"cut episodes with {_lookback(group.episodes[chunk])}",
            )
        return started == 0

    def _rows(self, group: ChunkGroup, chunks: Any, steps: Any, form: Form) -> list[Any]:
        """Leaves of `state_out` at given steps of given chunks, in the order of `form`."""
        if group.vector is not None:
            return flatten_like(form, group.vector.gather_at(Columns.STATE_OUT, chunks, steps))
        parts, stop = [], 0
        for chunk, count in zip(*(own.tolist() for own in np.unique(chunks, return_counts=True))):
            start, stop = stop, stop + count
            at = steps[start:stop]
            low = int(at[0])
            leaves = _states(group.episodes[chunk], low, int(at[-1]) + 1, form)
            parts.append([leaf[at - low] for leaf in leaves])
        return [np.concatenate(leaf) for leaf in zip(*parts)]


def _lookback(episode: Any) -> str:
    """The argument of `cut` that keeps a step of an episode's."""
    return "len_lookback_buffer=1 or more" if episode.multi_agent_episode_id is None else "agent_steps=1 or more"


def _refuse_lost_states(group: ChunkGroup) -> None:
    """Raise for an episode that recorded states before this chunk, of which it kept none."""
    for chunk, episode in enumerate(group.episodes):
        column = episode.extra_model_outputs.get(Columns.STATE_OUT)
        if episode.t_started and column is not None and not column.len_incl_lookback():
            raise LookbackError(
                f"AddStatesFromEpisodesToBatch, {group.describe(chunk)} that goes on at t={episode.t_started}",
                expected="the newest state, in the chunk or its lookback",
                found="no lookback",
                do=f"cut episodes with {_lookback(episode)}",
            )


def _states(episode: Any, start: int, stop: int, form: Form) -> list[Any]:
    """Leaves of an episode's states, in the order of `form`."""
    column = episode.extra_model_outputs[Columns.STATE_OUT]
    leaves: list[Any] = column.rows(start, stop)
    return leaves if column.form == form else flatten_like(form, unflatten(column.form, leaves))


def _woven(group: ChunkGroup, begins: Any, counts: Any, steps: int, first: list[Any], form: Form) -> list[Any]:
    """The states before all sequences: every `steps`-th of each chunk, and `first` where an episode begins."""
    parts: list[list[Any]] = []
    begin: list[Any] = []
    found: list[Any] = []
    for episode, at_reset, count in zip(group.episodes, begins.tolist(), counts.tolist()):
        if at_reset:
            parts.append(begin)
        if count > at_reset:
            found = _states(episode, at_reset * steps - 1, (count - 1) * steps, form)
            parts.append([leaf[::steps] for leaf in found])
    begin += [np.broadcast_to(start, leaf.shape[1:]).astype(leaf.dtype)[None] for start, leaf in zip(first, found)]
    return [np.concatenate(leaf) for leaf in zip(*parts)]


def _with_starts(leaf: Any, start: Any, has: Any) -> Any:
    """One row for each chunk: `start`, or its rows, where it has no state; else, if rows are missing, the next."""
    if len(leaf) < len(has):
        shape = np.shape(start)[np.ndim(start) - leaf.ndim + 1 :]  # of one state, now
        held, leaf = leaf, np.empty((len(has), *shape), np.result_type(leaf, start))
        leaf[has] = held
    leaf[~has] = start
    return leaf


def _newest_of_each(episodes: Any) -> tuple[Any, Any] | None:
    """The newest states that episodes hold, and which of them hold one (None: all); None if none does."""
    try:
        rows = newest_rows([episode.extra_model_outputs[Columns.STATE_OUT] for episode in episodes])
    except KeyError:
        rows = None
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
