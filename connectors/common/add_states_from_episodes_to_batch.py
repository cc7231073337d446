"""Adds the states that a recurrent module starts from."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import EpibatchWarning
from epibatch.core.padding import SequenceLayout
from epibatch.core.structs import Form, flatten, flatten_like, map_struct, unflatten

from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from .._engine.modules import initial_state, state_layout, to_array
from .._engine.sequences import layout_of
from .._engine.windows import check_lookback
from ..columnar_piece import TwoSidedPiece

__all__ = ["AddStatesFromEpisodesToBatch"]


class AddStatesFromEpisodesToBatch(TwoSidedPiece):
    """Adds column `state_in` for a recurrent module.

    For acting it is the newest `state_out` of each episode, or the initial state at its start. In
    training there is one state per sequence: the one before its first step, which for the first
    sequence of a chunk comes from the chunk's lookback. No time axis is added. Where sequences
    hold several chunks, `reset_states` has the states to go on from at their `resets`, in order. If the module draws
    its initial states, each episode that begins while acting gets a draw of its own. It is kept in the episode's
    `custom_data["state_in"]`, where the learner finds it.

    Counterparts: RLlib's `AddStatesFromEpisodesToBatch`, TorchRL's `TensorDictPrimer`, `InitTracker`.

    Raises:
        LookbackError: a chunk starts in the middle of an episode and keeps no lookback.
    """

    writes: ClassVar[tuple[str, ...]] = (Columns.STATE_IN, Columns.RESET_STATES)
    needs_episodes: ClassVar[bool] = True
    lookback = 1

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Add the column, unless the module has no state or the batch has the column already."""
        if not group.stateful or Columns.STATE_IN in columns:
            return columns
        if not self.as_learner_connector:
            columns[Columns.STATE_IN] = EpisodeColumn(self._newest(group))
            return columns
        initial, layout = self._initial(group), layout_of(group)
        counts = np.bincount(layout.sequence_chunks, minlength=len(group.episodes))
        _warn_of_lost_states(group, (counts > 1) | (group.reader.starts > 0))
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
        numbers, inverse = np.unique(chunks, return_inverse=True)
        rows = []
        for chunk in numbers.tolist():
            notes = group.episodes[chunk].custom_data
            if acting:
                notes[Columns.STATE_IN] = map_struct(np.array, self._initial(group))
            state = notes[Columns.STATE_IN] if Columns.STATE_IN in notes else self._initial(group)
            rows.append(flatten_like(form, state))
        return [np.stack(leaf)[inverse] for leaf in zip(*rows)]

    def _newest(self, group: ChunkGroup) -> Any:
        """The newest state of each chunk, or the initial one where there is none."""
        form = state_layout(group.rl_module).form
        rows, has = group.reader.newest(Columns.STATE_OUT)
        if has is not None:
            missing = group.reader.holds(Columns.STATE_OUT) & ~has
            check_lookback(group, Columns.STATE_OUT, missing.astype(np.int64), "AddStatesFromEpisodesToBatch")
            _warn_of_lost_states(group)
        if rows is None:
            initial, indices = self._initial(group), np.arange(len(group.episodes))
            first, form = flatten(initial)
            pairs = zip(first, self._starts(group, indices, initial, acting=True))
            return unflatten(form, [np.array(np.broadcast_to(row, (len(indices), *leaf.shape))) for leaf, row in pairs])
        leaves = flatten_like(form, rows)
        if has is not None:
            initial = unflatten(form, flatten_like(form, self._initial(group)))
            starts = self._starts(group, np.flatnonzero(~has), initial, acting=True)
            leaves = [_with_starts(leaf, start, has) for leaf, start in zip(leaves, starts)]
        return unflatten(form, leaves)

    def _before_each_sequence(
        self, group: ChunkGroup, layout: SequenceLayout, counts: Any, initial: Any, shift: int = 0
    ) -> Any:
        """The state before each sequence's first step, or `shift` steps later."""
        drawn = state_layout(group.rl_module).random
        if not shift and not layout.scattered and layout.resets is None and not drawn:
            has_states = group.reader.holds(Columns.STATE_OUT)
            begins = has_states & (counts > 0) & self._begins(group, has_states & (counts > 0))
            if has_states.all() and (counts > begins).any():
                first, form = flatten(initial)
                return unflatten(form, _every(group, begins, counts, layout.max_seq_len, first, form))
        return self._before(group, layout.sequence_chunks, layout.offsets, initial, shift)

    def _before(self, group: ChunkGroup, chunks: Any, at: Any, initial: Any, shift: int) -> Any:
        """The state before given steps of given chunks, in their order, or `shift` steps later."""
        first, form = flatten(initial)
        has_states = group.reader.holds(Columns.STATE_OUT)
        at_reset = ~has_states[chunks]
        if not shift:
            first_chunks = np.zeros(len(has_states), np.bool_)
            first_chunks[chunks[at == 0]] = True
            first_chunks &= has_states
            at_reset |= (at == 0) & (first_chunks & self._begins(group, first_chunks))[chunks]
        if at_reset.all():
            out = [np.empty((len(at_reset), *leaf.shape), leaf.dtype) for leaf in first]
        else:
            old = ~at_reset
            steps = np.minimum(at - 1 + shift, group.lengths[chunks] - 1)[old]
            rows = flatten_like(form, group.reader.at(Columns.STATE_OUT, chunks[old], steps))
            out = [np.empty((len(at_reset), *leaf.shape), row.dtype) for leaf, row in zip(first, rows)]
            for leaf, row in zip(out, rows):
                leaf[old] = row
        for leaf, start in zip(out, self._starts(group, chunks[at_reset], initial, acting=False)):
            leaf[at_reset] = start
        return unflatten(form, out)

    def _before_resets(self, group: ChunkGroup, layout: SequenceLayout, initial: Any, shift: int = 0) -> Any:
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

    def _begins(self, group: ChunkGroup, mask: Any) -> Any:
        """Return a mask of the chunks that start with their episode's reset. Other chunks of `mask` need lookback."""
        check_lookback(group, Columns.STATE_OUT, mask.astype(np.int64), "AddStatesFromEpisodesToBatch")
        return group.reader.starts == 0


def _warn_of_lost_states(group: ChunkGroup, reads_later: Any = False) -> None:
    """Warn of steps whose episodes do not hold the state after them.

    Args:
        group: The chunks. Those with log-probabilities had such states.
        reads_later: Mask of the chunks in which a sequence begins after the reset.
    """
    lost = (group.reader.holds(Columns.ACTION_LOGP) | reads_later) & ~group.reader.holds(Columns.STATE_OUT)
    if lost.any():
        warnings.warn(
            EpibatchWarning(
                f"AddStatesFromEpisodesToBatch, {type(group.rl_module).__name__}",
                expected=f"a {Columns.STATE_OUT!r} for each step of a recurrent module",
                found="episodes without it, so their sequences start from the initial state",
                do=f"store it with each step: extra_model_outputs={{{Columns.STATE_OUT!r}: ...}}; for data that has "
                "none, a max_seq_len of whole episodes starts each sequence at its reset",
            ),
            stacklevel=2,
        )


def _every(group: ChunkGroup, begins: Any, counts: Any, steps: int, first: list[Any], form: Form) -> list[Any]:
    """The states before all sequences: every `steps`-th of each chunk, and `first` where an episode begins."""
    states = group.reader.rows(Columns.STATE_OUT, begins * steps - 1, (counts - 1) * steps, steps)
    states.check()
    order = flatten_like(form, unflatten(states.form, list(range(states.num_leaves))))
    before = begins.astype(np.int64)
    return [states.leaf(i, before, fill=start) for i, start in zip(order, first)]


def _with_starts(leaf: Any, start: Any, has: Any) -> Any:
    """Its row for each chunk that has a state, else `start`."""
    shape = np.shape(start)[np.ndim(start) - leaf.ndim + 1 :]  # of one state, now
    out = np.empty((len(has), *shape), np.result_type(leaf, start))
    out[has], out[~has] = leaf[has], start
    return out
