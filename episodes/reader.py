"""Rows of many chunks, wherever they are stored: in episodes, in blocks, or under a recorder."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, EpisodeIndexError, nearest
from epibatch.core.structs import Form, flatten, flatten_like, map_struct, unflatten

from ._parts.acting_rewards import known
from ._storage.arrays import Leaf, fits
from ._storage.block import BlockColumn
from ._storage.chunk import chunk_of
from ._storage.column_rows import BlockRows, ColumnRows, SeveralBlockRows
from ._storage.infos_buffer import mark_placeholders
from ._storage.packed_chunks import fact_of
from .infinite_lookback_buffer import InfiniteLookbackBuffer, lengths_of, newest_of, rows_of
from .single_agent_episode import SingleAgentEpisode, no_column
from .vector_episodes import VectorEpisodes

_COLUMNS = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def reader_of(episodes: Sequence[Any]) -> EpisodeReader:
    """Return what reads the rows of these episodes.

    Whether one of them shows other columns than those of its block is found here, once. Ask again after
    code that may have replaced one.

    Args:
        episodes: A list of episodes, also of views of one block or of several, or a VectorEpisodes.

    Example:
        >>> episode = SingleAgentEpisode(observations=[0, 1, 2], actions=[7, 8], rewards=[1.0, 2.0],
        ...                              len_lookback_buffer=0)
        >>> reader = reader_of([episode, episode])
        >>> reader.lengths.tolist(), reader.rows("actions").joined().tolist()
        ([2, 2], [7, 8, 7, 8])
    """
    if type(episodes) is not VectorEpisodes:
        chunks: list[Any] = []
        for episode in episodes:
            chunks.append(chunk_of(episode))
            if chunks[-1] is None:
                return EpisodeReader(episodes)
        if not chunks:
            return EpisodeReader(episodes)
        episodes = VectorEpisodes.over(chunks, episodes)
    elif episodes.recording:
        return EpisodeReader(episodes.views_of_all()) if episodes.block.behind else RecorderReader(episodes)
    elif episodes.has_views and any(chunk.replaced for chunk in episodes.chunks):
        return EpisodeReader(episodes.views_of_all())
    parts = episodes.by_block()
    return BlockReader(episodes) if len(parts) < 2 else SeveralBlocksReader(episodes, parts)


class EpisodeReader:
    """Reads the rows of many chunks, column by column: here from one episode after another.

    Steps are counted from a chunk's start: 0 is its first step, -1 the newest one before it. Columns are `obs`,
    `actions`, `rewards` and the keys of model outputs.

    Args:
        episodes: Single-agent episodes.
        given: What has the lengths, starts and ends of the chunks, if not the episodes.
    """

    def __init__(self, episodes: Sequence[Any], given: Sequence[Any] | None = None) -> None:
        self._sequence = episodes
        self._given = episodes if given is None else given

    @cached_property
    def episodes(self) -> list[Any]:
        """The episode objects."""
        sequence = self._sequence
        return sequence if type(sequence) is list else list(sequence)

    @cached_property
    def lengths(self) -> Ints:
        """Steps of each chunk: int64 [C]."""
        episodes = self._given
        if set(map(type, episodes)) != {SingleAgentEpisode}:
            return np.array(list(map(len, episodes)), np.int64)
        return np.array(lengths_of([episode.rewards for episode in episodes]), np.int64)

    @cached_property
    def starts(self) -> Ints:
        """Step of the episode at which each chunk starts: int64 [C]."""
        return np.array([episode.t_started for episode in self._given], np.int64)

    @cached_property
    def lookbacks(self) -> Ints:
        """Return the number of steps that each chunk keeps before its start: int64 [C]."""
        return np.array([episode.rewards.lookback for episode in self._given], np.int64)

    @property
    def ends(self) -> Flags:
        """Return the flags (terminated, truncated) at each chunk's end: bool [2, C]."""
        terminateds = [episode.is_terminated for episode in self._given]
        return np.array([terminateds, [episode.is_truncated for episode in self._given]], np.bool_)

    @property
    def outputs(self) -> list[str]:
        """Names of the model outputs.

        Raises:
            ColumnError: a chunk lacks an output that another one has.
        """
        outputs = [episode.extra_model_outputs.keys() for episode in self.episodes]
        first = outputs[0] if outputs else {}.keys()
        if outputs.count(first) < len(outputs):
            chunk = next(chunk for chunk, keys in enumerate(outputs) if keys != first)
            raise ColumnError(
                "model outputs",
                expected=f"{sorted(first)}, as in {self.describe(0)}",
                found=f"{sorted(outputs[chunk])} in {self.describe(chunk)}",
                do="batch only episodes that were recorded with the same module",
            )
        return list(first)

    @cached_property
    def lack_final_obs(self) -> Flags:
        """Return a mask of the chunks whose last observation is a placeholder, read as the one before: bool [C]."""
        return np.array(mark_placeholders([episode.infos for episode in self._given]), np.bool_)

    def holds(self, column: str) -> Flags:
        """Return a mask of the chunks that have a column: bool [C]."""
        if column in _COLUMNS:
            return np.ones(len(self.episodes), np.bool_)
        return np.array([column in episode.extra_model_outputs for episode in self.episodes], np.bool_)

    def describe(self, chunk: int) -> str:
        """Name a chunk for a message."""
        episode = self.episodes[chunk]
        if episode.multi_agent_episode_id is not None:
            return f"episode {episode.multi_agent_episode_id!r}, agent {episode.agent_id!r}"
        return f"episode {episode.id_!r} (chunk {chunk} of {len(self.episodes)})"

    def _buffers(self, column: str) -> list[Any]:
        """The column of each episode; None where it is no model output of that episode."""
        if column == Columns.OBS:
            return [episode.observations for episode in self._sequence]
        if column == Columns.ACTIONS:
            return [episode.actions for episode in self._sequence]
        if column == Columns.REWARDS:
            return [episode.rewards for episode in self._sequence]
        return [episode.extra_model_outputs.get(column) for episode in self._sequence]

    def rows(self, column: str, first: Any = 0, stop: Any = None, step: int = 1) -> ColumnRows:
        """Rows of each chunk, where they lie.

        Args:
            column: Its name.
            first: The first row: an int, or int64 [C].
            stop: The row after the last, likewise; default: the chunk's length. No rows if it is before `first`.
            step: Every how many rows.

        Raises:
            ColumnError: a chunk with such rows lacks the column, or has it in another nesting.
            EpisodeIndexError: a chunk lacks such rows.
        """
        buffers, spans = self._buffers(column), np.maximum(self._stops(stop) - first, 0).tolist()
        firsts = first.tolist() if isinstance(first, np.ndarray) else [first] * len(spans)
        found = rows_of(buffers, firsts, spans) if buffers else None
        form, leaves = found or self._checked_rows(column, buffers, firsts, spans)
        if column == Columns.OBS and stop is not None and self.lack_final_obs.any():
            ends = np.array(firsts) + spans == self.lengths + 1
            for chunk in np.flatnonzero(self.lack_final_obs & ends & (np.array(spans) > 0)).tolist():
                last = int(self.lengths[chunk])
                before = self._rows_of(column, chunk, buffers[chunk], last - 1, 1)
                for parts, row in zip(leaves, self._in_nesting_of(form, before, column, chunk)):
                    parts[chunk] = np.concatenate((parts[chunk][:-1], row))
        if step > 1:
            leaves = [[leaf[::step] for leaf in parts] for parts in leaves]
            spans = [-(-span // step) for span in spans]
        return ColumnRows(form, leaves, spans, column, self.describe, sound=found is not None)

    def _stops(self, stop: Any) -> Ints:
        """The row after the last of each chunk."""
        return self.lengths if stop is None else np.zeros_like(self.lengths) + stop

    def _checked_rows(
        self, column: str, buffers: list[Any], firsts: list[int], spans: list[int]
    ) -> tuple[Form, list[list[Leaf]]]:
        """Form and leaves of each chunk's rows, which are brought to one nesting."""
        chunk_rows = [self._rows_of(column, *args) for args in zip(range(len(buffers)), buffers, firsts, spans)]
        empty = ((buffer.form, buffer.rows(0, 0)) for buffer in buffers if isinstance(buffer, InfiniteLookbackBuffer))
        kinds = (rows for part in (chunk_rows, empty) for rows in part if rows is not None and rows[1])
        form, example = next(kinds, (None, []))
        blank, leaves = [leaf[:0] for leaf in example], []
        for chunk, rows in enumerate(chunk_rows):
            if rows is not None and rows[0] != form:
                rows = form, self._in_nesting_of(form, rows, column, chunk)
            leaves.append(blank if rows is None else rows[1])
        return form, [list(parts) for parts in zip(*leaves)]

    def _rows_of(self, column: str, chunk: int, buffer: Any, first: int, span: int) -> Any:
        """Form and leaves of one chunk's rows; None if none are asked for."""
        if span <= 0:
            return None
        if buffer is None:
            raise self._unknown(column, chunk, self.episodes[chunk].extra_model_outputs)
        if not isinstance(buffer, InfiniteLookbackBuffer):
            raise no_column(self.episodes[chunk], column, buffer)
        leaves = buffer.rows(first, first + span)
        if not leaves or len(leaves[0]) < span:
            raise EpisodeIndexError(
                f"column {column!r}, {self.describe(chunk)}",
                expected=f"rows {first} to {first + span - 1}, counted from the chunk's start",
                found=f"{buffer!r}",
                do="reset the episode, or ask for rows that it has",
            )
        return buffer.form, leaves

    def _in_nesting_of(self, form: Any, found: Any, column: str, chunk: int) -> list[Leaf]:
        """The leaves of a chunk's rows in the order of another chunk's."""
        try:
            return flatten_like(form, unflatten(*found))
        except ColumnError as error:
            raise ColumnError(
                f"column {column!r}",
                expected=f"{error.expected}, as in {self.describe(0)}",
                found=f"{error.found} in {self.describe(chunk)}",
                do="batch only episodes of one space, or bring them to one shape with an earlier piece",
            ) from None

    def _unknown(self, column: str, chunk: int, outputs: Any) -> ColumnError:
        where, do = self.describe(chunk), nearest(column, outputs)
        return ColumnError(where, expected=f"a column {column!r}", found="none", do=do)

    def at(self, column: str, chunks: Ints, steps: Ints) -> Any:
        """Copies of rows at given steps of given chunks: arrays of shape [R, ...].

        Args:
            column: Its name.
            chunks: int64 [R], positions of the chunks.
            steps: int64 [R], which step of each.
        """
        if not len(chunks):
            return self.rows(column, 0, 0).joined()
        buffers, form = self._buffers(column), None
        steps = self._real_steps(column, chunks, steps)
        parts: list[list[Leaf]] = []
        order = np.argsort(chunks, kind="stable")
        owners, counts = np.unique(chunks, return_counts=True)
        stop = 0
        for chunk, count in zip(owners.tolist(), counts.tolist()):
            start, stop = stop, stop + count
            chunk_steps = steps[order[start:stop]]
            low = int(chunk_steps.min())
            found = self._rows_of(column, chunk, buffers[chunk], low, int(chunk_steps.max()) + 1 - low)
            form = found[0] if not parts else form
            leaves = found[1] if found[0] == form else self._in_nesting_of(form, found, column, chunk)
            parts.append([leaf[chunk_steps - low] for leaf in leaves])
        back = np.argsort(order)
        return unflatten(form, [np.concatenate(leaf)[back] for leaf in zip(*parts)])

    def _real_steps(self, column: str, chunks: Ints, steps: Ints) -> Ints:
        """Steps of chunks, with the step before a placeholder in its place."""
        if column != Columns.OBS or not self.lack_final_obs.any():
            return steps
        real: Ints = steps - (self.lack_final_obs[chunks] & (steps == self.lengths[chunks]))
        return real

    def newest(self, column: str, *, copy: bool = True) -> tuple[Any, Flags | None]:
        """The newest row of each chunk.

        Args:
            column: Its name.
            copy: Whether the arrays may be written to and kept; otherwise they may show the chunks' storage.

        Returns:
            Arrays of shape [C, ...], None if nothing shows what a row is like; and which chunks have one (bool [C];
            None: all). Rows of the others mean nothing.

        Raises:
            ColumnError: rows of several shapes or nestings.
        """
        buffers = self._buffers(column)
        try:
            rows = newest_of(buffers)
        except AttributeError:  # an episode has no such column
            rows = None
        if rows is not None:
            return rows, None
        has_row = np.array([buffer is not None and buffer.len_incl_lookback() > 0 for buffer in buffers], np.bool_)
        if has_row.all() or column == Columns.OBS:
            return self._joined_last(column, buffers), None
        chunks = np.flatnonzero(has_row)
        if not len(chunks):
            return None, has_row
        part = EpisodeReader([self.episodes[i] for i in chunks.tolist()])
        rows, _ = part.newest(column)
        return map_struct(lambda leaf: _spread(leaf, chunks, len(has_row)), rows), has_row

    def _joined_last(self, column: str, buffers: list[Any]) -> Any:
        """The newest row of each buffer, which may be held apart from the others because it differs from them."""
        chunk_rows: list[tuple[Any, list[Leaf]]] = []
        for chunk, buffer in enumerate(buffers):
            values, form = flatten(buffer.last())
            found = form, [np.asarray(value)[None] for value in values]
            if chunk_rows and form != chunk_rows[0][0]:
                found = chunk_rows[0][0], self._in_nesting_of(chunk_rows[0][0], found, column, chunk)
            chunk_rows.append(found)
        leaves = [list(parts) for parts in zip(*(chunk_leaves for _, chunk_leaves in chunk_rows))]
        rows = ColumnRows(chunk_rows[0][0], leaves, [1] * len(chunk_rows), column, self.describe)
        rows.check()
        return rows.joined()

    def latest(self, column: str, count: int) -> tuple[Any, Ints | None]:
        """The newest rows of each chunk, its lookback included.

        Args:
            column: Its name.
            count: How many.

        Returns:
            Copies, arrays of shape [count, C, ...] (in memory [C, count, ...]), newest last, None if nothing shows
            what a row is like, zeros before the rows that a chunk holds; and how many it holds (int64 [C]; None:
            `count` each).

        Raises:
            ColumnError: rows of several shapes or nestings.
        """
        stops = np.where(self.holds(column), self.lengths + (column == Columns.OBS), 0)
        available = np.minimum(count, stops + self.lookbacks)
        if not available.any():
            return None, available
        rows = self.rows(column, stops - available, stops)
        rows.check()
        leaves, form = flatten(rows.joined())
        windows, complete = [], bool((available == count).all())
        for leaf in leaves:
            if complete:
                window = leaf.reshape(len(available), count, *leaf.shape[1:])
            else:
                window = np.zeros((len(available), count, *leaf.shape[1:]), leaf.dtype)
                window[np.arange(count) >= count - available[:, None]] = leaf
            windows.append(window.swapaxes(0, 1))
        return unflatten(form, windows), None if complete else available

    def returns_before(self) -> npt.NDArray[np.float64]:
        """Return the return of each episode before its chunk, NaN if it is not known: float64 [C]."""
        return np.array([episode.return_before for episode in self._given], np.float64)

    def returns_so_far(self) -> npt.NDArray[np.float64]:
        """Return the return of each chunk's episode up to its newest step, NaN if it is not known: float64 [C].

        Raises:
            ColumnError: the caller did not give one of the rewards.
        """
        return self.returns_before() + np.array([episode.get_return() for episode in self.episodes], np.float64)

    def write_newest(self, observations: Any, space: Any = None) -> None:
        """Replace the newest observation of each chunk.

        Args:
            observations: Arrays of shape [C, ...], or a list of C observations.
            space: Space of the observations from now on; None: as before.
        """
        rows = observations
        if not isinstance(rows, list):
            leaves, form = flatten(rows)
            rows = [unflatten(form, [leaf[i] for leaf in leaves]) for i in range(len(self.episodes))]
        for episode, row in zip(self.episodes, rows):
            episode.set_observations(new_data=row, at_indices=-1)
            if space is not None:
                episode.observation_space = space


class BlockReader(EpisodeReader):
    """Reads whole columns of finished chunks out of the block that they lie in.

    Args:
        episodes: Those of one block; none of them shows other rows than its chunk's.
    """

    def __init__(self, episodes: VectorEpisodes) -> None:
        super().__init__(episodes, episodes.chunks)
        self.block, self.chunks = episodes.block, episodes.chunks
        self._known_places: dict[Any, Ints] = {}

    @cached_property
    def _envs(self) -> Ints:
        """Environment of each chunk."""
        return fact_of(self.chunks, "env")

    @cached_property
    def _begins(self) -> Ints:
        """Row of the block at which each chunk starts."""
        return fact_of(self.chunks, "start")

    @cached_property
    def lengths(self) -> Ints:
        """Steps of each chunk: int64 [C]."""
        lengths: Ints = fact_of(self.chunks, "end") - self._begins
        return lengths

    @cached_property
    def starts(self) -> Ints:
        """Step of the episode at which each chunk starts: int64 [C]."""
        return fact_of(self.chunks, "t_started")

    @cached_property
    def lookbacks(self) -> Ints:
        """Return the number of steps that each chunk keeps before its start: int64 [C]."""
        lookbacks: Ints = self._begins - fact_of(self.chunks, "low")
        return lookbacks

    @property
    def ends(self) -> Flags:
        """Return the flags (terminated, truncated) at each chunk's end: bool [2, C]."""
        if self.block.views:
            flags = np.array([chunk.ends for chunk in self.chunks], np.bool_)
            return flags.reshape(-1, 2).T
        return np.stack([fact_of(self.chunks, "terminated"), fact_of(self.chunks, "truncated")])

    @cached_property
    def lack_final_obs(self) -> Flags:
        """Return a mask of the chunks whose last observation is a placeholder (see `EpisodeReader.lack_final_obs`)."""
        return fact_of(self.chunks, "lacks_final_obs")

    @cached_property
    def _have_tails(self) -> Flags:
        """Return a mask of the chunks whose last observation lies outside the block: bool [C]."""
        return fact_of(self.chunks, "has_tail")

    @property
    def outputs(self) -> list[str]:
        """Names of the model outputs."""
        return list(self.block.extras)

    def holds(self, column: str) -> Flags:
        """Return a mask of the chunks that have a column: bool [C]."""
        return np.full(len(self.chunks), column in _COLUMNS or column in self.block.extras)

    def rows(self, column: str, first: Any = 0, stop: Any = None, step: int = 1) -> ColumnRows:
        """Rows of each chunk, where they lie (see `EpisodeReader.rows`)."""
        block_column, spans, tails = self._column(column), np.maximum(self._stops(stop) - first, 0), {}
        if stop is not None and ((spans > 0) & (first + spans > self.lengths + (column == Columns.OBS))).any():
            return super().rows(column, first, stop, step)  # which says what chunk lacks them
        counts = -(-spans // step)
        if column == Columns.OBS:
            last = first + (counts - 1) * step == self.lengths
            tails = self._terminal_rows(block_column, np.flatnonzero(last & (counts > 0)))
        return BlockRows(
            block_column.form, block_column.leaves, self._envs, self._begins + first, counts, step, self._places, tails,
            column, self.describe,
        )  # fmt: skip

    def _column(self, column: str) -> BlockColumn:
        found = self.block.column(column)
        if found is None:
            raise self._unknown(column, 0, [*_COLUMNS, *self.block.extras])
        return found

    def _terminal_rows(self, column: BlockColumn, chunks: Ints) -> dict[int, list[Leaf]]:
        """The last observations that lie outside the block, of these chunks: leaves of shape [1, ...]."""
        tails: dict[int, list[Leaf]] = {}
        for i in chunks[self._have_tails[chunks]].tolist() if len(chunks) else ():
            chunk = self.chunks[i]
            tail = chunk.tail
            if chunk.lacks_final_obs:
                tails[i] = [leaf[chunk.end - 1 : chunk.end, chunk.env] for leaf in column.leaves]
            else:
                values = flatten_like(column.form, tail)
                kinds = [fits(leaf[:, 0], value) for leaf, value in zip(column.leaves, values)]
                tails[i] = [np.asarray(value, kind)[None] for value, kind in zip(values, kinds)]
        return tails

    def _places(self, firsts: Ints, counts: Ints, step: int) -> Ints:
        """Flat positions (row * width + env) of rows of each chunk, kept for the next column."""
        key = step, firsts.tobytes(), counts.tobytes()
        places = self._known_places.get(key)
        if places is None:
            width, ends = self.block.num_envs, np.cumsum(counts)
            places = np.arange(ends[-1] if len(ends) else 0, dtype=np.int64)
            places *= width * step
            places += np.repeat(firsts * width + self._envs - (ends - counts) * width * step, counts)
            self._known_places[key] = places
        return places

    def at(self, column: str, chunks: Ints, steps: Ints) -> Any:
        """Copies of rows at given steps of given chunks (see `EpisodeReader.at`)."""
        block_column, steps = self._column(column), self._real_steps(column, chunks, steps)
        leaves = [leaf[self._begins[chunks] + steps, self._envs[chunks]] for leaf in block_column.leaves]
        if column == Columns.OBS:
            last = np.flatnonzero(steps == self.lengths[chunks])
            tails = self._terminal_rows(block_column, np.unique(chunks[last]))
            for row in last.tolist() if tails else ():
                for i, tail in enumerate(tails.get(int(chunks[row]), ())):
                    leaves[i] = leaves[i].astype(np.result_type(leaves[i], tail), copy=False)
                    leaves[i][row] = tail[0]
        return unflatten(block_column.form, leaves)


class RecorderReader(BlockReader):
    """Reads the episodes that a recorder is adding to: their newest rows, of all environments at once.

    Args:
        episodes: Those of the recorder.
    """

    def __init__(self, episodes: VectorEpisodes) -> None:
        self._sequence = self._recorded = episodes
        self.block = episodes.block
        self.chunks = self._given = episodes.chunks

    rows = EpisodeReader.rows
    at = EpisodeReader.at

    def newest(self, column: str, *, copy: bool = True) -> tuple[Any, Flags | None]:
        """The newest row of each chunk (see `EpisodeReader.newest`)."""
        if column == Columns.OBS:
            rows = self.block.latest_observations()
            return map_struct(np.array, rows) if copy else rows, None
        block_column, row = self.block.column(column), self.block.row - 1
        if block_column is None or not block_column.leaves:
            return None, np.zeros(len(self.chunks), np.bool_)
        has_row = None if self._recorded.newest_start <= row else self._recorded.low_rows <= row
        leaves = [np.array(leaf[max(row, 0)]) for leaf in block_column.leaves]
        if column == Columns.REWARDS:
            self._check_known(leaves[0] if has_row is None else leaves[0][has_row])
        return unflatten(block_column.form, leaves), has_row

    def latest(self, column: str, count: int) -> tuple[Any, Ints | None]:
        """The newest rows of each chunk, its lookback included (see `EpisodeReader.latest`)."""
        block = self.block
        if column == Columns.OBS:
            values, form = flatten(block.latest_observations())
            before = block.before_newest(max(block.row - count + 1, 0))
            older = None if before is None else before[1]
            if before is not None:
                values, form = flatten_like(before[0], unflatten(form, values)), before[0]
            available = np.minimum(block.row - self._recorded.low_rows + 1, count)
        else:
            source, values = block.column(column), None
            available = np.clip(block.row - self._recorded.low_rows, 0, count)
            if source is None or not source.leaves:
                return None, np.zeros_like(available)
            form, older = source.form, [leaf[max(0, block.row - count) : block.row] for leaf in source.leaves]
        windows = []
        for i in range(len(values or older or ())):
            leaf = _window(None if older is None else older[i], None if values is None else values[i], count)
            for env in np.flatnonzero(available < count).tolist():
                leaf[: count - available[env], env] = 0
            if column == Columns.REWARDS:
                self._check_known(leaf)
            windows.append(leaf)
        return unflatten(form, windows), available if (available < count).any() else None

    def _check_known(self, rewards: Any) -> None:
        if self.block.unknown_rewards:
            known(rewards)

    def returns_so_far(self) -> npt.NDArray[np.float64]:
        """Return the return of each chunk's episode up to its newest step, NaN if it is not known: float64 [C].

        Raises:
            ColumnError: the caller did not give one of the rewards.
        """
        returns = self._recorded.running_returns()
        if self.block.unknown_rewards and np.isnan(returns).any():
            raise ColumnError(
                "returns so far",
                expected="every reward since the episode's start",
                found=f"one that the caller did not give, in {self.describe(int(np.isnan(returns).argmax()))}",
                do="policy.act(obs, state, reward=reward), with the reward of the step before",
            )
        return returns

    def write_newest(self, observations: Any, space: Any = None) -> None:
        """Replace the newest observation of each chunk (see `EpisodeReader.write_newest`)."""
        if isinstance(observations, list):
            super().write_newest(observations, space)
        else:
            self.block.stage(observations)


class SeveralBlocksReader(EpisodeReader):
    """Reads chunks of several blocks, block by block.

    Args:
        episodes: The episodes; none of them shows other rows than its chunk's.
        parts: The episodes of each block, and their positions: int64.
    """

    def __init__(self, episodes: VectorEpisodes, parts: Sequence[tuple[VectorEpisodes, Ints]]) -> None:
        super().__init__(episodes, episodes.chunks)
        self._readers = [BlockReader(part) for part, _ in parts]
        self._places = [places for _, places in parts]
        order = np.concatenate(self._places)
        self._back = None if (np.diff(order) > 0).all() else np.argsort(order)

    def _of_all(self, parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Return what the readers say of their chunks (the last axis), in the order of all chunks."""
        values = np.concatenate(parts, axis=-1)
        return values if self._back is None else values[..., self._back]

    @cached_property
    def lengths(self) -> Ints:
        """Steps of each chunk: int64 [C]."""
        return self._of_all([reader.lengths for reader in self._readers])

    @cached_property
    def starts(self) -> Ints:
        """Step of the episode at which each chunk starts: int64 [C]."""
        return self._of_all([reader.starts for reader in self._readers])

    @cached_property
    def lookbacks(self) -> Ints:
        """Return the number of steps that each chunk keeps before its start: int64 [C]."""
        return self._of_all([reader.lookbacks for reader in self._readers])

    @property
    def ends(self) -> Flags:
        """Return the flags (terminated, truncated) at each chunk's end: bool [2, C]."""
        return self._of_all([reader.ends for reader in self._readers])

    @cached_property
    def lack_final_obs(self) -> Flags:
        """Return a mask of the chunks whose last observation is a placeholder (see `EpisodeReader.lack_final_obs`)."""
        return self._of_all([reader.lack_final_obs for reader in self._readers])

    def holds(self, column: str) -> Flags:
        """Return a mask of the chunks that have a column: bool [C]."""
        return self._of_all([reader.holds(column) for reader in self._readers])

    @property
    def outputs(self) -> list[str]:
        """Names of the model outputs (see `EpisodeReader.outputs`)."""
        first, *others = (reader.outputs for reader in self._readers)
        return first if all(set(names) == set(first) for names in others) else super().outputs

    def rows(self, column: str, first: Any = 0, stop: Any = None, step: int = 1) -> ColumnRows:
        """Rows of each chunk, where they lie (see `EpisodeReader.rows`)."""
        if not self._alike(column):
            return super().rows(column, first, stop, step)
        firsts, stops = np.zeros_like(self.lengths) + first, self._stops(stop)
        parts = [reader.rows(column, firsts[at], stops[at], step) for reader, at in zip(self._readers, self._places)]
        if not all(part.sound for part in parts):
            return super().rows(column, first, stop, step)
        if self._back is None:
            return SeveralBlockRows(parts, column, self.describe)
        chunk_rows = [part.of_chunk(chunk) for part in parts for chunk in range(len(part.counts))]
        counts = [count for part in parts for count in part.counts]
        leaves = [[chunk_rows[i][leaf] for i in self._back.tolist()] for leaf in range(len(chunk_rows[0]))]
        return ColumnRows(parts[0].form, leaves, [counts[i] for i in self._back.tolist()], column, self.describe)

    def _alike(self, column: str) -> bool:
        """Return True if all blocks have a column, in one nesting and shape."""
        columns = [reader.block.column(column) for reader in self._readers]
        kinds = {item and repr((item.form, [leaf.shape[2:] for leaf in item.leaves])) for item in columns}
        return len(kinds) == 1 and columns[0] is not None

    def at(self, column: str, chunks: Ints, steps: Ints) -> Any:
        """Copies of rows at given steps of given chunks (see `EpisodeReader.at`)."""
        if not len(chunks) or not self._alike(column):
            return super().at(column, chunks, steps)
        owners, numbers = np.empty((2, len(self.lengths)), np.int64)
        for owner, places in enumerate(self._places):
            owners[places], numbers[places] = owner, np.arange(len(places))
        wanted = [np.flatnonzero(owners[chunks] == owner) for owner in range(len(self._readers))]
        found = [
            reader.at(column, numbers[chunks[at]], steps[at]) for reader, at in zip(self._readers, wanted) if len(at)
        ]
        back = np.argsort(np.concatenate(wanted))
        return map_struct(lambda *leaves: np.concatenate(leaves)[back], *found)


def _spread(rows: Leaf, chunks: Ints, count: int) -> Leaf:
    """Rows of some chunks among those of all."""
    out = np.zeros((count, *rows.shape[1:]), rows.dtype)
    out[chunks] = rows
    return out


def _window(older: Leaf | None, newest: Leaf | None, count: int) -> Leaf:
    """Copies of rows of a block and of the newest one apart from them: [count, N, ...], zeros first if they are fewer.

    Raises:
        ColumnError: the newest observations are of another shape than those before.
    """
    rows: Leaf = newest[None][:0] if older is None else older  # type: ignore[index]
    shape, dtype = rows.shape[1:], rows.dtype
    if newest is not None:
        shape, dtype = newest.shape, np.result_type(rows, newest)
    if rows.shape[1:] != shape:
        raise ColumnError(
            "the newest observations, beside those before",
            expected=f"shape {rows.shape[2:]} per environment",
            found=f"{shape[1:]}",
            do="write all observations of an episode back in one shape",
        )
    stop = count - (newest is not None)
    window = np.empty((shape[0], count, *shape[1:]), dtype).swapaxes(0, 1)
    window[: stop - len(rows)] = 0
    window[stop - len(rows) : stop] = rows
    if newest is not None:
        window[-1] = newest
    return window
