"""Rows of many chunks, wherever they are stored: in episodes, in blocks, or under a recorder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from epibatch.core.arrays_or_tensors import put
from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, EpisodeIndexError, nearest
from epibatch.core.kept_property import kept_property
from epibatch.core.structs import Form, flatten, flatten_like, map_struct, unflatten

from ._storage.chunk import chunk_of
from .arrays import Leaf, fits, object_leaf
from .chunk_table import ChunkTable
from .infinite_lookback_buffer import InfiniteLookbackBuffer, newest_of, rows_of
from .rows import Rows
from .single_agent_episode import no_column
from .store import Flags, Ints, StoreColumn
from .tail_rows import TailRows
from .vector_episodes import VectorEpisodes

_NUMBERS = "biufc"
_COLUMNS = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)
_AT_OBSERVATIONS = (Columns.OBS, Columns.INFOS, Columns.T)


def reader_of(episodes: Sequence[Any]) -> EpisodeReader:
    """Return what reads the rows of these episodes.

    Whether one of them shows other columns than those of its block is found here, once. Ask again after
    code that may have replaced one.

    Args:
        episodes: A list of episodes, also of views of one block or of several; or a sequence with a `ChunkTable` as its
            attribute `table`, as `VectorEpisodes` has.

    Examples:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> episode = SingleAgentEpisode(observations=[0, 1, 2], actions=[7, 8], rewards=[1.0, 2.0],
        ...                              len_lookback_buffer=0)
        >>> reader = reader_of([episode, episode])
        >>> reader.lengths.tolist(), reader.rows("actions").joined().tolist()
        ([2, 2], [7, 8, 7, 8])
    """
    if type(episodes) is VectorEpisodes:
        if episodes.is_replaced or episodes.block.behind:
            return EpisodeReader(episodes.views_of_all())
    elif isinstance(episodes, (list, tuple)):
        chunks: list[Any] = []
        for episode in episodes:
            chunks.append(chunk_of(episode))
            if chunks[-1] is None:
                return EpisodeReader(episodes)
        if not chunks:
            return EpisodeReader(episodes)
        episodes = VectorEpisodes.over(chunks, episodes)
    return EpisodeReader(episodes)


class EpisodeReader:
    """Reads the rows of many chunks, column by column.

    Steps are counted from a chunk's start: 0 is its first step, -1 the newest one before it. Columns are `obs`,
    `actions`, `rewards` and the keys of model outputs.

    Args:
        episodes: The chunks: single-agent episodes.
        given: What has the lengths, starts and ends of the chunks, if not the episodes.
    """

    def __init__(self, episodes: Sequence[Any], given: Sequence[Any] | None = None) -> None:
        self._sequence = episodes
        self._given = episodes if given is None else given
        self._recorded: Any = episodes if type(episodes) is VectorEpisodes and episodes.recording else None

    @kept_property
    def table(self) -> ChunkTable:
        """The facts of the chunks, and where their rows lie."""
        table: ChunkTable | None = getattr(self._sequence, "table", None)
        return ChunkTable.of_episodes(self._given) if table is None else table

    @kept_property
    def episodes(self) -> list[Any]:
        """The episode objects."""
        sequence = self._sequence
        return sequence if type(sequence) is list else list(sequence)

    @property
    def lengths(self) -> Ints:
        """Steps of each chunk: int64 [C]."""
        return self.table.lengths

    @property
    def starts(self) -> Ints:
        """Step of the episode at which each chunk starts: int64 [C]."""
        return self.table.starts

    @property
    def lookbacks(self) -> Ints:
        """Number of steps that each chunk keeps before its start: int64 [C]."""
        return self.table.lookbacks

    @kept_property
    def ends(self) -> Flags:
        """The flags (terminated, truncated) at each chunk's end: bool [2, C]."""
        return self.table.ends

    @property
    def lack_final_obs(self) -> Flags:
        """A mask of the chunks whose last observation is a placeholder, read as the one before: bool [C]."""
        return self.table.lack_final_obs

    @property
    def outputs(self) -> list[str]:
        """Names of the model outputs.

        Raises:
            ColumnError: a chunk lacks an output that another one has.
        """
        table = self.table
        if table.owns:
            outputs: list[Any] = [episode.extra_model_outputs.keys() for episode in self.episodes]
        else:
            outputs = [store.outputs for store in table.stores]
        first = outputs[0] if outputs else {}.keys()
        if outputs.count(first) < len(outputs):
            other = next(i for i, names in enumerate(outputs) if names != first)
            chunk = table.store.tolist().index(other)
            raise ColumnError(
                "model outputs",
                expected=f"{sorted(first)}, as in {self.describe(0)}",
                found=f"{sorted(outputs[other])} in {self.describe(chunk)}",
                do="batch only episodes that were recorded with the same module",
            )
        return list(first)

    def holds(self, column: str) -> Flags:
        """Return a mask of the chunks that have a column: bool [C]."""
        if column in _COLUMNS:
            return np.ones(len(self._sequence), np.bool_)
        if not self.table.owns:
            return np.array([column in store.outputs for store in self.table.stores], np.bool_)[self.table.store]
        return np.array([column in episode.extra_model_outputs for episode in self.episodes], np.bool_)

    def describe(self, chunk: int) -> str:
        """Name a chunk for a message."""
        if not self.table.owns:
            names: Any = self._sequence
            return f"episode {names.ids[chunk]!r} (chunk {chunk} of {len(self.table)})"
        episode = self.episodes[chunk]
        if episode.multi_agent_episode_id is not None:
            return f"episode {episode.multi_agent_episode_id!r}, agent {episode.agent_id!r}"
        return f"episode {episode.id_!r} (chunk {chunk} of {len(self.episodes)})"

    # -- rows ----------------------------------------------------------------------------------------

    def rows(self, column: str, first: Any = 0, stop: Any = None, step: int = 1) -> Rows:
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
        firsts, spans = self._zeros, self.table.lengths
        if stop is not None or type(first) is not int or first:
            begins = first if isinstance(first, np.ndarray) else firsts + first
            spans = np.maximum((spans if stop is None else stop) - begins, 0)
            firsts = begins if spans.all() else np.where(spans > 0, begins, 0)
            self._check_span(column, firsts, spans)
        counts = spans if step == 1 else -(-spans // step)
        form: Form = None
        parts: Any = None
        gathered: Any = None
        if self.table.owns:
            buffers = self._buffers(column)
            found = rows_of(buffers, firsts.tolist(), spans.tolist()) if buffers else None
            form, parts = found or self._own_rows(column, buffers, firsts.tolist(), spans.tolist())
            sound = found is not None
            if step > 1:
                parts = [[leaf[::step] for leaf in leaves] for leaves in parts]
        else:
            columns, sound = self._columns(self.table, column, spans)
            form = columns[0].form if columns else None
            if sound:
                gathered = self.table, columns, step
            else:
                parts = self.table.slices(columns, firsts, counts, step) if columns else []
        rows = Rows(form, parts, counts, firsts, column, self.describe, gathered=gathered, sound=sound)
        if column == Columns.OBS and stop is not None and (self.table.tails or self.lack_final_obs.any()):
            last = firsts + (counts - 1) * step == self.table.lengths
            self._set_tails(rows, np.flatnonzero(last & (counts > 0)))
        return rows

    def _columns(self, table: ChunkTable, column: str, spans: Ints) -> tuple[list[StoreColumn], bool]:
        """A column of each store, of one nesting, and True if all are numbers of one shape.

        Raises:
            ColumnError: a chunk with rows lacks the column, or has it in another nesting.
        """
        stored = [store.stored(column) for store in table.stores]
        if len(stored) == 1 and stored[0] is not None and stored[0].leaves:
            numbers = table.device is not None or all(leaf.dtype.kind in _NUMBERS for leaf in stored[0].leaves)
            return stored, numbers  # type: ignore[return-value]
        example = next((item for item in stored if item is not None and item.leaves), None)
        blank = [] if example is None else [leaf[:0] for leaf in example.leaves]
        columns = []
        for k, item in enumerate(stored):
            if item is None or not item.leaves:
                chunks = np.flatnonzero((table.store == k) & (spans > 0))
                if item is None and len(chunks):
                    raise self._unknown(column, int(chunks[0]), [*_COLUMNS, *table.stores[k].outputs])
                item = None if example is None else StoreColumn(example.form, blank)
            elif example is not None and item.form != example.form:
                chunk = int(np.argmax(table.store == k))
                leaves = self._in_nesting_of(example.form, item[:2], column, chunk)
                item = item._replace(form=example.form, leaves=leaves)
            if item is not None:
                columns.append(item)
        shapes = {tuple(leaf.shape[1:] for leaf in item.leaves) for item in columns}
        leaves = [] if table.device is not None else [leaf for item in columns for leaf in item.leaves]
        numbers = all(leaf.dtype.kind in _NUMBERS for leaf in leaves)
        return columns, numbers and len(shapes) == 1

    @kept_property
    def _zeros(self) -> Ints:
        return np.zeros_like(self.table.lengths)

    def _check_span(self, column: str, firsts: Ints, spans: Ints) -> None:
        table = self.table
        if table.owns:
            return  # each buffer knows
        stops = table.lengths + table.ahead + (column == Columns.OBS)
        lacking = (firsts < -table.lookbacks) | (firsts + spans > stops)
        if lacking.any() and (lacking & (spans > 0)).any():
            chunk = int(np.argmax(lacking & (spans > 0)))
            raise self._no_rows(column, chunk, int(firsts[chunk]), int(spans[chunk]), int(stops[chunk]))

    def _no_rows(self, column: str, chunk: int, first: int, span: int, stop: int) -> EpisodeIndexError:
        return EpisodeIndexError(
            f"column {column!r}, {self.describe(chunk)}",
            expected=f"rows {first} to {first + span - 1}, counted from the chunk's start",
            found=f"rows {-int(self.lookbacks[chunk])} to {stop - 1}",
            do="reset the episode, or ask for rows that it has",
        )

    def _set_tails(self, rows: Rows, chunks: Ints) -> None:
        """Give rows the last observations of these chunks that lie apart, or are placeholders."""
        table = self.table
        if isinstance(table.tails, TailRows):
            at, tail_rows = table.tails.among(chunks)
            rows.apart = chunks[at], flatten_like(rows.form, tail_rows)
            return
        apart = self.lack_final_obs[chunks]
        if table.tails:
            apart = apart | np.array([chunk in table.tails for chunk in chunks.tolist()], np.bool_)
        if not apart.any():
            return
        like = [rows.like(i) for i in range(rows.num_leaves)]
        tails: dict[int, list[Leaf]] = {}
        for chunk in chunks[apart].tolist():
            if self.lack_final_obs[chunk]:
                before = self.at(Columns.OBS, np.array([chunk]), self.table.lengths[[chunk]] - 1)
                tails[chunk] = flatten_like(rows.form, before)
            else:
                values = flatten_like(rows.form, table.tails[chunk])
                kinds = map(fits, like, values)
                tails[chunk] = [
                    object_leaf([value]) if kind == np.object_ else np.asarray(value, kind)[None]
                    for value, kind in zip(values, kinds)
                ]
        rows.tails = tails
        shapes = [leaf.shape for leaf in like]
        rows.sound &= all(
            [leaf.shape[1:] for leaf in tail] == [shape[1:] for shape in shapes] for tail in tails.values()
        )

    def _own_rows(
        self, column: str, buffers: list[Any], firsts: list[int], spans: list[int]
    ) -> tuple[Form, list[list[Leaf]]]:
        """Form and leaves of the rows of episodes that own them, brought to one nesting."""
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
            raise self._no_rows(column, chunk, first, span, buffer.len_incl_lookback() - buffer.lookback)
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

    def _buffers(self, column: str) -> list[Any]:
        """The column of each episode; None where it is no model output of that episode."""
        if column == Columns.OBS:
            return [episode.observations for episode in self._sequence]
        if column == Columns.ACTIONS:
            return [episode.actions for episode in self._sequence]
        if column == Columns.REWARDS:
            return [episode.rewards for episode in self._sequence]
        return [episode.extra_model_outputs.get(column) for episode in self._sequence]

    def at(self, column: str, chunks: Ints, steps: Ints) -> Any:
        """Copies of rows at given steps of given chunks: arrays of shape [R, ...].

        Args:
            column: Its name.
            chunks: Positions of the chunks: int64 [R].
            steps: Which step of each: int64 [R].
        """
        if not len(chunks):
            return self.rows(column, 0, 0).joined()
        if column == Columns.OBS and self.lack_final_obs.any():
            steps = steps - (self.lack_final_obs[chunks] & (steps == self.table.lengths[chunks]))
        counts = np.bincount(chunks, minlength=len(self.table.lengths))
        if self.table.owns:
            return self._own_rows_at(column, chunks, steps, counts)
        columns, _ = self._columns(self.table, column, counts)
        parts = self.table.places_of(chunks, steps)
        leaves = [self.table.read(columns, i, parts) for i in range(len(columns[0].leaves))]
        form = columns[0].form
        if column == Columns.OBS and self.table.tails:
            tails, last = self.table.tails, np.flatnonzero(steps == self.table.lengths[chunks])
            if isinstance(tails, TailRows):
                at, own = tails.among(chunks[last])
                for leaf, rows in zip(leaves, flatten_like(form, own)):
                    put(leaf, last[at], rows)
                return unflatten(form, leaves)
            for row, chunk in zip(last.tolist(), chunks[last].tolist()):
                for i, value in enumerate(flatten_like(form, tails[chunk]) if chunk in tails else ()):
                    leaves[i] = leaves[i].astype(np.result_type(leaves[i], np.asarray(value)), copy=False)
                    leaves[i][row] = value
        return unflatten(form, leaves)

    def _own_rows_at(self, column: str, chunks: Ints, steps: Ints, counts: Ints) -> Any:
        """Rows at given steps of episodes that own them."""
        buffers, form = self._buffers(column), None
        order = np.argsort(chunks, kind="stable")
        parts: list[list[Leaf]] = []
        stop = 0
        for chunk in np.flatnonzero(counts).tolist():
            start, stop = stop, stop + int(counts[chunk])
            chunk_steps = steps[order[start:stop]]
            low = int(chunk_steps.min())
            found = self._rows_of(column, chunk, buffers[chunk], low, int(chunk_steps.max()) + 1 - low)
            form = found[0] if not parts else form
            leaves = found[1] if found[0] == form else self._in_nesting_of(form, found, column, chunk)
            parts.append([leaf[chunk_steps - low] for leaf in leaves])
        back = np.argsort(order)
        return unflatten(form, [np.concatenate(leaf)[back] for leaf in zip(*parts)])

    # -- the newest rows -----------------------------------------------------------------------------

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
        if self._recorded is not None:
            return self._recorded.newest(column, copy)  # type: ignore[no-any-return]
        if self._recorded is None and self.table.owns and (buffers := self._buffers(column)):
            try:
                rows = newest_of(buffers)
            except AttributeError:  # an episode has no such column
                rows = None
            if rows is not None:
                return rows, None
            if column == Columns.OBS or (None not in buffers and all(buffer.len_incl_lookback() for buffer in buffers)):
                return self._joined_last(column, buffers), None
        stops = self.table.lengths + (column == Columns.OBS)
        has_row = (stops + self.lookbacks > 0) & self.holds(column)
        if not has_row.any():
            return None, has_row
        rows = self.rows(column, stops - has_row, stops)
        rows.check()
        leaves = [rows.leaf(i, before=1 - has_row) for i in range(rows.num_leaves)]
        return unflatten(rows.form, leaves), None if has_row.all() else has_row

    def newest_unjoined(self, column: str) -> Any:
        """The newest row of each chunk, in the column's nesting: lists, since rows may differ in shape."""
        if self._recorded is not None:
            return map_struct(list, self._recorded.newest(column, False)[0])
        return self._last_rows(column, self._buffers(column)).unjoined()

    def _joined_last(self, column: str, buffers: list[Any]) -> Any:
        """The newest row of each buffer."""
        rows = self._last_rows(column, buffers)
        rows.check()
        return rows.joined()

    def _last_rows(self, column: str, buffers: list[Any]) -> Rows:
        """The newest row of each buffer, which may be held apart from the others because it differs from them."""
        chunk_rows: list[tuple[Any, list[Leaf]]] = []
        for chunk, buffer in enumerate(buffers):
            values, form = flatten(buffer.last())
            found = form, [np.asarray(value)[None] for value in values]
            if chunk_rows and form != chunk_rows[0][0]:
                found = chunk_rows[0][0], self._in_nesting_of(chunk_rows[0][0], found, column, chunk)
            chunk_rows.append(found)
        leaves = [list(parts) for parts in zip(*(chunk_leaves for _, chunk_leaves in chunk_rows))]
        counts = np.ones(len(chunk_rows), np.int64)
        return Rows(chunk_rows[0][0], leaves, counts, self.table.lengths, column, self.describe)

    # -- rows around those of a batch ----------------------------------------------------------------

    def window(
        self, column: str, low: int, high: int, counts: Ints | None = None, part: Callable[[Any], Any] | None = None
    ) -> tuple[Rows, Ints | int, bool]:
        """Rows around those of a batch, as far as the chunks hold them. A batch has newest observations, or all steps.

        Args:
            column: Its name.
            low: Steps from a row of the batch to the first one around it.
            high: Steps from a row of the batch to the last one around it.
            counts: The rows that each chunk has in the batch, from its start on: int64 [C]; None: one each, the newest
                observation.
            part: Returns what is needed of a structure that is nested as the column; None: all.

        Returns:
            The rows, unchecked; the first step of each chunk in the batch, counted as `Rows.firsts` (int64 [C], or an
            int); and True if chunks hold all the rows before.
        """
        if counts is None and self._recorded is not None:
            return self._recorded.window(column, low, high, part)  # type: ignore[no-any-return]
        starts, firsts, stops, complete = self.bounds(column, low, high, counts)
        rows = self.rows(column, firsts, stops)
        return (rows if part is None else rows.only(part)), starts, complete

    def bounds(self, column: str, low: int, high: int, counts: Ints | None = None) -> tuple[Ints, Ints, Ints, bool]:
        """Return the steps of each chunk that rows around those of a batch have.

        Args:
            column: Its name.
            low: As for `window`.
            high: As for `window`.
            counts: As for `window`.

        Returns:
            int64 [C] each: the first step in the batch; the first one around, and the one after the last, as far as the
            chunk has them. And True if chunks hold all the rows before.
        """
        starts = self.table.lengths if counts is None else self._zeros
        firsts = starts + low
        complete = bool((firsts + self.table.lookbacks >= 0).all())
        if counts is None and complete:
            return starts, firsts, firsts + (high + 1 - low), True
        last = self.table.lengths + 1 if column in _AT_OBSERVATIONS else self.table.lengths
        firsts = np.minimum(np.maximum(firsts, -self.table.lookbacks), last)
        stops = np.maximum(firsts, np.minimum(starts + (1 if counts is None else counts) + high, last))
        return starts, firsts, stops if counts is None else np.where(counts > 0, stops, firsts), complete

    # -- returns and writing -------------------------------------------------------------------------

    def returns_before(self) -> npt.NDArray[np.float64]:
        """Return the return of each episode before its chunk, NaN if it is not known: float64 [C]."""
        chunks = getattr(self._given, "chunks", self._given)
        return np.array([chunk.return_before for chunk in chunks], np.float64)

    def returns_so_far(self) -> npt.NDArray[np.float64]:
        """Return the return of each chunk's episode up to its newest step, NaN if it is not known: float64 [C].

        Raises:
            ColumnError: the caller did not give one of the rewards.
        """
        if self._recorded is None:
            if self.table.owns:
                own = [episode.get_return() for episode in self.episodes]
            else:
                rewards = self.rows(Columns.REWARDS)
                own = [float(np.sum(rewards.of_chunk(chunk)[0])) for chunk in range(len(self.table))]
            return self.returns_before() + np.array(own, np.float64)
        returns: npt.NDArray[np.float64] = self._recorded.running_returns()
        if self._recorded.block.unknown_rewards and np.isnan(returns).any():
            raise ColumnError(
                "returns so far",
                expected="every reward since the episode's start",
                found=f"one that the caller did not give, in {self.describe(int(np.isnan(returns).argmax()))}",
                do="policy.act(obs, state, reward=reward), with the reward of the step before",
            )
        return returns

    def write_newest(self, observations: Any, space: Any = None) -> None:
        """Replace the newest observation of each chunk.

        Args:
            observations: Arrays of shape [C, ...], or a list of C observations.
            space: Space of the observations from now on; None: as before.
        """
        if self._recorded is not None and not isinstance(observations, list):
            self._recorded.block.stage(observations)
            return
        rows = observations
        if not isinstance(rows, list):
            leaves, form = flatten(rows)
            rows = [unflatten(form, [leaf[i] for leaf in leaves]) for i in range(len(self.episodes))]
        for episode, row in zip(self.episodes, rows):
            episode.set_observations(new_data=row, at_indices=-1)
            if space is not None:
                episode.observation_space = space
