"""Rows of a column of many chunks, which lie in their stores until they are joined or padded."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from epibatch.core.arrays_or_tensors import put, take
from epibatch.core.errors import ColumnError, EpisodeError
from epibatch.core.kept_property import kept_property
from epibatch.core.padding import SequenceLayout, pad
from epibatch.core.spaces import exact_fill_value
from epibatch.core.structs import Form, convert_to_numpy, flatten, form_text, map_struct, paths_of, unflatten

from .chunk_table import ChunkTable
from .store import Flags, Ints, Leaf, StoreColumn


class Rows:
    """So many rows of each chunk, one after the other.

    The rows of a few stores are gathered by index. Those of many stores are joined slice by slice. Join them before
    anything writes to the episodes.

    Args:
        form: Nesting of the column.
        parts: For each leaf the chunks' arrays, which are views of their stores; None: they are gathered.
        counts: Rows of each chunk: int64 [C].
        firsts: The step of each chunk's first row: int64 [C], or one for all.
        name: The column, for messages.
        describe: Names a chunk, for messages.
        tails: Rows that lie apart, by the chunk that each is the last row of: leaves of shape [1, ...].
        apart: The same for tensors: the chunks, int64 [K], and leaves of shape [K, ...].
        gathered: What gathers them: the table, its stores' columns, and every how many steps there is a row.
        sound: True if the rows are known to be numbers of one shape.
        gaps: If `parts` has one array per leaf that is no view: the number of rows without meaning in it before each
            chunk's, int64 [C] or 0, so that all chunks have room for as many.
    """

    __slots__ = (
        "_bootstrap",
        "_describe",
        "_last",
        "_name",
        "_parts",
        "_table",
        "apart",
        "columns",
        "counts",
        "firsts",
        "form",
        "gaps",
        "sound",
        "step",
        "tails",
    )  # fmt: skip

    def __init__(
        self,
        form: Form,
        parts: list[list[Leaf]] | None,
        counts: Ints,
        firsts: Any,
        name: str = "",
        describe: Callable[[int], str] = str,
        *,
        tails: Mapping[int, list[Leaf]] | None = None,
        gathered: tuple[ChunkTable, list[StoreColumn], int] | None = None,
        sound: bool = False,
        gaps: Ints | int | None = None,
        apart: tuple[Ints, list[Any]] | None = None,
    ) -> None:
        self.apart = apart
        self.gaps = gaps
        self.form, self._parts, self.counts, self.firsts = form, parts, counts, firsts
        self._name, self._describe, self.tails, self.sound = name, describe, tails or {}, sound
        self._bootstrap, self._last = 0, None
        self._table: ChunkTable | None = None
        if gathered is not None:
            self._table, self.columns, self.step = gathered

    @property
    def parts(self) -> list[list[Leaf]]:
        """For each leaf the chunks' arrays; those of chunks in `tails` end with a row of no meaning."""
        if self._parts is None:
            self._parts = self._table.slices(self.columns, self.firsts, self.counts, self.step)  # type: ignore[union-attr]
        return self._parts

    def of_chunk(self, chunk: int) -> list[Leaf]:
        """The leaves of one chunk's rows: views, unless its last row lies apart."""
        leaves = [parts[chunk] for parts in self.parts]
        if chunk not in self.tails:
            return leaves
        return [np.concatenate([leaf[:-1], tail]) for leaf, tail in zip(leaves, self.tails[chunk])]

    def only(self, function: Callable[[Any], Any]) -> Rows:
        """The part of these rows that a function returns of a structure that is nested as the column."""
        leaves, form = leaves_of(self.form, function)
        return self.part(form, leaves)

    def part(self, form: Form, leaves: Sequence[int], *, as_float64: bool = False) -> Rows:
        """Some leaves of these rows.

        Args:
            form: Their nesting.
            leaves: Their positions.
            as_float64: Show integers and flags as float64.
        """

        def shown(array: Leaf) -> Leaf:
            integers = as_float64 and getattr(array.dtype, "kind", "f") in "biu"
            return array.astype(np.float64) if integers else array

        parts, gathered = None, None
        if self._table is None or self._parts is not None:
            parts = [list(map(shown, self.parts[i])) for i in leaves]
        if self._table is not None:
            columns = [c._replace(form=form, leaves=[shown(c.leaves[i]) for i in leaves]) for c in self.columns]
            gathered = self._table, columns, self.step
        out = Rows(
            form, parts, self.counts, self.firsts, self._name, self._describe,
            gathered=gathered, sound=self.sound, gaps=self.gaps,
            apart=self.apart and (self.apart[0], [self.apart[1][i] for i in leaves]),
        )  # fmt: skip
        out.tails = {chunk: [shown(tail[i]) for i in leaves] for chunk, tail in self.tails.items()}
        return out

    def with_bootstraps(self, last: Any = None) -> Rows:
        """Give each chunk one row more.

        Args:
            last: Its value; default: the chunk's last row again.

        Raises:
            EpisodeError: a chunk has no last row.
        """
        if last is None and not self.counts.all():
            raise EpisodeError(
                f"column {self._name!r}, {self._describe(int(np.argmin(self.counts)))}",
                expected="at least one row of each chunk, which is repeated",
                found="none",
                do="leave out episodes without steps: [episode for episode in episodes if len(episode)]",
            )
        self._bootstrap, self._last = 1, last
        return self

    # -- checks ------------------------------------------------------------------------------------

    def check(self, *, objects: bool = False) -> bool:
        """Make sure that the rows can be joined.

        Args:
            objects: True: those of a column of objects need not have one shape.

        Returns:
            True if all of them are numbers.

        Raises:
            ColumnError: they differ in shape.
            EpisodeError: there are none, so that nothing shows what they are like.
        """
        if self.sound:
            return True
        parts = self.parts
        if not parts:
            raise EpisodeError(
                f"column {self._name!r}",
                expected="a step in one of the episodes, which shows what the column holds",
                found=f"{len(self.counts)} without steps",
                do="leave out episodes without steps: [episode for episode in episodes if len(episode)]",
            )
        for i, leaves in enumerate(parts):
            own = [leaf[:-1] if chunk in self.tails else leaf for chunk, leaf in enumerate(leaves)]
            chunks = [chunk for chunk, leaf in enumerate(own) if len(leaf)]
            for chunk in chunks:
                if own[chunk].shape[1:] != own[chunks[0]].shape[1:]:
                    raise self._mixed(chunks[0], chunk)
            if chunks:  # those without rows may be of any shape
                leaves[:] = [leaf if len(leaf) else own[chunks[0]][:0] for leaf in leaves]
            for chunk, tail in self.tails.items():
                if tail[i].shape[1:] != own[chunk].shape[1:]:
                    raise self._ragged(i, own[chunk].shape[1:], tail[i][0], chunk, len(own[chunk]))
            as_objects = [(chunk, leaf) for chunk, leaf in enumerate(own) if leaf.dtype.kind == "O"]
            rows = [(row, chunk, t) for chunk, leaf in as_objects for t, row in enumerate(leaf)]
            arrays = rows and isinstance(rows[0][0], (np.ndarray, np.generic))
            if (
                arrays
                and not objects
                and not (rows[0][0].dtype.kind in "SU" and not any(np.ndim(row) for row, *_ in rows))
            ):
                shape = np.shape(rows[0][0])
                raise self._ragged(i, shape, *next((item for item in rows if np.shape(item[0]) != shape), rows[0]))
        return all(leaf.dtype.kind in "biufc" for leaves in parts for leaf in leaves)

    def _mixed(self, chunk: int, other: int) -> ColumnError:
        def spell(i: int) -> str:
            shapes = [f"{leaves[i].dtype} of shape {leaves[i].shape[1:]}" for leaves in self.parts]
            return f"rows of {', '.join(shapes)}" + (f" nested as {form_text(self.form)}" if self.form else "")

        return ColumnError(
            f"column {self._name!r}",
            expected=f"{spell(chunk)}, as in {self._describe(chunk)}",
            found=f"{spell(other)} in {self._describe(other)}",
            do="batch only episodes of one space, or bring them to one shape with an earlier piece",
        )

    def _ragged(self, i: int, shape: tuple[int, ...], row: Any, chunk: int, t: int) -> ColumnError:
        return ColumnError(
            f"column {self._name!r}{paths_of(self.form)[i]}, {self._describe(chunk)}",
            expected=f"rows of one shape, {shape}",
            found=f"row {t} of shape {np.shape(row)} (the episode keeps such a column as objects)",
            do="bring them to one shape with an earlier piece: put PadRaggedRows into this pipeline, too",
        )

    # -- arrays ------------------------------------------------------------------------------------

    @property
    def num_leaves(self) -> int:
        """The number of the column's arrays."""
        return len(self.columns[0].leaves) if self._table is not None else len(self.parts)

    def like(self, i: int) -> Leaf:
        """An array without rows, of the shape and type of leaf `i`, those of rows that lie apart included."""
        if self._table is not None and self._table.device is not None:
            leaf: Any = self.columns[0].leaves[i]
            return convert_to_numpy(leaf.new_empty((0, *leaf.shape[1:]), device="cpu"))  # type: ignore[no-any-return]
        arrays = [column.leaves[i] for column in self.columns] if self._table is not None else self.parts[i]
        filled = [leaf for leaf in arrays if len(leaf)] or arrays[:1]
        dtype = np.result_type(*{leaf.dtype for leaf in filled}, *{tail[i].dtype for tail in self.tails.values()})
        return np.empty((0, *filled[0].shape[1:]), dtype)

    def rows_and_bytes(self) -> tuple[int, int]:
        """Return the number of rows of `joined`, and the bytes of all its arrays."""
        rows = int(self.counts.sum()) + len(self.counts) * self._bootstrap
        like = [self.like(i) for i in range(self.num_leaves)]
        return rows, rows * sum(math.prod(leaf.shape[1:]) * self._with_last(leaf.dtype).itemsize for leaf in like)

    def joined(self, *, as_float32: bool = False) -> Any:
        """Copies of all rows, chunk after chunk, in the column's nesting.

        Args:
            as_float32: Join leaves that are float64 throughout as float32.
        """
        return unflatten(self.form, [self.leaf(i, as_float32=as_float32) for i in range(self.num_leaves)])

    def unjoined(self) -> Any:
        """All rows, chunk after chunk, in the column's nesting: lists, since rows may differ in shape."""
        leaves: list[list[Any]] = [[] for _ in self.parts]
        for chunk in range(len(self.counts)):
            for rows, leaf in zip(leaves, self.of_chunk(chunk)):
                rows.extend(leaf)
                if self._bootstrap:
                    rows.append(rows[-1])
        return unflatten(self.form, leaves)

    def padded(self, layout: SequenceLayout) -> Any:
        """The arrays of shape [B, T, ...] in a padded layout, zeros where no row is."""
        if layout.scattered:
            return map_struct(lambda leaf: pad(leaf, layout), self.joined())
        shape = layout.num_sequences, layout.max_seq_len
        leaves = [self.leaf(i, after=layout.gaps) for i in range(self.num_leaves)]
        return unflatten(self.form, [leaf.reshape(*shape, *leaf.shape[1:]) for leaf in leaves])

    def leaf(
        self, i: int, before: Ints | int = 0, after: Ints | int = 0, fill: Any = 0, *, as_float32: bool = False
    ) -> Leaf:
        """Copies of the rows of one leaf, with rows of a fill value between those of the chunks.

        Args:
            i: The leaf.
            before: The number of such rows before each chunk's: int64 [C].
            after: The number of such rows after each chunk's, likewise.
            fill: Their value.
            as_float32: Join float64 as float32.
        """
        if self.gaps is not None:
            out = self._filled(i, before, fill)
            return out.astype(np.float32) if as_float32 and out.dtype == np.float64 else out
        after = after + self._bootstrap
        join = self._woven if self._table is None or self._parts is not None else self._gathered
        out = join(i, before, after, fill, as_float32 and not self.tails)
        if not self._bootstrap and not self.tails and self.apart is None:
            return out
        stops = np.cumsum(self.counts + before + after) - after
        if self.apart is not None:
            put(out, stops[self.apart[0]] - 1, self.apart[1][i])
        if self.tails:
            rows = np.concatenate([tail[i] for tail in self.tails.values()])
            out = out.astype(np.result_type(out, rows), copy=False)
            out[stops[list(self.tails)] - 1] = rows
        if self._bootstrap and self._last is None:
            out[stops] = out[stops - 1]
        elif self._bootstrap:
            if isinstance(out, np.ndarray):
                out = out.astype(self._with_last(out.dtype), copy=False)
            out[stops] = self._last
        return out.astype(np.float32) if as_float32 and out.dtype == np.float64 else out

    def _with_last(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """The type of a column that has the bootstrap value too: a float makes integers floats."""
        return np.result_type(dtype, self._last) if isinstance(self._last, float) else dtype

    def _filled(self, i: int, before: Any, fill: Any) -> Leaf:
        out: Leaf = self.parts[i][0]
        if not isinstance(self.gaps, np.ndarray):
            return out
        spans = out.reshape(len(self.counts), -1, *out.shape[1:])
        if type(before) is int:
            return spans[np.arange(spans.shape[1]) >= self.gaps[:, None]]
        for chunk in np.flatnonzero(before).tolist():
            spans[chunk, : before[chunk]] = fill
        return out

    def _gathered(self, i: int, before: Any, after: Any, fill: Any, as_float32: bool) -> Leaf:
        table: Any = self._table
        parts, spare = table.places(self.firsts, self.counts, self.step, before, after)
        doubles = as_float32 and {column.leaves[i].dtype for column in self.columns} == {np.dtype(np.float64)}
        out: Leaf = table.read(self.columns, i, parts, np.float32 if doubles else None)
        if spare is not None:
            if self._table.device is None:  # type: ignore[union-attr]
                out[spare] = fill
            else:
                put(out, spare, fill)
        return out

    def _woven(self, i: int, before: Any, after: Any, fill: Any, as_float32: bool) -> Leaf:
        parts = self.parts[i]
        dtype = np.float32 if as_float32 and {part.dtype for part in parts} == {np.dtype(np.float64)} else None
        if type(before) is int and type(after) is int and not after:
            return np.concatenate(parts, dtype=dtype)
        like = parts[int(np.argmax(self.counts))]
        zeros = np.zeros_like(self.counts)
        fronts, backs = zeros + before, zeros + after
        filler = np.full((max(fronts.max(), backs.max()), *like.shape[1:]), fill, like.dtype)
        woven = []
        for front, part, back in zip(fronts.tolist(), parts, backs.tolist()):
            if front:
                woven.append(filler[:front])
            woven.append(part)
            if back:
                woven.append(filler[:back])
        return np.concatenate(woven, dtype=dtype)


def leaves_of(form: Form, function: Callable[[Any], Any]) -> tuple[list[int], Form]:
    """Return the numbers of the leaves that a function picks of a structure, and the form of what it returns.

    Examples:
        >>> leaves_of(("dict", ("a", "b"), (None, None)), lambda struct: (struct["b"],))
        ([1], ('tuple', (), (None,)))
    """
    return flatten(function(unflatten(form, range(len(paths_of(form))))))


class Windows:
    """For each row of a batch the values at some shifts from it, filled in where the chunk has none.

    Nothing is copied before `joined` or `padded`: a window of 50 steps is 50 times its column.

    Args:
        rows: The chunks' rows; none that no window reaches.
        batch: The step of each chunk's first row in the batch (int64 [C], or one for all); the number of its rows in
            the batch (int64 [C]; None: one each); and True if chunks hold all the rows before.
        shifts: Steps from a row of the batch to the values of its window.
        single: The one shift has no axis.
        fill: A number; None: zero.
        where: What the rows are, for messages.
        real: For each chunk a mask of the rows that are the episode's own: bool; None: all.

    Raises:
        ColumnError: the column's type cannot hold `fill`: that of all chunks' rows, of which some may be floats.

    Examples:
        >>> rows = Rows(None, [[np.array([1.0, 2.0, 3.0])]], np.array([3]), np.array([0]))
        >>> Windows(rows, (0, np.array([3]), False), (-2, 0)).joined().tolist()
        [[0.0, 1.0], [0.0, 2.0], [1.0, 3.0]]
    """

    def __init__(
        self,
        rows: Rows,
        batch: tuple[Ints | int, Ints | None, bool],
        shifts: Sequence[int],
        *,
        single: bool = False,
        fill: float | None = None,
        where: str = "fill rows",
        real: Sequence[Flags] | None = None,
    ) -> None:
        self.rows, self._real, self._single = rows, real, single
        self._starts, self._counts, self._complete = batch
        self._shifts, self._low, self._reach = shifts, min(shifts), max(shifts) + 1 - min(shifts)
        numbers = range(rows.num_leaves)
        self._fills = [0 if fill is None else exact_fill_value(rows.like(i).dtype, fill, where) for i in numbers]

    def positions(self) -> Ints:
        """Return the number of each value among all rows, -1 where it is filled in: int64 [rows, k]."""
        shifts, sizes = np.array(self._shifts), self.rows.counts
        if self._counts is None and self._complete:
            return np.arange(len(sizes))[:, None] * self._reach + (shifts - self._low)  # type: ignore[no-any-return]
        counts = self._per_chunk
        t = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts - self._starts + self.rows.firsts, counts)
        at = t[:, None] + shifts
        real = (at >= 0) & (at < np.repeat(sizes, counts)[:, None])
        positions: Ints = np.where(real, at + np.repeat(np.cumsum(sizes) - sizes, counts)[:, None], -1)
        return positions

    def mask(self) -> Flags:
        """Return a mask of the values that are the episode's own and no fill: bool, [rows] or [rows, k]."""
        positions = self.positions()
        real: Flags = positions >= 0
        if self._real is not None:
            real[real] = np.concatenate(self._real)[positions[real]]
        return real[:, 0] if self._single else real

    def rows_and_bytes(self) -> tuple[int, int]:
        """Return the number of rows of `joined`, and the bytes of all its arrays."""
        rows = int(self._per_chunk.sum())
        like = [self.rows.like(i) for i in range(self.rows.num_leaves)]
        row = sum(math.prod(leaf.shape[1:]) * leaf.dtype.itemsize for leaf in like)
        return rows, rows * row * len(self._shifts)

    def joined(self, *, as_float32: bool = False) -> Any:
        """Copies of all rows, chunk after chunk, in the column's nesting.

        Args:
            as_float32: Join leaves that are float64 throughout as float32.
        """
        side_by_side = self._single or self._counts is None or bool((self._counts == 1).all())
        return self._at(None if side_by_side else self._places, as_float32)

    def padded(self, layout: SequenceLayout) -> Any:
        """The arrays of shape [B, T, ...] in a padded layout, zeros where no row is; each is made once."""

        def placed(leaf: Leaf) -> Leaf:
            leaf[layout.holes] = 0
            return leaf.reshape(layout.num_sequences, layout.max_seq_len, *leaf.shape[1:])

        if not len(self._places):
            return map_struct(lambda leaf: pad(leaf, layout), self.joined())
        return map_struct(placed, self._at(self._places[layout.source]))

    def at(self, rows: Ints) -> Any:
        """Copies of some rows, in the column's nesting.

        Args:
            rows: Their numbers among all chunks' rows.
        """
        return self._at(self._places[rows])

    # -- rows side by side, with what is filled in ---------------------------------------------------

    @kept_property
    def _per_chunk(self) -> Ints:
        """The number of each chunk's rows in the batch."""
        return np.ones_like(self.rows.counts) if self._counts is None else self._counts

    @kept_property
    def _spans(self) -> Ints:
        """The number of rows that each chunk's windows span."""
        spans: Ints = np.where(self._per_chunk > 0, self._per_chunk + self._reach - 1, 0)
        return spans

    @kept_property
    def _places(self) -> Ints:
        """The start of each row's window among the rows that lie side by side."""
        spans, counts = self._spans, self._per_chunk
        firsts = np.cumsum(spans) - spans - (np.cumsum(counts) - counts)
        places: Ints = np.arange(counts.sum()) + np.repeat(firsts, counts)
        return places

    def _at(self, places: Ints | None, as_float32: bool = False) -> Any:
        """The windows that begin at some rows of all that lie side by side; None: all of those of one row each."""
        before: Any = 0
        after: Any = 0
        if not self._complete or self._counts is not None:
            before = np.minimum(np.maximum(self.rows.firsts - self._starts - self._low, 0), self._spans)
            after = self._spans - self.rows.counts - before
        is_range = list(self._shifts) == list(range(self._low, self._low + self._reach))
        shifts = np.array(self._shifts) - self._low
        leaves = []
        for i, fill in enumerate(self._fills):
            rows = self.rows.leaf(i, before, after, fill, as_float32=as_float32)
            if places is None and not self._single:
                rows = rows.reshape(-1, self._reach, *rows.shape[1:])
                rows = rows if is_range else rows[:, shifts]
            elif places is not None and not isinstance(rows, np.ndarray):
                rows = take(rows, places if self._single else places[:, None] + shifts)
            elif places is not None and self._single:
                rows = rows[places]
            elif places is not None:
                rows = _windows(rows, self._reach)[places] if is_range else rows[places[:, None] + shifts]
            leaves.append(rows)
        return unflatten(self.rows.form, leaves)


def _windows(rows: Leaf, width: int) -> Leaf:
    """The windows of `width` consecutive rows as a view: [rows - width + 1, width, ...]."""
    shape = (max(0, len(rows) - width + 1), width, *rows.shape[1:])
    return np.lib.stride_tricks.as_strided(rows, shape, (rows.strides[0], *rows.strides), writeable=False)


LazyRows: TypeAlias = Rows | Windows
"""Rows of a column that lie in their stores until they are needed as arrays."""
