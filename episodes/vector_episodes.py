"""Episodes that were recorded together, as a sequence over time-major blocks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, overload

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError
from epibatch.core.structs import Form, flatten, flatten_like, map_struct, unflatten

from ._parts.acting_rewards import known
from ._parts.arguments import fresh_id
from ._storage.block import Block
from ._storage.chunk import Chunk
from ._storage.growing_column import NOTHING, GrowingColumn
from ._storage.infos_buffer import MISSING_FINAL_OBS
from ._storage.packed_chunks import SentBlock, pack_chunks
from .arrays import Leaf, owned
from .chunk_table import ChunkTable
from .rows import Rows, leaves_of
from .single_agent_episode import SingleAgentEpisode
from .store import Flags, Ints
from .vector_checks import placeholder

_FACTS = attrgetter("env", "low", "start", "stop", "t_started", "terminated", "truncated")
_TAIL = attrgetter("tail")
_FACTS_RUNNING = attrgetter("env", "low", "start", "end", "t_started", "terminated", "truncated")


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
        recording: True if these are the N episodes that a recorder is adding to.
        sent: Blocks that came from another process, with their chunks, in place of `block` and `chunks`.

    Attributes:
        blocks: All blocks.
        low_rows: The first row of each running chunk in the block, its lookback included; only while recording.
        newest_start: The highest of them.
        delivery: Kept by the sequences made of this one. A weak reference to it shows when all of them are gone.
    """

    def __init__(
        self,
        block: Block,
        chunks: Sequence[Chunk],
        views: Sequence[Any] | None = None,
        recording: bool = False,
        *,
        sent: Sequence[SentBlock] = (),
    ) -> None:
        self.block = block
        self.blocks = list({id(chunk.block): chunk.block for chunk in chunks}.values()) or [block]
        self.recording, self._sent = recording, list(sent)
        self._chunks: list[Chunk] | None = None if sent else list(chunks)
        self.views: list[SingleAgentEpisode | None] = list(views) if views is not None else [None] * len(chunks)
        self.delivery: Any = _Delivery()
        self.low_rows = np.array([self._low(chunk) for chunk in chunks] if recording else [], np.int64)
        self.newest_start = int(self.low_rows.max(initial=0))
        self._table: ChunkTable | None = None

    @property
    def chunks(self) -> list[Chunk]:
        """The chunks; those that came from another process are made when they are asked for."""
        if self._chunks is None:
            self._chunks = [chunk for source in self._sent for chunk in source.chunks]
        return self._chunks

    def __len__(self) -> int:
        return len(self.views)

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
        if self.recording or not len(self):
            return list, (list(self),)
        owners = np.array([id(chunk.block) for chunk in self.chunks])
        places = [np.flatnonzero(owners == owner) for owner in dict.fromkeys(owners.tolist())]
        order = np.concatenate(places)
        packed = [pack_chunks([self.chunks[i] for i in at.tolist()]) for at in places]
        return _unpickled, (packed, None if (np.diff(order) > 0).all() else order)

    def __repr__(self) -> str:
        return f"VectorEpisodes({len(self)} chunks, {int(self.lengths().sum())} steps)"

    def first(self, count: int) -> VectorEpisodes:
        """The first `count` of these episodes."""
        return self.take(range(min(count, len(self))))

    def take(self, indices: Sequence[int]) -> VectorEpisodes:
        """Some of these episodes, in the given order; nothing is copied."""
        chunks, views = [self.chunks[i] for i in indices], [self.views[i] for i in indices]
        part = VectorEpisodes(chunks[0].block if chunks else self.block, chunks, views)
        part.delivery = self.delivery
        return part

    @classmethod
    def joined(cls, parts: Sequence[VectorEpisodes]) -> VectorEpisodes:
        """The episodes of one or more sequences, one after the other; nothing is copied."""
        views = [view for part in parts for view in part.views]
        if all(part._sent for part in parts):
            episodes = cls.of_sent([source for part in parts for source in part._sent], views)
        else:
            episodes = cls(parts[0].block, [chunk for part in parts for chunk in part.chunks], views)
        episodes.delivery = [part.delivery for part in parts]
        return episodes

    @classmethod
    def of_sent(cls, sent: Sequence[SentBlock], views: Sequence[SingleAgentEpisode | None]) -> VectorEpisodes:
        """The episodes of blocks that came from another process, at least one."""
        episodes = cls(sent[0].block, [], views, sent=sent)
        episodes.blocks = [source.block for source in sent]
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
        resets: np.ndarray[Any, np.dtype[np.bool_]] | None = None,
        missing_final_obs: Any = "keep",
    ) -> VectorEpisodes:
        """Return the chunks of time-major arrays, whose memory they share: those of one environment after another.

        Row r of the observations is before step r. After an end it is that of the next episode. An episode has no last
        observation of its own if none is in `terminal_observations`: it is missing. With `resets`, the row after an
        end is the terminal observation.

        Args:
            observations: [L + T + 1, N, ...], or a struct of such arrays.
            actions: [L + T, N, ...], or a struct of such arrays.
            rewards: [L + T, N].
            terminateds: bool [L + T, N].
            truncateds: bool [L + T, N].
            extra_model_outputs: Column -> [L + T, N, ...], or a struct of such arrays.
            terminal_observations: Row -> environments that ended in it (int64 [n]), and their last observations
                [n, ...].
            lookback: L, the rows before the first step.
            t_started: Steps before row L of the episodes that run then: int64 [N]; None: they begin there.
            returns_before: Sums of the rewards of those steps: float64 [N]; None: not known.
            name: Beginning of the ids, which go on with the environment and the episode's number; default: random.
            numbers: Episodes of each environment that ended before row L: int64 [N]; None: none.
            ids: (environment, number) -> the id of this episode; None: all ids begin with `name`.
            states_before: Recurrent states before the steps, [L + T, N, ...]. The one that an episode begins with is
                its `custom_data["state_in"]`, as the runners note those that a module draws.
            resets: Rows of environments that were only reset, which are no steps, after each end: bool [L + T, N];
                None: environments reset in the step of an end.
            missing_final_obs: What takes the place of a missing last observation, as of `VectorRecorder`.

        Examples:
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
        ends = terminateds | truncateds
        only_reset = np.zeros_like(ends) if resets is None else resets
        for env, (ended, between) in enumerate(zip(ends.T, only_reset.T)):
            stops = np.flatnonzero(ended | between) + 1
            low = int(stops[stops <= lookback].max(initial=0))
            start, t = lookback, 0 if t_started is None else int(t_started[env])
            number = 0 if numbers is None else int(numbers[env])
            for stop in dict.fromkeys([*stops[stops > lookback].tolist(), rows]):
                if between[stop - 1]:
                    low = start = stop
                    continue
                id_ = (ids or {}).get((env, number), f"{name}_{env}_{number}")
                begins = states_before is not None and not t
                state = map_struct(lambda leaf, at=(start, env): leaf[at], states_before) if begins else None
                chunk = Chunk(
                    block, env, low, start, (None, None), id_, t, {Columns.STATE_IN: state} if begins else None
                )
                chunk.finish(stop, bool(terminateds[stop - 1, env]), bool(truncateds[stop - 1, env]))
                if ended[stop - 1] and resets is None:
                    tail, before = tails.get((stop - 1, env)), block.observations.row_of(stop - 1, env)
                    chunk.tail = placeholder(before, missing_final_obs) if tail is None else owned(tail)
                    chunk.tail_infos = {MISSING_FINAL_OBS: True} if tail is None else {}
                chunks.append(chunk)
                low, start, t, number = stop, stop, 0, number + 1
        return cls(block, chunks)

    @classmethod
    def over(cls, chunks: Sequence[Chunk], views: Sequence[SingleAgentEpisode | None]) -> VectorEpisodes:
        """The episodes of chunks of any blocks, at least one."""
        return cls(chunks[0].block, chunks, views)

    @property
    def has_views(self) -> bool:
        """True if an episode object was made of a row of the blocks."""
        return any(block.num_objects for block in self.blocks)

    @property
    def is_replaced(self) -> bool:
        """True if an episode object shows other rows than its chunk's: a column was replaced, or owns its rows."""
        return not self.recording and self.has_views and any(chunk.detached for chunk in self.chunks)

    @property
    def table(self) -> ChunkTable:
        """The chunks as integers, as they are now."""
        table = self._table
        if table is None or self.recording:
            table = self._table = self._sent_table() if self._chunks is None else self._new_table()
        elif self.has_views:
            table.terminateds, table.truncateds = self.terminateds(), self.truncateds()
        return table

    def _new_table(self) -> ChunkTable:
        chunks, blocks = self.chunks, self.blocks
        if self.recording:  # chunks that go on were put in the place of others
            blocks = list({id(chunk.block): chunk.block for chunk in chunks}.values())
        columns = np.zeros((8, len(chunks)), np.int64)
        facts = map(_FACTS_RUNNING if self.recording else _FACTS, chunks)
        columns[1:] = np.fromiter(chain.from_iterable(facts), np.int64, 7 * len(chunks)).reshape(-1, 7).T
        if len(blocks) > 1:
            numbers = {id(block): number for number, block in enumerate(blocks)}
            columns[0] = [numbers[id(chunk.block)] for chunk in chunks]
        if self.has_views:
            columns[6:] = self.terminateds(), self.truncateds()
        rows = map(Chunk.row_apart if self.recording else _TAIL, chunks)
        tails = {i: row for i, row in enumerate(rows) if row is not NOTHING}
        lacking = np.zeros(len(chunks), np.bool_)
        lacking[[i for i in tails if MISSING_FINAL_OBS in (chunks[i].tail_infos or ())]] = True
        return _table(blocks, columns, lacking, tails)

    def _sent_table(self) -> ChunkTable:
        facts = [(np.full(len(s.ids), k)[None], s.facts, s.flags[1:3]) for k, s in enumerate(self._sent)]
        columns = np.concatenate([np.concatenate(part) for part in facts], axis=1, dtype=np.int64)
        ends = np.cumsum([len(source.ids) for source in self._sent])
        tails = {
            int(end) - len(source.ids) + i: tail for end, source in zip(ends, self._sent) for i, tail in source.tails
        }
        flags = np.concatenate([source.flags[4] for source in self._sent])
        return _table(self.blocks, columns, flags, tails)

    # -- facts about all chunks --------------------------------------------------------------------

    @property
    def ids(self) -> list[str]:
        """The episodes' names."""
        if self._chunks is None and not self.has_views:
            return [name for source in self._sent for name in source.ids]
        return [chunk.name for chunk in self.chunks]

    def envs(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The number of each chunk's environment: int64, shape [len(self)]."""
        return np.array([chunk.env if (at := chunk.origin) is None else at[0] for chunk in self.chunks], np.int64)

    def lengths(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Number of steps of each chunk: int64, shape [len(self)]."""
        if self.recording or self.has_views:
            return np.array(list(map(len, self.chunks)), np.int64)
        return self.table.lengths.copy()

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

    def newest(self, column: str, copy: bool) -> tuple[Any, Flags | None]:
        """The newest row of each environment that a recorder adds to; see `EpisodeReader.newest`."""
        if column == Columns.OBS:
            rows = self.block.latest_observations()
            return map_struct(np.array, rows) if copy else rows, None
        block_column, row = self.block.column(column), self.block.row - 1
        if block_column is None or not block_column.leaves:
            return None, np.zeros(len(self), np.bool_)
        has_row = None if self.newest_start <= row else self.low_rows <= row
        leaves = [leaf[max(row, 0)] for leaf in block_column.leaves]
        leaves = list(map(np.array, leaves)) if copy else leaves
        if column == Columns.REWARDS and self.block.unknown_rewards:
            known(leaves[0] if has_row is None else leaves[0][has_row])
        return unflatten(block_column.form, leaves), has_row

    def window(
        self, column: str, low: int, high: int, part: Callable[[Any], Any] | None = None
    ) -> tuple[Rows, int, bool]:
        """Rows around the newest observations, which a recorder is adding to; see `EpisodeReader.window`."""
        block, width = self.block, high + 1 - low
        form, older, newest = self._around(column, max(block.row + low, 0), max(block.row + high + 1, 0))
        complete = bool(older) and block.row + low >= self.newest_start
        counts: Any = np.full(len(self), width)
        gaps: Any = 0
        if not complete:
            counts = np.clip(block.row + high + 1 - self.low_rows, 0, width if older else 0)
            gaps = width - counts
        numbers: Sequence[int] = range(len(older))
        if part is not None:
            numbers, form = leaves_of(form, part)
        parts = []
        for i in numbers:
            leaf = _window(older[i], newest[i] if newest and high == 0 else None, width)
            if column == Columns.REWARDS and block.unknown_rewards:
                known(leaf if complete else leaf[np.arange(width) >= gaps[:, None]])
            parts.append([leaf.reshape(-1, *leaf.shape[2:])])
        return Rows(form, parts, counts, low + gaps, column, sound=True, gaps=gaps), 0, complete

    def _around(self, column: str, start: int, stop: int) -> tuple[Form, list[Leaf], list[Leaf]]:
        """Form and leaves of a column's rows in the block; and the leaves of the newest observations, apart."""
        source, row = self.block.column(column), self.block.row
        if column != Columns.OBS:
            return (None, [], []) if source is None else (source.form, [leaf[start:stop] for leaf in source.leaves], [])
        observations = self.block.latest_observations()
        if source is None or not source.leaves or row <= start:
            newest, form = flatten(observations)
            return form, [leaf[None][:0] for leaf in newest], newest
        older = [leaf[start : min(stop, row)] for leaf in source.leaves]
        return source.form, older, flatten_like(source.form, observations)

    def replace(self, env: int, chunk: Chunk) -> None:
        """Go on with another chunk of an environment (for the recorder)."""
        self.chunks[env], self.views[env], self.low_rows[env] = chunk, None, chunk.low
        self.newest_start = max(self.newest_start, chunk.low)

    def _low(self, chunk: Chunk) -> int:
        """The chunk's first row in this block, which may hold the end of a chunk of the block before."""
        return chunk.low if chunk.block is self.block else max(0, chunk.low - chunk.end + self.block.row)


def _column_over(column: Any) -> GrowingColumn:
    leaves, form = flatten(column)
    return GrowingColumn(form, leaves)


def _table(blocks: Sequence[Block], facts: Ints, lack_final_obs: Flags, tails: Any) -> ChunkTable:
    """The table of chunks: of block, environment, first row, start, stop, first step and end flags, int64 [8, C]."""
    store, envs, lows, starts, stops, t_started, *flags = facts
    widths = np.array([block.num_envs for block in blocks])[store]
    terminateds, truncateds = np.array(flags, np.bool_)
    return ChunkTable(
        blocks, starts * widths + envs, stops - starts, store=store, stride=widths, lookbacks=starts - lows,
        starts=t_started, terminateds=terminateds, truncateds=truncateds, lack_final_obs=lack_final_obs, tails=tails,
    )  # fmt: skip


def _unpickled(parts: list[Any], order: Any) -> VectorEpisodes:
    sources = [SentBlock(part) for part in parts]
    episodes = VectorEpisodes.of_sent(sources, [view for source in sources for view in source.views()])
    return episodes if order is None else episodes.take(np.argsort(order).tolist())


def _window(older: Leaf, newest: Leaf | None, count: int) -> Leaf:
    """Copies of rows of a block and of the newest one apart from them, at the end of [N, count, ...].

    Raises:
        ColumnError: the newest observations are of another shape than those before.
    """
    stop = count if newest is None else count - 1
    if newest is not None and older.shape[1:] != newest.shape:
        raise ColumnError(
            "the newest observations, beside those before",
            expected=f"shape {older.shape[2:]} per environment",
            found=f"{newest.shape[1:]}",
            do="write all observations of an episode back in one shape",
        )
    dtype = older.dtype if newest is None else np.result_type(older, newest)
    window = np.empty((older.shape[1], count, *older.shape[2:]), dtype)
    window[:, stop - len(older) : stop] = older.swapaxes(0, 1)
    if newest is not None:
        window[:, -1] = newest
    return window


def env_numbers(episodes: Sequence[Any]) -> list[int | None]:
    """Return the number of each episode's vector environment; None for one that no runner of one agent recorded."""
    if isinstance(episodes, VectorEpisodes):
        return list(episodes.envs().tolist())
    sources = [getattr(getattr(episode, "rewards", None), "source", None) for episode in episodes]
    chunks = [None if source is None else source.chunk for source in sources]
    return [chunk and (chunk.env if chunk.origin is None else chunk.origin[0]) for chunk in chunks]


def count_steps(episodes: Sequence[Any]) -> int:
    """Count the environment steps of episodes; an item without a length has none.

    Args:
        episodes: Episodes, or chunks of them.

    Examples:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> columns = {"observations": [0, 1, 2], "actions": [0, 0], "rewards": [0.0, 0.0]}
        >>> count_steps([SingleAgentEpisode(**columns, len_lookback_buffer=0)] * 3)
        6
    """
    if isinstance(episodes, VectorEpisodes):
        return int(episodes.lengths().sum())
    if isinstance(episodes, ChunkTable):
        return int(episodes.lengths.sum())
    return sum(len(episode) for episode in episodes if hasattr(episode, "__len__"))
