"""Episodes that were recorded together, as a sequence over time-major blocks."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, overload

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.structs import flatten, map_struct

from ._parts.arguments import fresh_id
from ._storage.arrays import owned
from ._storage.block import Block, BlockColumn
from ._storage.chunk import Chunk
from ._storage.infos_buffer import MISSING_FINAL_OBS
from ._storage.packed_chunks import SentBlock, SentChunks, fact_of, pack_chunks
from .single_agent_episode import SingleAgentEpisode

Ints = np.ndarray[Any, np.dtype[np.int64]]


class _Delivery:
    """Lives as long as any sequence that shows the same delivery."""

    __slots__ = ("__weakref__",)


class VectorEpisodes(Sequence[SingleAgentEpisode]):
    """A sequence of episodes whose rows live in a block of shape [T, N, ...], or in several.

    Its items are persistent `SingleAgentEpisode` objects that show the block's rows. Each object is made on first
    access. Built-in pieces read whole columns instead.

    A pickle has one array for each column of these chunks, and gives a `VectorEpisodes` over such arrays. With the
    buffers of pickle's protocol 5 they are not copied. A column in read-only memory is copied by the first getter or
    setter that may write. `copy.copy` and `copy.deepcopy` give lists of episodes.

    Args:
        block: The block of the rows; of several the first one.
        chunks: One per episode or chunk of one.
        views: Episode objects that exist already; None for those that were not accessed yet.
        recording: Whether these are the N episodes that a recorder is adding to.

    Attributes:
        blocks: All blocks.
        low_rows: The first row of each running chunk in the block, its lookback included; only while recording.
        newest_start: The highest of them.
        delivery: Kept by the sequences made of this one. A weak reference to it shows when all of them are gone.
    """

    def __init__(
        self, block: Block, chunks: Sequence[Chunk], views: Sequence[Any] | None = None, recording: bool = False
    ) -> None:
        self.block = block
        self.blocks = [block]
        self.recording = recording
        self.chunks: Any = chunks if isinstance(chunks, SentChunks) else list(chunks)
        self.views: list[SingleAgentEpisode | None] = list(views) if views is not None else [None] * len(self.chunks)
        self.delivery: Any = _Delivery()
        self.low_rows = np.array([self._low(chunk) for chunk in self.chunks] if recording else [], np.int64)
        self.newest_start = int(self.low_rows.max(initial=0))

    def __len__(self) -> int:
        return len(self.chunks)

    @overload
    def __getitem__(self, index: int) -> SingleAgentEpisode: ...
    @overload
    def __getitem__(self, index: slice) -> list[SingleAgentEpisode]: ...
    def __getitem__(self, index: int | slice) -> SingleAgentEpisode | list[SingleAgentEpisode]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        view = self.views[index]
        if view is None:
            view = self.views[index] = self.chunks[index].view()
        return view

    def __add__(self, other: Sequence[SingleAgentEpisode]) -> list[SingleAgentEpisode]:
        return [*self, *other] if isinstance(other, (list, VectorEpisodes)) else NotImplemented

    def __radd__(self, other: list[SingleAgentEpisode]) -> list[SingleAgentEpisode]:
        return [*other, *self] if isinstance(other, list) else NotImplemented

    def views_of_all(self) -> list[SingleAgentEpisode]:
        """A list of all episode objects: what `list()` gives, at no cost per episode once all were made."""
        return list(self) if None in self.views else self.views.copy()  # type: ignore[return-value]

    def __copy__(self) -> list[SingleAgentEpisode]:
        return list(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> list[SingleAgentEpisode]:
        return copy.deepcopy(list(self), memo)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.recording or not self.chunks:
            return list, (list(self),)
        parts = self.by_block()
        order = np.concatenate([places for _, places in parts])
        packed = [pack_chunks(part.chunks) for part, _ in parts]
        return _unpickled, (packed, None if (np.diff(order) > 0).all() else order)

    def __repr__(self) -> str:
        return f"VectorEpisodes({len(self)} chunks, {int(self.lengths().sum())} steps)"

    def first(self, count: int) -> VectorEpisodes:
        """The first `count` of these episodes."""
        return self.take(range(min(count, len(self))))

    def take(self, indices: Sequence[int]) -> VectorEpisodes:
        """Some of these episodes, in the given order; nothing is copied."""
        chunks, views = [self.chunks[i] for i in indices], [self.views[i] for i in indices]
        part = VectorEpisodes.over(chunks, views) if chunks else VectorEpisodes(self.block, [])
        part.delivery = self.delivery
        return part

    @classmethod
    def joined(cls, parts: Sequence[VectorEpisodes]) -> VectorEpisodes:
        """The episodes of one or more sequences, one after the other; nothing is copied."""
        if all(isinstance(part.chunks, SentChunks) for part in parts):
            chunks: Any = SentChunks([source for part in parts for source in part.chunks.sources])
        else:
            chunks = [chunk for part in parts for chunk in part.chunks]
        episodes = cls(parts[0].block, chunks, [view for part in parts for view in part.views])
        episodes.delivery = [part.delivery for part in parts]
        episodes.blocks = list({id(block): block for part in parts for block in part.blocks}.values())
        return episodes

    @classmethod
    def from_arrays(
        cls,
        observations: Any,
        actions: Any,
        rewards: Any,
        terminateds: np.ndarray[Any, np.dtype[np.bool_]],
        truncateds: np.ndarray[Any, np.dtype[np.bool_]],
        *,
        extra_model_outputs: Mapping[str, Any] | None = None,
        terminal_observations: Mapping[int, tuple[Ints, Any]] | None = None,
        lookback: int = 0,
        t_started: Ints | None = None,
        returns_before: np.ndarray[Any, np.dtype[np.float64]] | None = None,
        name: str = "",
        numbers: Ints | None = None,
        ids: Mapping[tuple[int, int], str] | None = None,
        states_before: Any = None,
    ) -> VectorEpisodes:
        """Return the chunks of time-major arrays, whose memory they share: those of one environment after another.

        Row r of the observations is before step r. After an end it is that of the next episode. An episode has no last
        observation of its own if none is in `terminal_observations`. The one before takes its place, as with
        `missing_final_obs="keep"`.

        Args:
            observations: [L + T + 1, N, ...], or a struct of such arrays.
            actions: [L + T, N, ...], or a struct of such arrays.
            rewards: [L + T, N].
            terminateds: bool [L + T, N].
            truncateds: bool [L + T, N].
            extra_model_outputs: column -> [L + T, N, ...], or a struct of such arrays.
            terminal_observations: row -> environments that ended in it (int64 [n]), and their last observations
                [n, ...].
            lookback: L, the rows before the first step.
            t_started: steps before row L of the episodes that run then: int64 [N]; None: they begin there.
            returns_before: sums of the rewards of those steps: float64 [N]; None: not known.
            name: beginning of the ids, which go on with the environment and the episode's number; default: random.
            numbers: episodes of each environment that ended before row L: int64 [N]; None: none.
            ids: (environment, number) -> the id of this episode; None: all ids begin with `name`.
            states_before: recurrent states before the steps, [L + T, N, ...]. The one that an episode begins with is
                its `custom_data["state_in"]`, as the runners note those that a module draws.

        Example:
            >>> ends = np.array([[False, False], [True, False], [False, False]])
            >>> episodes = VectorEpisodes.from_arrays(
            ...     np.zeros((4, 2, 5)), np.zeros((3, 2)), np.ones((3, 2)), ends, np.zeros_like(ends))
            >>> episodes.lengths().tolist(), episodes.envs().tolist(), episodes.terminateds().tolist()
            ([2, 1, 3], [0, 0, 1], [True, False, False])
        """
        rows, num_envs = terminateds.shape
        block = Block(num_envs, rows, rows)
        block.observations, block.actions, block.rewards = map(_column_over, (observations, actions, rewards))
        block.extras = {key: _column_over(column) for key, column in (extra_model_outputs or {}).items()}
        block.returns_before = returns_before
        tails = {
            (row, env): map_struct(lambda leaf, i=i: leaf[i], last)
            for row, (envs, last) in (terminal_observations or {}).items()
            for i, env in enumerate(envs.tolist())
        }
        name = name or fresh_id()
        chunks = []
        for env, ended in enumerate((terminateds | truncateds).T):
            stops = np.flatnonzero(ended) + 1
            low = int(stops[stops <= lookback].max(initial=0))
            start, t = lookback, 0 if t_started is None else int(t_started[env])
            number = 0 if numbers is None else int(numbers[env])
            for stop in dict.fromkeys([*stops[stops > lookback].tolist(), rows]):
                id_ = (ids or {}).get((env, number), f"{name}_{env}_{number}")
                begins = states_before is not None and not t
                state = map_struct(lambda leaf, at=(start, env): leaf[at], states_before) if begins else None
                chunk = Chunk(
                    block, env, low, start, (None, None), id_, t, {Columns.STATE_IN: state} if begins else None
                )
                chunk.finish(stop, bool(terminateds[stop - 1, env]), bool(truncateds[stop - 1, env]))
                if ended[stop - 1]:
                    tail = tails.get((stop - 1, env))
                    chunk.tail = owned(block.observations.row_of(stop - 1, env) if tail is None else tail)
                    chunk.tail_infos = {MISSING_FINAL_OBS: True} if tail is None else {}
                chunks.append(chunk)
                low, start, t, number = stop, stop, 0, number + 1
        return cls(block, chunks)

    @classmethod
    def over(cls, chunks: Sequence[Chunk], views: Sequence[SingleAgentEpisode | None]) -> VectorEpisodes:
        """The episodes of chunks of any blocks, at least one."""
        episodes = cls(chunks[0].block, chunks, views)
        episodes.blocks = list({id(chunk.block): chunk.block for chunk in chunks}.values())
        return episodes

    def by_block(self) -> list[tuple[VectorEpisodes, Ints]]:
        """The episodes of each block, and their positions among all: int64. The blocks are in order of appearance."""
        chunks, views = self.chunks, self.views
        if isinstance(chunks, SentChunks):
            ends = np.cumsum([len(source.ids) for source in chunks.sources]).tolist()
            places = [np.arange(end - len(source.ids), end) for source, end in zip(chunks.sources, ends)]
            owned = [(s.block, SentChunks([s]), views[at[0] : at[-1] + 1]) for s, at in zip(chunks.sources, places)]
            return [(VectorEpisodes(*own), at) for own, at in zip(owned, places)]
        if len(self.blocks) == 1:
            return [(self, np.arange(len(chunks)))]
        owners = np.array([id(chunk.block) for chunk in chunks])
        places = [np.flatnonzero(owners == owner) for owner in dict.fromkeys(owners.tolist())]
        return [(self.take(at.tolist()), at) for at in places]

    @property
    def has_views(self) -> bool:
        """True if an episode object was made of a row of the blocks."""
        return any(block.views for block in self.blocks)

    # -- facts about all chunks --------------------------------------------------------------------

    @property
    def ids(self) -> list[str]:
        """The episodes' names."""
        if isinstance(self.chunks, SentChunks) and not self.has_views:
            return self.chunks.names
        return [chunk.name for chunk in self.chunks]

    def envs(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The number of each chunk's environment: int64, shape [len(self)]."""
        return np.array([chunk.env if (at := chunk.origin) is None else at[0] for chunk in self.chunks], np.int64)

    def lengths(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Number of steps of each chunk: int64, shape [len(self)]."""
        if self.recording or self.has_views:
            return np.array(list(map(len, self.chunks)), np.int64)
        lengths: Ints = fact_of(self.chunks, "end") - fact_of(self.chunks, "start")
        return lengths

    def terminateds(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """The flags of chunks whose episode was terminated at their end: bool, shape [len(self)]."""
        return np.array([chunk.ends[0] for chunk in self.chunks], np.bool_)

    def truncateds(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """The flags of chunks whose episode was truncated at their end: bool, shape [len(self)]."""
        return np.array([chunk.ends[1] for chunk in self.chunks], np.bool_)

    def running_returns(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The return of each running episode up to the newest step, NaN if it is not known: float64 [N].

        The return of vectors is the sum of all their entries.
        """
        block, chunks = self.block, self.chunks
        returns = np.array([chunk.return_before for chunk in chunks], np.float64)
        starts = np.array([chunk.start if chunk.block is block else block.row for chunk in chunks], np.int64)
        if block.rewards.leaves and block.row:
            first = int(starts.min(initial=block.row))
            rows = block.rewards.leaves[0][first : block.row]
            if rows.ndim > 2:
                rows = rows.sum(tuple(range(2, rows.ndim)), dtype=np.float64)
            if (starts == first).all():
                returns += rows.sum(0, dtype=np.float64)
            else:
                in_episode = np.arange(first, block.row)[:, None] >= starts
                returns += np.where(in_episode, rows, 0.0).sum(0)
        for env, chunk in enumerate(chunks):
            if chunk.block is not block and chunk.block.rewards.leaves:  # it ended with the block before
                rewards = chunk.block.rewards.leaves[0][chunk.start : chunk.end, chunk.env]
                returns[env] += rewards.sum(dtype=np.float64)
        return returns

    def replace(self, env: int, chunk: Chunk) -> None:
        """Go on with another chunk of an environment (for the recorder)."""
        self.chunks[env], self.views[env], self.low_rows[env] = chunk, None, chunk.low
        self.newest_start = max(self.newest_start, chunk.low)

    def _low(self, chunk: Chunk) -> int:
        """The chunk's first row in this block, which may hold the end of a chunk of the block before."""
        return chunk.low if chunk.block is self.block else max(0, chunk.low - chunk.end + self.block.row)


def _column_over(column: Any) -> BlockColumn:
    leaves, form = flatten(column)
    return BlockColumn(form, leaves)


def _unpickled(parts: list[Any], order: Any) -> VectorEpisodes:
    sources = [SentBlock(part) for part in parts]
    views = [view for source in sources for view in source.views()]
    episodes = VectorEpisodes(sources[0].block, SentChunks(sources), views)
    episodes.blocks = [source.block for source in sources]
    return episodes if order is None else episodes.take(np.argsort(order).tolist())
