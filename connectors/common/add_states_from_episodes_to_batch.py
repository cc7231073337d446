"""Adds the states that a recurrent module starts from."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import numpy as np

from epibatch.core.arrays_or_tensors import put, zeros_like
from epibatch.core.columns import Columns
from epibatch.core.errors import EpibatchWarning
from epibatch.core.padding import SequenceLayout
from epibatch.core.rl_module.module_facts import initial_state, state_layout, to_array
from epibatch.core.structs import Form, flatten, flatten_like, map_struct, unflatten

from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from .._engine.sequences import layout_of
from .._engine.windows import check_lookback
from ..columnar_piece import TwoSidedPiece
from ..tensor_step import TensorStep

__all__ = ["AddStatesFromEpisodesToBatch"]


_NAME = "AddStatesFromEpisodesToBatch"  # of subclasses too


class AddStatesFromEpisodesToBatch(TwoSidedPiece):
    """Adds column `state_in` for a recurrent module.

    For acting it is the newest `state_out` of each episode, or the initial state at its start. In
    training there is one state per sequence: the one before its first step, which for the first
    sequence of a chunk comes from the chunk's lookback. If the batch has `new_obs`, `next_state_in` is the state before
    the first of these. No time axis is added. Where sequences
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
        layout = layout_of(group)
        counts = np.bincount(layout.sequence_chunks, minlength=len(group.episodes))
        _warn_of_lost_states(group, (counts > 1) | (group.reader.starts > 0))
        names = [(Columns.STATE_IN, Columns.RESET_STATES)]
        if Columns.NEXT_OBS in columns:
            names.append((Columns.NEXT_STATE_IN, Columns.NEXT_RESET_STATES))
        ahead = np.asarray(columns["n_step"].data)[:, 0] if "n_step" in columns else 1
        for shift, (name, at_resets) in enumerate(names):
            states = None if shift else self._before_sequences(group, layout, counts)
            if states is None:
                states = self._before(group, layout.sequence_chunks, layout.offsets + shift * ahead)
            columns[name] = EpisodeColumn(states, counts)
            if layout.resets is not None:
                columns[at_resets] = EpisodeColumn(self._before_resets(group, layout, shift), counts)
        return columns

    def run_tensors(self, columns: dict[str, Any], step: TensorStep) -> dict[str, Any]:
        """Add the column, if the module has a state."""
        return columns if step.state_in is None else {**columns, Columns.STATE_IN: step.state_in}

    def _initial(self, group: ChunkGroup) -> Any:
        return map_struct(to_array, initial_state(group.rl_module))

    def _starts(self, group: ChunkGroup, chunks: Any, first: list[Any], form: Form, *, acting: bool) -> list[Any]:
        """Leaves of the states that the episodes of these chunks start from: `first`, or one row per chunk.

        A module may draw its initial states. Then each episode gets one of its own, which is noted in its
        `custom_data` while acting, for the learner.
        """
        if not state_layout(group.rl_module).random or not len(chunks):
            return first
        if group.reader.holds(Columns.STATE_IN).all():
            return flatten_like(form, group.reader.at(Columns.STATE_IN, chunks, np.zeros_like(chunks)))
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
        rows, has = group.reader.newest(Columns.STATE_OUT)
        if has is None:
            form = state_layout(group.rl_module).form
            return unflatten(form, flatten_like(form, rows))
        missing = group.reader.holds(Columns.STATE_OUT) & ~has
        check_lookback(group, Columns.STATE_OUT, missing.astype(np.int64), _NAME)
        _warn_of_lost_states(group)
        return self._filled(group, np.arange(len(has)), has, rows, acting=True)

    def _before_sequences(self, group: ChunkGroup, layout: SequenceLayout, counts: Any) -> Any:
        """The state before each sequence, if they begin at every so many steps of each chunk; else None."""
        reader, (_, _, drawn) = group.reader, state_layout(group.rl_module)
        begins = (counts > 0) & (reader.starts == 0)
        other = layout.scattered or layout.resets is not None or drawn or not reader.holds(Columns.STATE_OUT).all()
        if other or not (counts > begins).any():
            return None
        check_lookback(group, Columns.STATE_OUT, (counts > 0).astype(np.int64), _NAME)
        steps = layout.max_seq_len
        rows = reader.rows(Columns.STATE_OUT, begins * steps - 1, (counts - 1) * steps, steps)
        rows.check()
        first, form = flatten(self._initial(group))
        leaves = flatten_like(form, unflatten(rows.form, range(rows.num_leaves)))
        return unflatten(form, [rows.leaf(i, begins.astype(np.int64), fill=start) for i, start in zip(leaves, first)])

    def _before(self, group: ChunkGroup, chunks: Any, at: Any) -> Any:
        """The states before given steps of given chunks, in their order."""
        reader, first = group.reader, at == 0
        has = reader.holds(Columns.STATE_OUT)[chunks] & ~(first & (reader.starts[chunks] == 0))
        needed = np.bincount(chunks[has & first], minlength=len(group.episodes))
        check_lookback(group, Columns.STATE_OUT, np.minimum(needed, 1), _NAME)
        rows = None
        if has.any():  # where there is no state, one that there is stands in its place, so that all are read at once
            of = np.maximum.accumulate(np.where(has, np.arange(len(has)), np.argmax(has)))
            steps = np.minimum(at, (group.lengths + reader.table.ahead)[chunks]) - 1
            rows = reader.at(Columns.STATE_OUT, chunks[of], steps[of])
        return self._filled(group, chunks, has, rows, acting=False)

    def _filled(self, group: ChunkGroup, chunks: Any, has: Any, rows: Any, *, acting: bool) -> Any:
        """The rows of chunks, in their order, with initial states in the place of those that mean nothing."""
        first, form = flatten(self._initial(group))
        starts = first if has.all() else self._starts(group, chunks[~has], first, form, acting=acting)
        if has.any():
            leaves = flatten_like(form, rows)
        else:
            leaves = [zeros_like(start, (len(has), *x.shape)) for start, x in zip(starts, first)]
        if not has.all():
            if acting:  # a module's state may have another size by now
                leaves = [_resized(leaf, like.shape, np.result_type(leaf, like)) for leaf, like in zip(leaves, first)]
            for leaf, start in zip(leaves, starts):
                put(leaf, ~has, start)
        return unflatten(form, leaves)

    def _before_resets(self, group: ChunkGroup, layout: SequenceLayout, shift: int) -> Any:
        """The state that each sequence goes on from at its resets, in order: [B, most of one sequence, ...]."""
        starts = np.flatnonzero(np.asarray(layout.resets))
        sequences = starts // layout.max_seq_len
        chunks = np.searchsorted(np.cumsum(layout.counts), starts, side="right")
        states = self._before(group, chunks, np.full_like(chunks, shift))
        per_sequence = np.bincount(sequences, minlength=layout.num_sequences)
        place = np.arange(len(sequences)) - np.repeat(np.cumsum(per_sequence) - per_sequence, per_sequence)
        shape = (layout.num_sequences, int(per_sequence.max(initial=0)))

        def placed(leaf: Any) -> Any:
            out = zeros_like(leaf, (*shape, *leaf.shape[1:]))
            out[sequences, place] = leaf
            return out

        return map_struct(placed, states)


def _resized(rows: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    out = np.empty((len(rows), *shape), dtype)
    out[:] = rows
    return out


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
