"""Episodes that were recorded together, as a sequence over one time-major block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, EpisodeStateError, UnknownNameError, nearest
from epibatch.core.structs import flatten, flatten_like, unflatten

from ._parts.acting_rewards import known
from ._storage.arrays import Leaf
from ._storage.block import Block, BlockColumn
from ._storage.chunk import Chunk
from ._storage.vector_columns import ChunkFacts, take, with_tails
from .infinite_lookback_buffer import NOTHING
from .single_agent_episode import SingleAgentEpisode

__all__ = ["VectorEpisodes"]


class _HandedOut:
    """Lives as long as any sequence that shows the same delivery."""

    __slots__ = ("__weakref__",)


class VectorEpisodes(Sequence[SingleAgentEpisode]):
    """A sequence of episodes whose rows live in one block of shape [T, N, ...].

    Its items are persistent `SingleAgentEpisode` objects that show the block's rows and are made
    when somebody looks. Built-in pieces ask for whole columns instead.

    Args:
        block: Where the rows are.
        chunks: One per episode or chunk of one.
        views: Episode objects that exist already; None where nobody looked yet.
        recording: Whether these are the N episodes that a recorder is adding to.

    Attributes:
        low_rows: The first row of each running chunk in the block, its lookback included; only while recording.
        newest_start: The highest of them.
        handed_out: Shared by the sequences made with `first`; whoever holds it weakly knows when all are gone.
    """

    def __init__(
        self, block: Block, chunks: Sequence[Chunk], views: Sequence[Any] | None = None, recording: bool = False
    ) -> None:
        self.block = block
        self.recording = recording
        self.chunks = list(chunks)
        self.views: list[SingleAgentEpisode | None] = list(views) if views is not None else [None] * len(self.chunks)
        self._unseen = len(self.chunks) if views is None else sum(view is None for view in self.views)
        self.handed_out = _HandedOut()
        self._known: ChunkFacts | None = None
        self._places: dict[tuple[bool, bool], np.ndarray[Any, np.dtype[np.int64]]] = {}
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
            self._unseen -= 1
        return view

    def __iter__(self) -> Iterator[SingleAgentEpisode]:
        for i in range(len(self.chunks)):
            yield self[i]

    def views_of_all(self) -> list[SingleAgentEpisode]:
        """A list of all episode objects: what `list()` gives, at no cost per episode once all were made."""
        return list(self) if self._unseen else self.views.copy()  # type: ignore[return-value]

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)

    def __repr__(self) -> str:
        return f"VectorEpisodes({len(self)} chunks, {int(self.lengths().sum())} steps)"

    def first(self, count: int) -> VectorEpisodes:
        """The first `count` of these episodes."""
        part = VectorEpisodes(self.block, self.chunks[:count], self.views[:count])
        part.handed_out = self.handed_out
        return part

    # -- facts about all chunks --------------------------------------------------------------------

    @property
    def ids(self) -> list[str]:
        """The episodes' names."""
        ids = [chunk.id_ for chunk in self.chunks]
        for i, view in self._shown():
            ids[i] = view.id_
        return ids

    def lengths(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Number of steps of each chunk: int64, shape [len(self)]."""
        lengths = self._facts().lengths.copy()
        for i, _ in self._shown():
            lengths[i] = len(self.chunks[i])
        return lengths

    def terminateds(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether each chunk's episode was terminated at its end: bool, shape [len(self)]."""
        return self._ends(0, "is_terminated")

    def truncateds(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether each chunk's episode was truncated at its end: bool, shape [len(self)]."""
        return self._ends(1, "is_truncated")

    def _ends(self, row: int, name: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
        flags = np.array(self._facts().ends[row])
        for i, view in self._shown():
            flags[i] = getattr(view, name)
        return flags

    @property
    def columnar(self) -> bool:
        """Whether every episode's columns are those of the block: nobody replaced, added or lengthened one."""
        if not self.recording and not self.block.views:
            return True
        return not any(chunk.replaced for chunk in self.chunks)

    def _shown(self) -> Iterator[tuple[int, SingleAgentEpisode]]:
        """Position and episode object of the chunks that somebody looked at."""
        if self.recording or self.block.views:
            for i, chunk in enumerate(self.chunks):
                view = chunk.shown
                if view is not None:
                    yield i, view

    def _facts(self) -> ChunkFacts:
        if self.recording:
            return ChunkFacts.of(self.chunks)
        if self._known is None:
            self._known = ChunkFacts.of(self.chunks)
        return self._known

    # -- the newest step, while recording --------------------------------------------------------

    def replace(self, env: int, chunk: Chunk) -> None:
        """Go on with another chunk of an environment (for the recorder)."""
        self._unseen += self.views[env] is not None
        self.chunks[env], self.views[env], self.low_rows[env] = chunk, None, chunk.low
        self.newest_start = max(self.newest_start, chunk.low)

    def _low(self, chunk: Chunk) -> int:
        """The chunk's first row in this block, which may hold the end of a chunk of the block before."""
        return chunk.low if chunk.block is self.block else max(0, chunk.low - chunk.end + self.block.row)

    def latest_observations(self) -> Any:
        """The newest observation of every environment: arrays of shape [N, ...]; do not write to them."""
        return self.block.latest_observations()

    def set_latest_observations(self, observations: Any) -> None:
        """Replace the newest, still provisional observations of all environments."""
        self.block.stage(observations)

    def latest_window(self, frames: int) -> tuple[Any, np.ndarray[Any, np.dtype[np.int64]]]:
        """The newest observations of every environment.

        Args:
            frames: How many.

        Returns:
            Copies, arrays of shape [frames, N, ...] (in memory [N, frames, ...]), newest last, zeros before
            the rows that an environment's chunk holds; and how many rows each chunk gave (int64, [N]).

        Raises:
            ColumnError: the newest observations are of another nesting or shape than those before.
        """
        block = self.block
        values, form = flatten(block.latest_observations())
        first = block.row - frames + 1
        before = block.before_newest(max(first, 0))
        if before is not None:
            values, form = flatten_like(before[0], unflatten(form, values)), before[0]
        rows = np.minimum(block.row - self.low_rows + 1, frames)
        short = np.flatnonzero(rows < frames)
        window = []
        for i, value in enumerate(values):
            older = before[1][i] if before is not None else value[None][:0]
            if older.shape[1:] != value.shape:
                raise ColumnError(
                    "the newest observations, beside those before",
                    expected=f"shape {older.shape[2:]} per environment",
                    found=f"{value.shape[1:]}",
                    do="write all observations of an episode back in one shape",
                )
            wanted = (len(value), frames, *value.shape[1:])
            leaf = np.empty(wanted, np.result_type(older.dtype, value.dtype)).swapaxes(0, 1)
            leaf[: frames - 1 - len(older)] = 0
            leaf[frames - 1 - len(older) : frames - 1] = older
            leaf[-1] = value
            for env in short.tolist():
                leaf[: frames - rows[env], env] = 0
            window.append(leaf)
        return unflatten(form, window), rows

    def latest_output(self, key: str) -> tuple[Any, np.ndarray[Any, np.dtype[np.bool_]] | None] | None:
        """The newest row of a model output of every environment.

        Returns:
            Arrays of shape [N, ...] and which environments have such a row (bool, [N]; None: all);
            None if there is no such output yet.
        """
        column, row = self.block.extras.get(key), self.block.row - 1
        if column is None or row < 0:
            return None
        return column.row(row), None if self.newest_start <= row else self.low_rows <= row

    # -- whole columns, for batches ---------------------------------------------------------------

    def latest_steps(self, name: str, steps: int) -> tuple[Any, np.ndarray[Any, np.dtype[np.bool_]]]:
        """The newest actions, rewards or model outputs of every environment.

        Args:
            name: `actions`, `rewards`, or the key of a model output.
            steps: How many.

        Returns:
            The block's last rows, arrays of shape [at most `steps`, N, ...], newest last (views; do not write
            to them); and which of them belong to the environments' episodes: bool, [the same, N].

        Raises:
            ColumnError: a reward that whoever acts in these episodes did not give.
            UnknownNameError: steps were recorded without such an output.
        """
        block = self.block
        own = {Columns.ACTIONS: block.actions, Columns.REWARDS: block.rewards}
        column = own[name] if name in own else block.extras.get(name)
        first = max(0, block.row - steps)
        held = np.arange(first, block.row)[:, None] >= self.low_rows
        if column is None and block.rewards.leaves:
            raise self._unknown(name)
        if column is None or not column.leaves:  # no step yet
            return np.empty((0, block.num_envs)), held[:0]
        rows = unflatten(column.form, [leaf[first : block.row] for leaf in column.leaves])
        if block.unknown_rewards and name == Columns.REWARDS:
            known(rows[held])
        return rows, held

    def output_names(self) -> list[str]:
        """Names of the model outputs."""
        return list(self.block.extras)

    def gather(self, name: str, *, plus_one: bool = False) -> Any:
        """One column of all chunks, one chunk after the other.

        Args:
            name: `obs`, `actions`, `rewards`, or the key of a model output.
            plus_one: Give each chunk one row more: the last observation, or the last step again.

        Returns:
            Arrays of shape [sum of lengths (+ number of chunks), ...], copies.

        Raises:
            UnknownNameError: no such column.
            EpisodeStateError: the episodes are not `columnar` any more.
        """
        column, is_obs = self._column(name), name == Columns.OBS
        facts = self._facts()
        rows = self._rows(facts, plus_one, is_obs)
        leaves = [take(leaf, rows) for leaf in column.leaves]
        if name == Columns.REWARDS and self.block.unknown_rewards:
            known(leaves[0])
        if plus_one and is_obs:
            leaves = with_tails(leaves, column.form, self.chunks, facts)
        return unflatten(column.form, leaves)

    def observation_rows(self, chunk: int, before: int, count: int) -> list[Leaf]:
        """The leaves of a chunk's first observations, views unless one of them lies outside the block.

        Args:
            chunk: Position of the chunk.
            before: Rows of lookback in front; no more than there are.
            count: How many observations.
        """
        column, own = self._column(Columns.OBS), self.chunks[chunk]
        stop = own.start + count
        if own.tail is not NOTHING and stop > own.end:
            return self[chunk].observations.rows(-before, count)
        return [leaf[own.start - before : stop, own.env] for leaf in column.leaves]

    def rows_of(
        self, name: str, spans: Sequence[tuple[int, int]]
    ) -> tuple[Any, list[list[Leaf]], dict[int, list[Leaf]]]:
        """Some rows of each chunk, as views.

        Args:
            name: `obs`, `actions`, `rewards`, or the key of a model output.
            spans: From which row to which, counted from the chunk's start.

        Returns:
            The column's form; for each leaf the chunks' rows; and the last observations that lie outside the block,
            by position of the chunk, each leaf of shape [1, ...].

        Raises:
            UnknownNameError: no such column.
            EpisodeStateError: the episodes are not `columnar` any more.
        """
        column = self._column(name)
        places = [(c.start + first, c.start + stop, c.env) for c, (first, stop) in zip(self.chunks, spans)]
        tails = {}
        for i in self._facts().tails.tolist() if name == Columns.OBS else ():
            first, stop, env = places[i]
            own = self.chunks[i]
            if stop > own.end:
                tails[i] = [np.asarray(one)[None] for one in flatten_like(column.form, own.tail)]
                places[i] = first, own.end, env
        return column.form, [[leaf[low:high, env] for low, high, env in places] for leaf in column.leaves], tails

    def _rows(self, facts: ChunkFacts, plus_one: bool, is_obs: bool) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Where the chunks' rows lie; kept for the next column once the chunks are fixed."""
        kind = plus_one, plus_one and is_obs
        if facts is not self._known:
            return facts.positions(self.block.num_envs, *kind)
        if kind not in self._places:
            self._places[kind] = facts.positions(self.block.num_envs, *kind)
        return self._places[kind]

    def gather_before(self, name: str, steps: Sequence[Any]) -> Any:
        """Rows of a model output at given steps of each chunk (-1: the newest lookback step).

        Args:
            name: Key of the model output.
            steps: One int64 array of steps per chunk.

        Raises:
            UnknownNameError: no such column.
            EpisodeStateError: the episodes are not `columnar` any more.
        """
        counts = np.fromiter((len(at) for at in steps), np.int64, len(self.chunks))
        flat = np.concatenate([*steps, np.empty(0, np.int64)])
        return self.gather_at(name, np.repeat(np.arange(len(self.chunks)), counts), flat)

    def gather_at(self, name: str, chunks: Any, steps: Any) -> Any:
        """Rows of a model output at given steps of given chunks (-1: the newest lookback step).

        Args:
            name: Key of the model output.
            chunks: int64 [R], positions of the chunks.
            steps: int64 [R], which step of each.

        Returns:
            Arrays of shape [R, ...], copies.

        Raises:
            UnknownNameError: no such column.
            EpisodeStateError: the episodes are not `columnar` any more.
        """
        column, facts = self._column(name), self._facts()
        index = (facts.starts[chunks] + steps) * self.block.num_envs + facts.envs[chunks]
        return unflatten(column.form, [take(leaf, index) for leaf in column.leaves])

    def _column(self, name: str) -> BlockColumn:
        block = self.block
        if not self.columnar:
            raise EpisodeStateError(
                f"VectorEpisodes, column {name!r}",
                expected="episodes that all show their block",
                found="one with columns of its own, replaced, added or lengthened",
                do="read from the episodes one by one, or pass list(episodes)",
            )
        if name == Columns.OBS:
            block.commit()
            return block.observations
        own = {Columns.ACTIONS: block.actions, Columns.REWARDS: block.rewards}
        if name in own:
            return own[name]
        if name in block.extras:
            return block.extras[name]
        raise self._unknown(name)

    def _unknown(self, name: str) -> UnknownNameError:
        known = [Columns.OBS, Columns.ACTIONS, Columns.REWARDS, *self.block.extras]
        return UnknownNameError(
            "VectorEpisodes", expected="the name of a column", found=repr(name), do=nearest(name, known)
        )
