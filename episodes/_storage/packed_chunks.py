"""Chunks of a block as data for another process: a few arrays, whatever their number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from epibatch.core.columns import Columns
from epibatch.core.structs import unflatten

from ..infinite_lookback_buffer import NOTHING
from ..single_agent_episode import SingleAgentEpisode
from .arrays import Leaf, fits_exactly, leaves_like, same_value
from .block import Block, BlockColumn
from .chunk import Chunk
from .infos_buffer import InfosBuffer

Ints = npt.NDArray[np.int64]

_COLUMNS = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)
_MOST = 0.75
"""The share of a block's rows from which on the block travels as it is, and the rows are not gathered."""


def pack_chunks(chunks: Sequence[Chunk]) -> dict[str, Any]:
    """Return what `unpack_chunks` makes chunks of: data, with arrays that show the block where possible.

    Args:
        chunks: Finished ones of one block, at least one. What was done to the episode objects that show them counts.
    """
    block = chunks[0].block
    spans = np.array([(chunk.env, chunk.low, chunk.start, chunk.stop) for chunk in chunks], np.int64).T
    moved = _Rows(block, spans)
    views = {i: view for i, chunk in enumerate(chunks) if (view := chunk.shown) is not None} if block.views else {}
    whole = {i: view for i, view in views.items() if chunks[i].replaced or not _is_plain(view, chunks[i])}
    views = {i: view for i, view in views.items() if i not in whole}
    spaces = [chunk.spaces for chunk in chunks]
    for i, view in views.items():
        spaces[i] = (view.observation_space, view.action_space)
    kinds = {(id(pair[0]), id(pair[1])): pair for pair in spaces}
    order = list(kinds)
    customs = {i: custom for i, chunk in enumerate(chunks) if (custom := _custom_data(chunk, views.get(i)))}
    return {
        "columns": {name: moved.column(name) for name in (*_COLUMNS, *block.extras)},
        "unknown_rewards": block.unknown_rewards,
        "num_rows": moved.num_rows,
        "num_envs": moved.num_envs,
        "spans": moved.spans,
        "origins": moved.origins(chunks),
        "returns_before": block.returns_before,
        "infos": moved.infos(chunks),
        "ids": [chunk.name for chunk in chunks],
        "t_started": np.array([chunk.t_started for chunk in chunks], np.int64),
        "flags": np.array([(*chunk.ends, chunk.is_first) for chunk in chunks], np.bool_),
        "spaces": list(kinds.values()),
        "space_of": [order.index((id(pair[0]), id(pair[1]))) for pair in spaces] if len(kinds) > 1 else None,
        "custom_data": customs,
        "tails": _stacked_tails(block.observations, chunks),
        "tail_infos": {i: chunk.tail_infos for i, chunk in enumerate(chunks) if chunk.tail_infos is not None},
        "read_infos": {i: read for i, view in views.items() if (read := _changed_infos(chunks[i], view))},
        "whole": whole,
    }


def unpack_chunks(data: dict[str, Any]) -> tuple[Block, list[Chunk], list[SingleAgentEpisode | None]]:
    """Return a block of the arrays of packed chunks, the chunks, and the episode objects that exist already."""
    block = Block(data["num_envs"], data["num_rows"], data["num_rows"])
    columns = {name: BlockColumn(*parts) for name, parts in data["columns"].items()}
    block.observations, block.actions, block.rewards = (columns.pop(name) for name in _COLUMNS)
    block.extras, block.unknown_rewards = columns, data["unknown_rewards"]
    block.returns_before = data["returns_before"]
    block.infos, block.own_infos = data["infos"]
    spaces, space_of, customs, origins = data["spaces"], data["space_of"], data["custom_data"], data["origins"]
    chunks = []
    facts = zip(data["spans"].T.tolist(), data["ids"], data["t_started"].tolist(), data["flags"].tolist())
    for i, ((env, low, start, stop), name, t_started, (terminated, truncated, is_first)) in enumerate(facts):
        pair = spaces[0 if space_of is None else space_of[i]]
        chunk = Chunk(block, env, low, start, pair, name, t_started, customs.get(i), is_first)
        chunk.stop, chunk.terminated, chunk.truncated = stop, terminated, truncated
        if origins is not None:
            chunk.origin = origins[i]
        chunks.append(chunk)
    for i, tail in _tails(data["tails"]):
        chunks[i].tail = tail
    for i, infos in data["tail_infos"].items():
        chunks[i].tail_infos = infos
    views: list[SingleAgentEpisode | None] = [None] * len(chunks)
    for i, read in data["read_infos"].items():
        view = views[i] = chunks[i].view()
        for position, info in read.items():
            view.infos.set(info, at_indices=position - view.lookback, neg_index_as_lookback=True)
    for i, view in data["whole"].items():
        views[i] = view
        chunks[i].show_in(view)
    return block, chunks, views


class _Rows:
    """The rows of a block that chunks have: those from the first to the last, or gathered if they are few.

    Args:
        block: The block.
        spans: Environment, first row, start and stop of each chunk: int64 [4, C].

    Attributes:
        spans: The same in the block that the rows are for.
        num_envs: Environments of that block; gathered rows are those of one.
        num_rows: Its steps.
    """

    def __init__(self, block: Block, spans: Ints) -> None:
        self._block = block
        envs, lows, starts, stops = self._from = spans
        self._first, self._last = int(lows.min()), int(stops.max())
        counts = stops + 1 - lows
        self._at: Ints | None = None
        self.num_envs, self.num_rows = block.num_envs, self._last - self._first
        self.spans = spans - self._first * np.array([[0], [1], [1], [1]])
        if counts.sum() < _MOST * (self.num_rows + 1) * block.num_envs:
            ends = np.cumsum(counts)
            at = np.arange(ends[-1], dtype=np.int64) * block.num_envs
            self._at = at + np.repeat(lows * block.num_envs + envs - (ends - counts) * block.num_envs, counts)
            self.num_envs, self.num_rows = 1, int(ends[-1]) - 1
            shift = ends - counts - lows
            self.spans = np.stack([np.zeros_like(envs), ends - counts, starts + shift, stops + shift])

    def column(self, name: str) -> tuple[Any, list[Leaf]]:
        """Form and leaves of a column, as much of it as is needed."""
        column, num_rows = self._block.column(name), self.num_rows + (name == Columns.OBS)
        if column is None:
            return None, []
        if self._at is None:
            return column.form, [leaf[self._first : self._first + num_rows] for leaf in column.leaves]
        flat = [leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]) for leaf in column.leaves]
        return column.form, [np.take(leaf, self._at[:num_rows], axis=0, mode="clip")[:, None] for leaf in flat]

    def origins(self, chunks: Sequence[Chunk]) -> list[tuple[int, float]] | None:
        """Environment and return before of each chunk, if they cannot be seen any more where the rows are."""
        if self._at is None and all(chunk.origin is None for chunk in chunks):
            return None
        return [(chunk.env if chunk.origin is None else chunk.origin[0], chunk.return_before) for chunk in chunks]

    def infos(self, chunks: Sequence[Chunk]) -> tuple[dict[int, Any], dict[tuple[int, int], Any]]:
        """The infos of whole vector steps, and those of single environments, by their new places."""
        block, first, last = self._block, self._first, self._last
        if not block.infos and not block.own_infos:
            return {}, {}
        if self._at is None:
            own = {(row - first, env): info for (row, env), info in block.own_infos.items() if first <= row <= last}
            return {row - first: infos for row, infos in block.infos.items() if first <= row <= last}, own
        rows = np.array(sorted({*block.infos, *(row for row, _ in block.own_infos)}), np.int64)
        moved = {}
        for chunk, low, shift in zip(chunks, self._from[1].tolist(), (self.spans[1] - self._from[1]).tolist()):
            stop = chunk.end + (chunk.tail_infos is None)
            for row in rows[np.searchsorted(rows, low) : np.searchsorted(rows, stop)].tolist():
                if info := block.info_at(row, chunk.env):
                    moved[row + shift, 0] = info
        return {}, moved


def _is_plain(view: SingleAgentEpisode, chunk: Chunk) -> bool:
    """Return True if an episode object has nothing that a chunk has no place for."""
    names = (view.agent_id, view.module_id, view.multi_agent_episode_id, view.given_observation_space)
    if type(view) is not SingleAgentEpisode or names != (None,) * 4 or view.get_duration_s():
        return False
    return type(view.infos) is InfosBuffer and view.infos.len_incl_lookback() == chunk.end + 1 - chunk.low


def _custom_data(chunk: Chunk, view: SingleAgentEpisode | None) -> dict[str, Any] | None:
    return chunk.custom_data if view is None else view.custom_data


def _changed_infos(chunk: Chunk, view: SingleAgentEpisode) -> dict[int, Any]:
    """The infos of an episode object that differ from those of the chunk, by position."""
    read = view.infos.rows_read().items()
    return {position: info for position, info in read if not same_value(info, chunk.info_at(position))}


def _stacked_tails(column: BlockColumn, chunks: Sequence[Chunk]) -> Any:
    """The terminal observations that lie apart: which chunks have one, and the rows, stacked if they fit the column."""
    tails = {i: chunk.tail for i, chunk in enumerate(chunks) if chunk.tail is not NOTHING}
    rows = [leaves_like(column.form, tail) for tail in tails.values()]
    fit = all(row is not None and all(map(fits_exactly, _steps(column), row)) for row in rows)
    if not tails or not fit or any(leaf.dtype == object for leaf in column.leaves):
        return tails, None, None
    return list(tails), column.form, [np.array(leaf) for leaf in zip(*rows)]


def _steps(column: BlockColumn) -> list[Leaf]:
    return [leaf[:, 0] for leaf in column.leaves]


def _tails(packed: Any) -> Iterator[tuple[int, Any]]:
    chunks, form, leaves = packed
    if leaves is None:
        yield from chunks.items()
        return
    leaves = [np.array(leaf) for leaf in leaves]  # rows that getters give and that may be written to
    for at, i in enumerate(chunks):
        yield i, unflatten(form, [leaf[at] for leaf in leaves])
