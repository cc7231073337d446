"""Copying a piece's changes of converted episodes back to the original episodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from epibatch.core.errors import EpisodeStateError
from epibatch.core.structs import flatten
from epibatch.episodes._storage.growing_column import NOTHING
from epibatch.episodes.arrays import Leaf, owned, same_leaf, same_value
from epibatch.episodes.infinite_lookback_buffer import InfiniteLookbackBuffer
from epibatch.episodes.single_agent_episode import SingleAgentEpisode

from .episodes import row_list, to_epibatch_column, to_rllib_buffer, to_rllib_rows, without_lists

_FACTS = ("is_terminated", "is_truncated", "observation_space", "action_space")
_NAMES = ("observations", "actions", "rewards")


class EpibatchChanges:
    """Copies changes of our episode back to RLlib's episode, from which it was made without copying.

    Args:
        theirs: RLlib's.
        ours: Ours.
    """

    def __init__(self, theirs: Any, ours: SingleAgentEpisode) -> None:
        self._theirs, self._ours = theirs, ours
        self._facts = {name: getattr(ours, name) for name in _FACTS}
        self._length = len(ours)
        buffers = _columns(theirs)
        self._before = {
            name: ([leaf.copy() for leaf in _stored(column)], owned(column.raw_row()))
            for name, column in _columns(ours).items()
            if not buffers[name].finalized
        }

    def write_back(self) -> None:
        """Write the changes; shared arrays have them already."""
        theirs, ours = self._theirs, self._ours
        buffers = _columns(theirs)
        for name, column in _columns(ours).items():
            if name not in buffers:
                make = type(theirs.rewards)
                theirs.extra_model_outputs[name] = to_rllib_buffer(make, column, numpy=theirs.is_numpy, copy=False)
                continue
            buffer = buffers[name]
            if name not in self._before:
                if not _shows(buffer.data, column):
                    buffer.data = to_rllib_rows(column)
                    buffer.finalized = not isinstance(buffer.data, list)
            elif len(ours) != self._length:
                buffer.data = row_list(column)
            else:
                self._write_rows(buffer, column, self._before[name])
        if len(ours) != self._length or any(a is not b for a, b in zip(theirs.infos.data, ours.infos.data)):
            theirs.infos.data = list(ours.infos.data)
        theirs.t = ours.t
        for name, before in self._facts.items():
            if getattr(ours, name) is not before:
                setattr(theirs, name, getattr(ours, name))

    @staticmethod
    def _write_rows(buffer: Any, column: InfiniteLookbackBuffer, before: tuple[list[Leaf], Any]) -> None:
        leaves, raw = before
        after = _stored(column)
        changed = np.zeros(len(buffer.data), np.bool_)
        if len(leaves) != len(after) or any(a.shape[1:] != b.shape[1:] for a, b in zip(leaves, after)):
            changed[:] = True
        else:
            for old, new in zip(leaves, after):
                count = min(len(old), len(new))
                changed[:count] |= _differ(old[:count], new[:count])
        if len(changed) and not same_value(column.raw_row(), raw):
            changed[-1] = True
        rows = row_list(column) if changed.any() else []
        for i in np.flatnonzero(changed).tolist():
            buffer.data[i] = rows[i]


class RLlibChanges:
    """Copies changes of RLlib's episode back to our episode, from which it was made without copying.

    Args:
        ours: Ours.
        theirs: RLlib's.
    """

    def __init__(self, ours: SingleAgentEpisode, theirs: Any) -> None:
        self._ours, self._theirs = ours, theirs
        self._length = len(theirs)
        self._facts = {name: getattr(theirs, name) for name in _FACTS}
        data = {name: buffer.data for name, buffer in _columns(theirs).items()}
        self._rows = {name: list(rows) if isinstance(rows, list) else rows for name, rows in data.items()}
        self._infos = list(theirs.infos.data)

    def write_back(self, piece: str) -> None:
        """Write the changes; shared arrays have them already.

        Args:
            piece: The class of the piece, for the message.

        Raises:
            EpisodeStateError: steps were added or removed, or the pipeline does not allow the change.
        """
        ours, theirs = self._ours, self._theirs
        if len(theirs) != self._length:
            raise EpisodeStateError(
                f"{piece} of RLlib's, episode {ours.id_!r}",
                expected=f"an episode of {self._length} steps, as it was",
                found=f"{len(theirs)} steps",
                do="change the rows of steps only; AddOneTsToEpisodesAndTruncate adds bootstrap rows to the batch",
            )
        for name, buffer in _columns(theirs).items():
            if name not in self._rows:
                ours.extra_model_outputs[name] = to_epibatch_column(buffer)
                continue
            original = self._rows[name]
            if not isinstance(buffer.data, list):
                if buffer.data is not original:
                    _write(ours, name, to_epibatch_column(buffer).data, slice(-buffer.lookback, None))
                continue
            for i, row in enumerate(buffer.data):
                if row is not original[i]:
                    _write(ours, name, row, i - buffer.lookback)
        for i, info in enumerate(theirs.infos.data):
            if info is not self._infos[i]:
                ours.infos.set(info, at_indices=i - theirs.infos.lookback, neg_index_as_lookback=True)
        for name, before in self._facts.items():
            if getattr(theirs, name) is not before:
                setattr(ours, name, getattr(theirs, name))


def _columns(episode: Any) -> dict[str, Any]:
    """Return the columns of an episode of either library, without infos."""
    return {**{name: getattr(episode, name) for name in _NAMES}, **episode.extra_model_outputs}


def _write(episode: SingleAgentEpisode, name: str, rows: Any, indices: Any) -> None:
    """Overwrite rows as a piece would, by positions from the chunk's start."""
    where = {"new_data": rows, "at_indices": indices, "neg_index_as_lookback": True}
    if name in _NAMES:
        getattr(episode, f"set_{name}")(**where)
    else:
        episode.set_extra_model_outputs(key=name, **where)


def _stored(column: InfiniteLookbackBuffer) -> list[Leaf]:
    """Return the rows in the column's arrays, without a newest row that does not fit them yet."""
    count = column.len_incl_lookback() - (column.raw_row() is not NOTHING)
    return column.rows(-column.lookback, count - column.lookback)


def _shows(data: Any, column: InfiniteLookbackBuffer) -> bool:
    """True if RLlib's stacked rows are a column's own arrays, or equal to them."""
    if column.raw_row() is not NOTHING:
        return False
    leaves, form = flatten(without_lists(data))
    arrays = _stored(column)
    if form != column.form or len(leaves) != len(arrays):
        return False
    return all(_same_memory(a, b) or _same(a, b) for a, b in zip(leaves, arrays))


def _same_memory(a: Any, b: Leaf) -> bool:
    if not isinstance(a, np.ndarray) or (a.dtype, a.shape, a.strides) != (b.dtype, b.shape, b.strides):
        return False
    return bool(a.__array_interface__["data"] == b.__array_interface__["data"])


def _same(a: Any, b: Leaf) -> bool:
    if isinstance(a, np.ndarray) and a.dtype.kind in "US":
        return bool(b.dtype == object and a.tolist() == b.tolist())
    return isinstance(a, np.ndarray) and same_leaf(a, b)


def _differ(left: Leaf, right: Leaf) -> Any:
    """Return the mask of the rows in which two leaves differ; NaN equals NaN."""
    if object in (left.dtype, right.dtype):
        return np.array([not same_value(a, b) for a, b in zip(left, right)], np.bool_)
    unequal = (left != right) & ~((left != left) & (right != right))
    return unequal.reshape(len(unequal), -1).any(1) if unequal.ndim > 1 else unequal
