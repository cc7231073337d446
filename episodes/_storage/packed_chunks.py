"""Chunks of a block as data for another process: a few arrays, whatever their number."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from epibatch.core.columns import Columns
from epibatch.core.kept_property import kept_property
from epibatch.core.structs import Form, flatten, unflatten

from ..arrays import Leaf, fits_exactly, leaves_like, make_writable, same_value
from ..single_agent_episode import SingleAgentEpisode
from .block import Block
from .chunk import Chunk
from .growing_column import NOTHING, GrowingColumn
from .infos_buffer import InfosBuffer

Ints = npt.NDArray[np.int64]

_COLUMNS = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)
_MOST = 0.75
"""The share of a block's rows from which on the block travels as it is, and the rows are not gathered."""


def pack_chunks(chunks: Sequence[Chunk]) -> dict[str, Any]:
    """Return what `SentBlock` makes chunks of: data, with arrays that show the block where possible.

    Args:
        chunks: Finished ones of one block, at least one. What was done to the episode objects that show them counts.
    """
    block = chunks[0].block
    attached = enumerate(chunk.attached for chunk in chunks) if block.num_objects else ()
    views = {i: view for i, view in attached if view is not None}
    ids, ends = [chunk.id_ for chunk in chunks], [(chunk.terminated, chunk.truncated) for chunk in chunks]
    pairs, customs = [chunk.spaces for chunk in chunks], [chunk.custom_data for chunk in chunks]
    for i, view in views.items():
        ids[i], ends[i], customs[i] = view.id_, (view.is_terminated, view.is_truncated), view.custom_data
        if view.observation_space is not pairs[i][0] or view.action_space is not pairs[i][1]:
            pairs[i] = (view.observation_space, view.action_space)
    moved = _Rows(block, np.array([(c.env, c.low, c.start, c.stop, c.t_started) for c in chunks], np.int64).T)
    flags = [(c.is_first, *end, c.tail is not NOTHING, c.lacks_final_obs) for c, end in zip(chunks, ends)]
    whole = {i: view for i, view in views.items() if chunks[i].detached or not _is_plain(view, chunks[i])}
    kinds = {id(pair): pair for pair in pairs}
    numbers = {kind: number for number, kind in enumerate(kinds)}
    own_infos, infos = moved.infos(chunks)
    objects = {
        "own_infos": own_infos,
        "custom_data": {i: custom for i, custom in enumerate(customs) if custom},
        "tail_infos": {i: chunk.tail_infos for i, chunk in enumerate(chunks) if chunk.tail_infos is not None},
        "read_infos": {
            i: read for i, view in views.items() if i not in whole and (read := _changed_infos(chunks[i], view))
        },
    }
    return {
        "columns": {name: moved.column(name) for name in (*_COLUMNS, *block.extras)},
        "unknown_rewards": block.unknown_rewards,
        "num_rows": moved.num_rows,
        "num_envs": moved.num_envs,
        "facts": moved.facts,
        "flags": np.array(flags, np.bool_).T,
        "origins": moved.origins(chunks),
        "returns_before": block.returns_before,
        "infos": infos,
        "ids": ids,
        "spaces": _pickled_apart(tuple(kinds.values())),
        "space_of": [numbers[id(pair)] for pair in pairs] if len(kinds) > 1 else None,
        "tails": _stacked_tails(block.observations, chunks),
        "objects": _pickled_apart(objects) if any(objects.values()) else objects,
        "whole": whole,
    }


class SentBlock:
    """A block of the arrays of packed chunks.

    Args:
        data: What `pack_chunks` returned.

    Attributes:
        block: The block.
        facts: Environment, first row, start, stop and first step of each chunk: int64 [5, C].
        flags: Whether each chunk begins its episode, was terminated, was truncated, has a terminal observation apart,
            and has a placeholder of one: bool [5, C].
        ids: The episodes' names.
    """

    def __init__(self, data: dict[str, Any]) -> None:
        self._data = data
        self.facts, self.flags, self.ids = data["facts"], data["flags"], data["ids"]
        self.block = block = Block(data["num_envs"], data["num_rows"], data["num_rows"])
        columns = {name: GrowingColumn(*parts) for name, parts in data["columns"].items()}
        block.observations, block.actions, block.rewards = (columns.pop(name) for name in _COLUMNS)
        block.extras, block.unknown_rewards = columns, data["unknown_rewards"]
        block.returns_before = data["returns_before"]
        self._objects = _restored(data["objects"])
        block.infos, block.own_infos = data["infos"], self._objects["own_infos"]

    @kept_property
    def tails(self) -> list[tuple[int, Any]]:
        """The terminal observations that lie apart, each after its chunk's position."""
        return list(_tails(self._data["tails"]))

    @kept_property
    def chunks(self) -> list[Chunk]:
        """The chunks, made when one of them is asked for."""
        data, objects = self._data, self._objects
        spaces, space_of = _spaces(data["spaces"]), data["space_of"]
        pairs = repeat(spaces[0]) if space_of is None else [spaces[i] for i in space_of]
        envs, lows, starts, stops, t_started = self.facts.tolist()
        is_first, *ends = self.flags[:3].tolist()
        whose = repeat(self.block), envs, lows, starts, pairs, self.ids
        customs = map(objects["custom_data"].get, range(len(envs)))
        chunks = list(map(Chunk, *whose, t_started, customs, is_first, stops, *ends))
        for chunk, origin in zip(chunks, data["origins"] or ()):
            chunk.origin = origin
        for i, tail in self.tails:
            chunks[i].tail = tail
        for i, infos in objects["tail_infos"].items():
            chunks[i].tail_infos = infos
        return chunks

    def views(self) -> list[SingleAgentEpisode | None]:
        """The episode objects that are more than their chunks, and None for the others."""
        views: list[SingleAgentEpisode | None] = [None] * len(self.ids)
        for i, read in self._objects["read_infos"].items():
            view = views[i] = self.chunks[i].view()
            for position, info in read.items():
                view.infos.set(info, at_indices=position - view.lookback, neg_index_as_lookback=True)
        for i, view in self._data["whole"].items():
            views[i] = view
            self.chunks[i].attach(view)
        return views


class _Rows:
    """The rows of a block that chunks have: those from the first to the last, or gathered if they are few.

    Args:
        block: The block.
        facts: Environment, first row, start, stop and first step of each chunk: int64 [5, C].

    Attributes:
        facts: The same in the block that the rows are for.
        num_envs: Environments of that block; gathered rows are those of one.
        num_rows: Its steps.
    """

    def __init__(self, block: Block, facts: Ints) -> None:
        self._block = block
        envs, lows, starts, stops = self._from = facts[:4]
        self._first, self._last = int(lows.min()), int(stops.max())
        counts = stops + 1 - lows
        self._at: Ints | None = None
        self.num_envs, self.num_rows = block.num_envs, self._last - self._first
        self.facts = facts.copy()
        self.facts[1:4] -= self._first
        if counts.sum() < _MOST * (self.num_rows + 1) * block.num_envs:
            ends = np.cumsum(counts)
            at = np.arange(ends[-1], dtype=np.int64) * block.num_envs
            self._at = at + np.repeat(lows * block.num_envs + envs - (ends - counts) * block.num_envs, counts)
            self.num_envs, self.num_rows = 1, int(ends[-1]) - 1
            shift = ends - counts - lows
            self.facts[:4] = np.zeros_like(envs), ends - counts, starts + shift, stops + shift

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

    def infos(self, chunks: Sequence[Chunk]) -> tuple[dict[tuple[int, int], Any], Any]:
        """The infos of single environments, and those of whole vector steps, by their new places."""
        block, first, last = self._block, self._first, self._last
        if not block.infos and not block.own_infos:
            return {}, {}
        if self._at is None:
            own = {(row - first, env): info for (row, env), info in block.own_infos.items() if first <= row <= last}
            return own, _StackedInfos({row - first: i for row, i in block.infos.items() if first <= row <= last})
        rows = np.array(sorted({*block.infos, *(row for row, _ in block.own_infos)}), np.int64)
        moved = {}
        for chunk, low, shift in zip(chunks, self._from[1].tolist(), (self.facts[1] - self._from[1]).tolist()):
            stop = chunk.end + (chunk.tail_infos is None)
            for row in rows[np.searchsorted(rows, low) : np.searchsorted(rows, stop)].tolist():
                if info := block.info_at(row, chunk.env):
                    moved[row + shift, 0] = info
        return moved, {}


class _StackedInfos(Mapping[int, Any]):
    """The infos of many vector steps, by row: arrays of those that are alike, which is how they are pickled."""

    def __init__(self, infos: Mapping[int, Any]) -> None:
        self._places: dict[int, tuple[int, int]] = {}
        self._kinds: list[tuple[Form, list[Leaf]]] = []
        alike: dict[Any, list[tuple[int, list[Leaf]]]] = {}
        self._others = {}
        for row, info in infos.items():
            leaves, form = flatten(info)
            if leaves and all(type(leaf) is np.ndarray and leaf.ndim and not leaf.dtype.hasobject for leaf in leaves):
                alike.setdefault((form, *((leaf.dtype, leaf.shape) for leaf in leaves)), []).append((row, leaves))
            else:
                self._others[row] = info
        for (form, *_), found in alike.items():
            self._places.update({row: (len(self._kinds), i) for i, (row, _) in enumerate(found)})
            self._kinds.append((form, [np.array(leaf) for leaf in zip(*(leaves for _, leaves in found))]))

    def __getitem__(self, row: int) -> Any:
        if row in self._others:
            return self._others[row]
        kind, i = self._places[row]
        form, leaves = self._kinds[kind]
        if not leaves[0].flags.writeable:  # who reads an info may write to it
            leaves[:] = map(np.array, leaves)
        return unflatten(form, [leaf[i] for leaf in leaves])

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_others": _pickled_apart(self._others)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _others=_restored(state["_others"]))

    def __iter__(self) -> Iterator[int]:
        return chain(self._places, self._others)

    def __len__(self) -> int:
        return len(self._places) + len(self._others)


def _spaces(packed: Any) -> Any:
    """Return the pairs of spaces: the same objects for every block that comes with the same ones."""
    return _unpickled_spaces(packed) if isinstance(packed, bytes) else packed


@lru_cache(maxsize=64)
def _unpickled_spaces(packed: bytes) -> Any:
    return pickle.loads(packed)


def _pickled_apart(objects: Any) -> Any:
    """Return a pickle of objects, so that the small arrays in them are no buffers; as they are if that fails."""
    try:
        return pickle.dumps(objects, protocol=5)
    except (pickle.PicklingError, AttributeError, TypeError):  # what sends them may be able to pickle more
        return objects


def _restored(packed: Any) -> Any:
    """Return the objects of `_pickled_apart`, whose arrays can be written to."""
    return pickle.loads(packed) if isinstance(packed, bytes) else make_writable(packed)


def _is_plain(view: SingleAgentEpisode, chunk: Chunk) -> bool:
    """Return True if an episode object has nothing that a chunk has no place for."""
    names = (view.agent_id, view.module_id, view.multi_agent_episode_id, view.given_observation_space)
    if type(view) is not SingleAgentEpisode or names != (None,) * 4 or view.get_duration_s():
        return False
    return type(view.infos) is InfosBuffer and view.infos.len_incl_lookback() == chunk.end + 1 - chunk.low


def _changed_infos(chunk: Chunk, view: SingleAgentEpisode) -> dict[int, Any]:
    """The infos of an episode object that differ from those of the chunk, by position."""
    read = view.infos.rows_read().items()
    return {position: info for position, info in read if not same_value(info, chunk.info_at(position))}


def _stacked_tails(column: GrowingColumn, chunks: Sequence[Chunk]) -> Any:
    """The terminal observations that lie apart: which chunks have one, and the rows, stacked if they fit the column."""
    tails = {i: chunk.tail for i, chunk in enumerate(chunks) if chunk.tail is not NOTHING}
    rows = [leaves_like(column.form, tail) for tail in tails.values()]
    fit = all(row is not None and all(map(fits_exactly, _steps(column), row)) for row in rows)
    if not tails or not fit or any(leaf.dtype == object for leaf in column.leaves):
        return tails, None, None
    return list(tails), column.form, [np.array(leaf) for leaf in zip(*rows)]


def _steps(column: GrowingColumn) -> list[Leaf]:
    return [leaf[:, 0] for leaf in column.leaves]


def _tails(packed: Any) -> Iterator[tuple[int, Any]]:
    chunks, form, leaves = packed
    if leaves is None:
        yield from chunks.items()
        return
    leaves = [np.array(leaf) for leaf in leaves]  # rows that getters give and that may be written to
    for at, i in enumerate(chunks):
        yield i, unflatten(form, [leaf[at] for leaf in leaves])
