"""The chunks of a call as integers: the store that holds each chunk's rows, and where they lie in it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias, overload

import numpy as np

from epibatch.core.arrays_or_tensors import common_type, on_device, put, take
from epibatch.core.columns import Columns
from epibatch.core.structs import convert_to_numpy, flatten_like, unflatten

from ._storage.infos_buffer import mark_placeholders
from .infinite_lookback_buffer import lengths_of
from .single_agent_episode import SingleAgentEpisode
from .store import Flags, Ints, Leaf, Store, StoreColumn

_COLUMNS = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)

Part: TypeAlias = "tuple[int, Any, Ints]"
"""Rows of a store: the store's position, where they go among all (a slice or int64), and their numbers there."""


class ChunkTable(Sequence[SingleAgentEpisode]):
    """A table of chunks, one row each: the place of its rows in a store, and its place in its episode.

    It is a sequence of episodes that a pipeline takes like a list of them. An item is a new episode object with copies
    of the chunk's rows; built-in pieces read whole columns of the stores instead.

    Step t of chunk c is at place `first[c] + t * stride[c]` of its store, in every column. Steps before 0 are the
    chunk's lookback. Observations have one row more than other columns, step `lengths[c]`.

    Attributes:
        owns: True if each chunk is an episode that owns its rows.
        skips_steps: True if observations of a chunk are several steps of its episode apart.
        per_chunk: Further columns of train batches, such as weights of a draw, of which all rows of a chunk have the
            same value: name -> array [C].
        agents: The agent of each chunk, if they are of several.
        multi_agent_ids: The id of each chunk's multi-agent episode, likewise.
        module_id: The module that acts for these agents; None: there is one agent.
        device: Where the rows are, if they are tensors; None: they are arrays.
        arrays: Makes the same chunks as episodes of arrays, if they are tensors; None: nothing does.
        envs: The environment of each chunk, if they were recorded together: int64 [C].

    Args:
        stores: The stores.
        first: The place of each chunk's step 0: int64 [C].
        lengths: Steps of each chunk: int64 [C].
        store: Position of each chunk's store: int64 [C]; default: there is one store.
        stride: Places from one step to the next: int64 [C], or one for all.
        lookbacks: Steps that each chunk keeps before its start: int64 [C]; default: none.
        ahead: Steps of the episode that each store has after the chunk's own: int64 [C]; default: none.
        starts: Step of the episode at which each chunk starts: int64 [C]; default: 0.
        terminateds: True if the episode was terminated after the last of these steps, those ahead included: bool [C];
            default: False.
        truncateds: True if it was truncated there: bool [C]; default: False.
        lack_final_obs: True if the last observation is a placeholder, read as the one before: bool [C]; default: False.
        tails: Last observations that lie apart from the store, by chunk.
        ids: The episodes' names; default: their numbers.
    """

    owns = False
    skips_steps = False
    per_chunk: Mapping[str, Leaf] = MappingProxyType({})
    agents: Sequence[Any] | None = None
    multi_agent_ids: Sequence[Any] | None = None
    module_id: Any = None
    device: Any = None
    arrays: Callable[[], Sequence[SingleAgentEpisode]] | None = None
    envs: Ints | None = None
    _in_arrays: Sequence[SingleAgentEpisode] | None = None

    def __init__(
        self,
        stores: Sequence[Store],
        first: Ints,
        lengths: Ints,
        *,
        store: Ints | None = None,
        stride: Ints | int = 1,
        lookbacks: Ints | None = None,
        ahead: Ints | None = None,
        starts: Ints | None = None,
        terminateds: Flags | None = None,
        truncateds: Flags | None = None,
        lack_final_obs: Flags | None = None,
        tails: Mapping[int, Any] | None = None,
        ids: Sequence[str] | None = None,
    ) -> None:
        nothing, no = np.zeros(len(lengths), np.int64), np.zeros(len(lengths), np.bool_)
        self.stores, self.first, self.lengths = stores, first, lengths
        self.store = nothing if store is None else store
        self.stride = nothing + stride
        self.lookbacks = nothing if lookbacks is None else lookbacks
        self.ahead = nothing if ahead is None else ahead
        self.starts = nothing if starts is None else starts
        self.terminateds = no if terminateds is None else terminateds
        self.truncateds = no if truncateds is None else truncateds
        self.lack_final_obs = no if lack_final_obs is None else lack_final_obs
        self.tails: Mapping[int, Any] = tails or {}
        self.ids: Sequence[str] = list(map(str, range(len(lengths)))) if ids is None else ids
        self._indices: dict[Any, Any] = {}

    @classmethod
    def of_episodes(cls, episodes: Sequence[Any]) -> ChunkTable:
        """The table of episodes that own their rows. Its columns are found when they are asked for."""
        table = cls.__new__(cls)
        table.stores, table.tails, table.owns = episodes, {}, True
        return table

    def __getattr__(self, name: str) -> Any:
        if name not in _OF_EPISODES or not self.owns:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        value = _OF_EPISODES[name](self.stores)
        setattr(self, name, value)
        return value

    def __len__(self) -> int:
        return len(self.stores) if self.owns else len(self.lengths)

    @property
    def has_infos(self) -> bool:
        """True if infos of all steps were kept."""
        kept = (store.stored(Columns.INFOS) is not None for store in self.stores)
        return self.owns or self.arrays is not None or all(kept)

    @overload
    def __getitem__(self, index: int) -> SingleAgentEpisode: ...
    @overload
    def __getitem__(self, index: slice) -> list[SingleAgentEpisode]: ...
    def __getitem__(self, index: int | slice) -> SingleAgentEpisode | list[SingleAgentEpisode]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self._episode(range(len(self))[index])

    def _episode(self, chunk: int) -> SingleAgentEpisode:
        if self.owns:
            return self.stores[chunk]  # type: ignore[return-value]
        if self.arrays is not None:
            if self._in_arrays is None:
                self._in_arrays = self.arrays()
            return self._in_arrays[chunk]
        low, count = -int(self.lookbacks[chunk]), int(self.lengths[chunk] + self.lookbacks[chunk])
        columns = {name: self._rows_of(chunk, name, low, count) for name in (*_COLUMNS, *self._store_of(chunk).outputs)}
        observations, actions, rewards = (columns.pop(name) for name in _COLUMNS)
        infos = self._rows_of(chunk, Columns.INFOS, low, count)
        columns.update({name: np.repeat(values[chunk : chunk + 1], count) for name, values in self.per_chunk.items()})
        return SingleAgentEpisode(
            id_=self.ids[chunk], observations=observations, actions=actions, rewards=rewards,
            infos=None if infos is None else infos.tolist(),
            extra_model_outputs=columns, terminated=bool(self.ends[0, chunk]),
            truncated=bool(self.ends[1, chunk]), t_started=int(self.starts[chunk]), len_lookback_buffer=-low,
            **self._agent_of(chunk),
        )  # fmt: skip

    def _agent_of(self, chunk: int) -> dict[str, Any]:
        if self.module_id is None or self.agents is None or self.multi_agent_ids is None:
            return {}
        ids = {"agent_id": self.agents[chunk], "multi_agent_episode_id": self.multi_agent_ids[chunk]}
        return {**ids, "module_id": self.module_id}

    @property
    def ends(self) -> Flags:
        """The flags (terminated, truncated) at each chunk's end: bool [2, C]."""
        at_end = self.ahead == 0
        return np.array([self.terminateds & at_end, self.truncateds & at_end])

    def with_ahead(self, steps: int) -> ChunkTable:
        """The same chunks with up to so many of the steps ahead of each as its own; itself if there are none."""
        more = np.minimum(self.ahead, steps)
        if not more.any():
            return self
        out = copy.copy(self)
        out.lengths, out.ahead, out._indices = self.lengths + more, self.ahead - more, {}
        return out

    def with_lookback(self, steps: int) -> ChunkTable:
        """The same chunks with at most so many steps before each: what an item copies is less."""
        out = copy.copy(self)
        out.lookbacks = np.minimum(self.lookbacks, steps)
        return out

    def observations_at(self, chunks: Ints, steps: Ints) -> ChunkTable:
        """Chunks without steps, each with the observation at a step of one of these: int64 [R] both."""
        tails = {
            i: self.tails[chunk]
            for i, (chunk, step) in enumerate(zip(chunks.tolist(), steps.tolist()) if self.tails else ())
            if chunk in self.tails and step == self.lengths[chunk]
        }
        out = ChunkTable(
            self.stores, self.first[chunks] + steps * self.stride[chunks], np.zeros_like(steps),
            store=self.store[chunks], stride=self.stride[chunks], lookbacks=self.lookbacks[chunks] + steps,
            starts=self.starts[chunks] + steps, tails=tails,
            lack_final_obs=self.lack_final_obs[chunks] & (steps == self.lengths[chunks]),
        )  # fmt: skip
        out.device = self.device
        return out

    @property
    def table(self) -> ChunkTable:
        """Itself: what a reader asks a sequence of episodes for."""
        return self

    def _store_of(self, chunk: int) -> Store:
        return self.stores[int(self.store[chunk])]

    def _rows_of(self, chunk: int, name: str, low: int, count: int) -> Any:
        """Copies of a chunk's rows in one column, the last observation included."""
        column = self._store_of(chunk).stored(name)
        if column is None or not column.leaves:
            return None
        steps = np.arange(low, low + count + (name in (Columns.OBS, Columns.INFOS)))
        rows = column.rows_at(self._ordered(int(self.store[chunk]), self.first[chunk] + steps * self.stride[chunk]))
        leaves = [convert_to_numpy(take(leaf, rows)) for leaf in column.leaves]
        if name == Columns.OBS and chunk in self.tails:
            for leaf, row in zip(leaves, flatten_like(column.form, self.tails[chunk])):
                leaf[-1] = row
        return unflatten(column.form, leaves)

    def slices(self, columns: Sequence[StoreColumn], firsts: Ints, counts: Ints, step: int) -> list[list[Leaf]]:
        """For each leaf the rows of each chunk where they lie, as views if their store keeps them in order.

        Args:
            columns: A column of each store.
            firsts: The first step of each chunk: int64 [C].
            counts: Rows of each chunk: int64 [C].
            step: Every how many steps there is a row.
        """
        strides = self.stride * step
        low = self.first + firsts * self.stride
        where: list[Any] = []
        for k, a, count, s in zip(self.store.tolist(), low.tolist(), counts.tolist(), strides.tolist()):
            column = columns[k]
            if hasattr(self.stores[k], "rows_at"):
                where.append((column.leaves, self._ordered(k, np.arange(a, a + count * s, s, dtype=np.int64))))
            else:
                a += column.offset
                where.append((column.leaves, slice(a, a + count * s, s) if count else slice(0, 0)))
        return [[leaves[i][rows] for leaves, rows in where] for i in range(len(columns[0].leaves))]

    def places(
        self, firsts: Ints, counts: Ints, step: int = 1, before: Ints | int = 0, after: Ints | int = 0
    ) -> tuple[list[Part], Ints | None]:
        """Return the rows of all chunks by store, and the positions of rows to fill between them, if any.

        They are kept, since most columns of a call have rows at the same places.

        Args:
            firsts: The first step of each chunk: int64 [C].
            counts: Rows of each chunk: int64 [C].
            step: Every how many steps there is a row.
            before: The number of rows to leave room for before each chunk's: int64 [C].
            after: The number of rows after each chunk's, likewise.
        """
        key = step, *(sizes if isinstance(sizes, int) else sizes.tobytes() for sizes in (firsts, counts, before, after))
        found = self._indices.get(key)
        if found is None:
            if len(self._indices) >= _MOST_INDICES:
                self._indices.clear()
            found = self._indices[key] = self._new_places(firsts, counts, step, before, after)
        return found

    def _new_places(
        self, firsts: Ints, counts: Ints, step: int, before: Ints | int, after: Ints | int
    ) -> tuple[list[Part], Ints | None]:
        sizes = counts + before + after
        strides = self.stride * step
        low = self.first + firsts * self.stride
        spare = None
        if len(self.stores) == 1 and len(sizes) and (sizes == sizes[0]).all():  # as with sequences and single steps
            steps = np.arange(sizes[0]) - (before if isinstance(before, int) else before[:, None])
            at = (low[:, None] + steps * strides[:, None]).ravel()
            if len(at) > counts.sum():
                spare = np.flatnonzero((steps < 0) | (steps >= counts[:, None]))
        else:
            ends = sizes.cumsum()
            low = low - (ends - sizes + before) * strides
            at = np.arange(ends[-1] if len(ends) else 0, dtype=np.int64)
            at *= strides[0] if len(strides) and (strides == strides[0]).all() else np.repeat(strides, sizes)
            at += np.repeat(low, sizes)
            if len(at) > counts.sum():
                runs = np.stack([counts * 0 + before, counts, counts * 0 + after], 1)
                spare = np.flatnonzero(np.repeat(np.tile([True, False, True], len(counts)), runs.ravel()))
        if spare is not None:
            at[spare] = self.first[0]  # a place that there is
        return self._by_store(np.repeat(self.store, sizes) if len(self.stores) > 1 else None, at), spare

    def places_of(self, chunks: Ints, steps: Ints) -> list[Part]:
        """Return the rows of steps of chunks by store.

        Args:
            chunks: Positions of the chunks: int64 [R].
            steps: A step of each: int64 [R].
        """
        at = self.first[chunks] + steps * self.stride[chunks]
        return self._by_store(self.store[chunks] if len(self.stores) > 1 else None, at)

    def _by_store(self, owners: Ints | None, at: Ints) -> list[Part]:
        if owners is None:
            return [(0, slice(None), self._ordered(0, at))]
        order: Any = None
        if (np.diff(owners) < 0).any():
            order = np.argsort(owners, kind="stable")
            owners = owners[order]
        numbers, starts = np.unique(owners, return_index=True)
        spans = [slice(*span) for span in zip(starts.tolist(), [*starts.tolist()[1:], len(at)])]
        wheres = spans if order is None else [order[span] for span in spans]
        return [(k, where, self._ordered(k, at[where])) for k, where in zip(numbers.tolist(), wheres)]

    def _ordered(self, store: int, places: Ints) -> Ints:
        """The rows of a store at some places, where its leaves are."""
        rows_at = getattr(self.stores[store], "rows_at", None)
        rows: Ints = places if rows_at is None else rows_at(places)
        return rows if self.device is None else on_device(rows, self.device)

    def read(self, columns: Sequence[StoreColumn], i: int, parts: Sequence[Part], dtype: Any = None) -> Leaf:
        """Return copies of the rows of one leaf at some places.

        Args:
            columns: A column of each store, of one nesting and shape.
            i: The leaf.
            parts: The rows by store.
            dtype: Type of the copies; None: theirs.
        """
        if len(parts) == 1 and type(parts[0][1]) is slice:
            ((k, _, at),) = parts
            leaf, rows = columns[k].leaves[i], columns[k].rows_at(at)
            out: Leaf = leaf.take(rows, 0, mode="clip") if self.device is None else take(leaf, rows)
            return out if dtype is None else out.astype(dtype)
        leaves = [columns[k].leaves[i] for k, _, _ in parts] or [columns[0].leaves[i]]
        total = sum(len(at) for _, _, at in parts)
        shape, dtype = (total, *leaves[0].shape[1:]), common_type(*leaves) if dtype is None else dtype
        if self.device is not None:
            out = leaves[0].new_empty(shape, dtype=dtype)  # type: ignore[attr-defined]
            for (k, where, at), leaf in zip(parts, leaves):
                put(out, where, take(leaf, columns[k].rows_at(at)))
            return out
        out = np.empty(shape, dtype)
        for (k, where, at), leaf in zip(parts, leaves):
            if not len(leaf):  # its chunks have room that is filled in, and no rows
                continue
            rows = columns[k].rows_at(at)
            if type(where) is slice and leaf.dtype == out.dtype:
                np.take(leaf, rows, axis=0, out=out[where], mode="clip")
            else:
                out[where] = np.take(leaf, rows, axis=0, mode="clip")
        return out


def in_arrays(episodes: Any) -> Any:
    """Return chunks of tensors as episodes of arrays, and other episodes as they are."""
    arrays = getattr(episodes, "arrays", None)
    return episodes if arrays is None else arrays()


_OF_EPISODES: dict[str, Callable[[Sequence[Any]], Any]] = {
    "lengths": lambda episodes: _lengths(episodes),
    "starts": lambda episodes: np.array([episode.t_started for episode in episodes], np.int64),
    "lookbacks": lambda episodes: np.array([episode.rewards.lookback for episode in episodes], np.int64),
    "terminateds": lambda episodes: np.array([episode.is_terminated for episode in episodes], np.bool_),
    "truncateds": lambda episodes: np.array([episode.is_truncated for episode in episodes], np.bool_),
    "lack_final_obs": lambda episodes: np.array(mark_placeholders([episode.infos for episode in episodes]), np.bool_),
    "ahead": lambda episodes: np.zeros(len(episodes), np.int64),
    "store": lambda episodes: np.arange(len(episodes)),
}
"""The columns of a table of episodes that own their rows."""
_MOST_INDICES = 32


def _lengths(episodes: Sequence[Any]) -> Ints:
    if set(map(type, episodes)) != {SingleAgentEpisode}:
        return np.array(list(map(len, episodes)), np.int64)
    return np.array(lengths_of([episode.rewards for episode in episodes]), np.int64)
