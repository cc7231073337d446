"""One data stream of a chunk as growable arrays, with the rows before its start kept as lookback."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import gymnasium as gym
import numpy as np

from epibatch.core.errors import EpisodeIndexError, SpaceError
from epibatch.core.space_dicts import space_from_dict, space_to_dict
from epibatch.core.spaces import fill_row, fill_value, one_hot_column, promoting_fill_value
from epibatch.core.structs import Form, flatten, flatten_like, map_struct, unflatten

from ._parts.arguments import check_state
from ._storage.arrays import (
    Leaf,
    as_value,
    copied,
    empty_leaf,
    fits,
    fits_exactly,
    grown,
    leaves_like,
    object_leaf,
    owned,
    plain_types,
    promoted,
    roomier,
    same_leaf,
    shielded,
    stacked_rows,
    store,
    unaliased,
    with_rows,
)
from ._storage.indexing import SEVERAL, Positions, check_writable, may_write, note_history, positions_of
from ._storage.lookback_buffer import LookbackBuffer

if TYPE_CHECKING:
    from ._storage.chunk import RowSource
    from .single_agent_episode import SingleAgentEpisode

_ARRAY = np.ndarray
_NONE: frozenset[type] = frozenset()
_CELLS = "?bBhHiIlLqQfd"  # types that a memoryview can take in
_STATE = ("data", "raw_row", "provisional", "lookback", "space")
_OTHER_SHAPE = "rows of another nesting, shape or kind in the place of committed ones"

RowPlan: TypeAlias = "tuple[Form, list[Any], list[np.dtype[Any] | None]]"


class _Nothing:
    """Marks the absence of a row (None is a legal observation); copies of it are the mark itself."""

    def __reduce__(self) -> str:
        return "NOTHING"


NOTHING: Final = _Nothing()


class InfiniteLookbackBuffer(LookbackBuffer):
    """A growable column: each leaf of a nested stream lies in one array, time first.

    Appending is amortised O(1). The column's type is that of its first rows; later rows promote it
    and never cast down. A leaf that changes its shape becomes an object column.

    The newest row of observations is provisional. If it has the column's nesting, shapes and types, it lies in the
    arrays like any other row; otherwise it is held raw, apart from them.

    Args:
        data: Rows, lookback included: a list of rows, or stacked arrays (shape [T, ...] per leaf). Copied.
        lookback: The number of rows before the chunk's start; clamped to the rows there are.
        space: The stream's Gymnasium space, used for one-hot rows and to fill an empty column.

    Attributes:
        limits: The first integers of a column of actions that lie in its space, and the first ones after them; empty
            if the rows are nested; None if actions are not checked.
        checked_for: The space that all rows in the array were checked against, if they were.
        provisional: Whether the newest row, until another one follows, can be replaced by one of another nesting, shape
            or type: the rows are observations.

    Raises:
        EpisodeIndexError: a negative lookback, or stacked arrays of unequal length.

    Example:
        >>> buffer = InfiniteLookbackBuffer([1.0, 2.0, 3.0], lookback=1)
        >>> len(buffer), buffer.get().tolist(), buffer.get(slice(-4, None), fill=0.0).tolist()
        (2, [2.0, 3.0], [0.0, 1.0, 2.0, 3.0])
    """

    __slots__ = (
        "_accepts",
        "_cells",
        "_flat",
        "_form",
        "_leaves",
        "_pending",
        "_read_only",
        "_shape",
        "_source",
        "_stop",
        "_width",
        "checked_for",
        "limits",
        "provisional",
        "space",
    )

    def __init__(self, data: Any = None, lookback: int = 0, space: gym.Space[Any] | None = None) -> None:
        self.space = space
        self.lookback = self.t_started = 0
        self._form: Form = None
        self._leaves: list[Leaf] | None = None
        self._stop = 0
        self._pending: Any = NOTHING
        self.provisional = False
        self._source: RowSource | None = None
        self._read_only = False  # whether the rows lie in memory of another process, which cannot be written to
        self._flat: Leaf | None = None  # the one array, if `lay` may write rows into it as they are
        self._accepts: frozenset[type] = _NONE
        self._cells: Any = None  # a memoryview of that array, if its rows are vectors
        self._width = 0
        self.limits: tuple[Any, ...] | None = None
        self.checked_for: gym.Space[Any] | None = None
        if data is not None:
            form, leaves, count = stacked_rows(data)
            if leaves is not None:
                self.replace(form, leaves if isinstance(data, list) else [copied(leaf) for leaf in leaves], count)
        if lookback:
            if lookback < 0:
                raise EpisodeIndexError(
                    "lookback", expected="a number of rows from 0 on", found=str(lookback), do="use 0 for none"
                )
            self.lookback = min(lookback, self._stop)

    # -- rows that a block owns ----------------------------------------------------------------

    @classmethod
    def over(cls, source: RowSource, lookback: int, space: gym.Space[Any] | None) -> InfiniteLookbackBuffer:
        """Return a buffer that shows rows which `source` owns."""
        buffer = cls(None, 0, space)
        buffer._source, buffer._read_only = source, source.column.read_only
        buffer.lookback = lookback
        return buffer

    def point(self, form: Form, leaves: list[Leaf] | None, stop: int, pending: Any, *, provisional: bool) -> None:
        """Show these rows from now on (for the buffer's source).

        Args:
            form: Their nesting.
            leaves: Their arrays; None if there is no row that shows what they are like.
            stop: How many of them there are, `pending` not counted.
            pending: The newest row, if it is held apart from the others; else NOTHING.
            provisional: Whether the newest row is.
        """
        self._form, self._leaves, self._stop = form, leaves, stop
        self._pending, self.provisional = pending, provisional

    def make_writable(self) -> None:
        """Copy rows that lie in read-only memory; of a block the whole column, which its other episodes show too."""
        if self._source is None:
            self.own()
        else:
            self._source.column.make_writable()
            self._read_only = False

    def own(self, change: str = "an operation that adds or removes rows") -> None:
        """Copy the rows out of the block, or the read-only memory, that they lie in, if they do.

        Args:
            change: What it is for, should that be refused.

        Raises:
            EpisodeStateError: the rows are still being recorded.
        """
        source = self._source
        if source is None and not self._read_only:
            return
        if source is not None:
            source.sync(self)
            source.release(change)
        self._source, self._read_only = None, False
        self._leaves = [copied(leaf[: self._stop]) for leaf in self._leaves or []] or None
        pending, self._pending = self._pending, NOTHING
        self._update_fast_path()
        if pending is not NOTHING:
            self.stage(pending)

    # -- adding rows ---------------------------------------------------------------------------

    def append(self, item: Any) -> None:
        """Add one row.

        Args:
            item: A row, nested like the rows before it.

        Raises:
            ColumnError: another nesting than the rows before.
        """
        self.own()
        self.commit()
        self.add(self.plan(item))

    def stage(self, item: Any) -> None:
        """Add one observation, which is provisional until the next one comes.

        Args:
            item: The row, in any nesting, shape and type.

        Raises:
            ColumnError: the provisional row before it does not fit the column; nothing changed.
        """
        self.own()
        if self._pending is not NOTHING:
            self.commit()
        self._stage(item)
        self.provisional = True

    def _stage(self, item: Any) -> None:
        if self._flat is not None and self._lays_next(item):
            self._stop += 1
            return
        if self._leaves is not None and not self._stop:
            self.replace(None, None, 0)
        leaves = self._leaves
        if leaves is None:
            self.add(self.plan(item))
            return
        values = leaves_like(self._form, item)
        if values is not None and all(map(fits_exactly, leaves, values)):
            self.add((self._form, values, [leaf.dtype for leaf in leaves]))
        else:
            self._pending = owned(item)
            self._update_fast_path()

    def commit(self) -> None:
        """Move a raw newest row into a column that owns its rows; a block's are moved by its recorder.

        Raises:
            ColumnError: it is nested differently than the rows before; it is kept.
        """
        if self._source is None and self._pending is not NOTHING:
            plan = self.plan(self._pending)
            self._pending = NOTHING
            self.add(plan)

    def _lays_next(self, item: Any) -> bool:
        """Write a row after those in use, where it does not count yet, if the array can take it as it is."""
        try:
            return self.lay(self._stop, item)
        except IndexError:
            self.make_room()
            return self.lay(self._stop, item)

    def lay(self, position: int, item: Any) -> bool:
        """Write into a row of the array, one in use or the next one, if it can take the item as it is.

        Returns:
            Whether it was written; if not, nothing changed.

        Raises:
            IndexError: the array has no such row yet.
        """
        if type(item) is not _ARRAY:
            if type(item) not in self._accepts:
                return False
            try:
                self._flat[position] = item  # type: ignore[index]
            except OverflowError:  # a Python int that int64 cannot hold
                return False
            return True
        cells = self._cells
        if cells is not None:
            begin = position * self._width
            try:
                cells[begin : begin + self._width] = item
                return True
            except ValueError:  # another length or type; or no such row
                pass
        leaf = self._flat
        if leaf is None or item.shape != self._shape or item.dtype != leaf.dtype:
            return False
        leaf[position] = item
        if cells is None:
            self._show_cells(leaf)
        return True

    def _show_cells(self, leaf: Leaf) -> None:
        """Let rows of numbers be written through a memoryview: it takes no array of another type or length."""
        if leaf.ndim == 2 and leaf.shape[1] and leaf.dtype.char in _CELLS and leaf.flags.carray:
            cells: Any = leaf.reshape(-1)
            self._cells, self._width = memoryview(cells), leaf.shape[1]

    def make_room(self) -> bool:
        """Make the array that `lay` writes to longer, if it is full; return True if it was."""
        leaf, stop = self._flat, self._stop
        if leaf is None or stop < len(leaf):
            return False
        leaf = roomier(leaf, stop)
        self._leaves, self._flat, self._cells = [leaf], leaf, None
        self._show_cells(leaf)
        return True

    def plan(self, item: Any) -> RowPlan | None:
        """Check a row and find the types that the arrays need for it; nothing changes.

        Returns:
            What `add` is to do; None if the row lies after those in use already, and only has to be counted.

        Raises:
            ColumnError: another nesting than the rows before.
        """
        if self._lays_next(item):
            return None
        if self._leaves is None:
            if not isinstance(item, (dict, tuple)):
                value = as_value(item)
                return None, [value], [value.dtype]
            values, form = flatten(item)
            return form, values, [as_value(value).dtype for value in values]
        values = flatten_like(self._form, item)
        return self._form, values, [fits(leaf, value) for leaf, value in zip(self._leaves, values)]

    def add(self, plan: RowPlan | None) -> None:
        """Add the row of a plan."""
        if plan is None:
            self._stop += 1
            return
        form, values, dtypes = plan
        self.own()
        if self._leaves is None and form is None:  # the first row of a plain column: many episodes are short
            leaf = empty_leaf(values[0])
            store(leaf, 0, values[0])
            self.replace(None, [leaf], 1)
            if self._flat is not None:
                self._show_cells(leaf)
            return
        if self._leaves is None:
            self._form, self._leaves = form, [empty_leaf(as_value(value)) for value in values]
        leaves, stop = self._leaves, self._stop
        for i, value in enumerate(values):
            leaf = promoted(leaves[i], stop, dtypes[i])
            if stop >= len(leaf):
                leaf = roomier(leaf, stop)
            store(leaf, stop, value)
            leaves[i] = leaf
        self._stop = stop + 1
        self._update_fast_path()

    def _update_fast_path(self) -> None:
        """Note, after the arrays changed, which rows `lay` may write as they are."""
        leaves = self._leaves
        self._flat, self._cells, self._accepts, self.checked_for = None, None, _NONE, None
        if leaves is None or self._form is not None or self._pending is not NOTHING or self._source is not None:
            return
        if self._read_only:  # rows that `lay` does not write to
            return
        leaf = leaves[0]
        if leaf.dtype.kind in "biufc" and leaf.dtype.isnative:
            self._flat, self._shape = leaf, leaf.shape[1:]
            if leaf.ndim == 1:
                self._accepts = plain_types(leaf.dtype)

    def note_checked(self, space: gym.Space[Any] | None, row: Any) -> None:
        """Note that all rows that `lay` takes fit a space, if that follows from this row, which fits it."""
        leaf = self._flat
        if leaf is not None and (type(row) in self._accepts if leaf.ndim == 1 else self._shape == np.shape(row)):
            self.checked_for = space

    def replace(self, form: Form, leaves: list[Leaf] | None, count: int) -> None:
        """Hold these `count` rows, as given, in place of those before."""
        self._form, self._leaves, self._stop, self._pending = form, leaves, count, NOTHING
        self._update_fast_path()

    def extend(self, items: Any) -> None:
        """Add rows: a list of rows, stacked arrays, or all rows of a buffer.

        Raises:
            ColumnError: another nesting than the rows before.
        """
        other = items if isinstance(items, InfiniteLookbackBuffer) else InfiniteLookbackBuffer(items)
        self._extend(other, 0)

    def concat(self, other: InfiniteLookbackBuffer) -> None:
        """Add the rows of `other` that come after its lookback; a raw newest one stays raw.

        Raises:
            ColumnError: another nesting than the rows before.
        """
        self._extend(other, other.lookback)

    def _extend(self, other: InfiniteLookbackBuffer, start: int) -> None:
        self.own()
        count = other.len_incl_lookback() - (other._pending is not NOTHING) - start
        if count > 0:
            self.commit()
            rows = [leaf[start : start + count] for leaf in other._leaves or []]
            if self._leaves is None:
                self.replace(other._form, list(map(copied, rows)), count)
            else:
                self._add_rows(flatten_like(self._form, unflatten(other._form, rows)), count)
        if other._pending is not NOTHING:
            self.stage(other._pending)

    def _add_rows(self, rows: list[Leaf], count: int) -> None:
        stop, leaves = self._stop + count, self._leaves or []
        for i, new_rows in enumerate(rows):
            leaf = promoted(leaves[i], self._stop, fits(leaves[i], new_rows, new_rows.shape[1:]))
            if stop > len(leaf):
                leaf = grown(leaf, self._stop, max(stop, 2 * len(leaf)))
            leaf[self._stop : stop] = copied(object_leaf(list(new_rows))) if leaf.dtype == object else new_rows
            leaves[i] = leaf
        self._stop = stop
        self._update_fast_path()

    def drop_last(self) -> None:
        """Remove the newest row of a column that owns its rows."""
        if self._pending is not NOTHING:
            self._pending = NOTHING
            self._update_fast_path()
        else:
            self._stop -= 1

    def pop(self, index: int = -1) -> Any:
        """Remove and return the row at an absolute (lookback included) list index."""
        self.own()
        total = self.len_incl_lookback()
        position = index if index >= 0 else total + index
        if not 0 <= position < total:
            raise self._out_of_range(index, total)
        row = map_struct(lambda leaf: leaf[()] if isinstance(leaf, np.ndarray) else leaf, owned(self._row(position)))
        if position < self._stop:
            for leaf in self._leaves or []:
                leaf[position : self._stop - 1] = leaf[position + 1 : self._stop]
        if position == total - 1 or self._pending is NOTHING:
            self.drop_last()
        else:
            self._stop -= 1
        self.lookback = min(self.lookback, total - 1)
        return row

    # -- reading -------------------------------------------------------------------------------

    @property
    def form(self) -> Form:
        """The nesting of the stream's rows."""
        return self._form

    @property
    def source(self) -> RowSource | None:
        """The owner of the rows; None: this buffer."""
        return self._source

    @property
    def data(self) -> Any:
        """All rows, lookback included: arrays of shape [T, ...] in the stream's nesting (views)."""
        if not may_write():
            return shielded(self._span(0, self.len_incl_lookback()))
        if self._read_only:
            self.make_writable()
        return self._span(0, self.len_incl_lookback())

    @data.setter
    def data(self, rows: Any) -> None:
        check_writable()
        self.own("other rows in the place of all")
        other = InfiniteLookbackBuffer(rows, self.lookback)
        self.replace(other._form, other._leaves, other._stop)
        self.lookback = other.lookback

    @property
    def finalized(self) -> bool:
        """Always True: a column is arrays from its first row on."""
        return True

    def finalize(self) -> None:
        """Do nothing; columns are arrays already."""

    def len_incl_lookback(self) -> int:
        """Number of rows, lookback included."""
        if self._source is not None:
            self._source.sync(self)
        return self._stop if self._pending is NOTHING else self._stop + 1

    def raw_row(self) -> Any:
        """Return the provisional row that is held apart from the column because it does not fit; else NOTHING."""
        if self._source is not None:
            self._source.sync(self)
        return self._pending

    def last(self) -> Any:
        """Return the newest row, as given if it is still provisional."""
        if self._source is not None:
            self._source.sync(self)
        if self._pending is not NOTHING:
            return self._pending
        leaves, newest = self._leaves, self._stop - 1
        if leaves is None or newest < 0:
            raise self._out_of_range(-1, 0)
        return leaves[0][newest] if self._form is None else unflatten(self._form, [leaf[newest] for leaf in leaves])

    def rows(self, start: int, stop: int) -> list[Leaf]:
        """Return the leaves of rows `start` to `stop`, counted from the chunk's start.

        They are views, except where a raw provisional row is among them.

        Raises:
            ColumnError: that row is nested differently than the column.
        """
        low, high = self.lookback + start, self.lookback + stop
        if self._flat is not None:
            return [self._flat[low : high if high < self._stop else self._stop]]
        if self.raw_row() is not NOTHING and high > self._stop:
            return self._with_pending(np.arange(low, min(high, self._stop + 1)))
        high = min(high, self._stop)
        return [leaf[low:high] for leaf in self._leaves or []]

    def _row(self, position: int) -> Any:
        if position == self._stop:
            return self._pending
        if self._form is None:
            return self._leaves[0][position]  # type: ignore[index]
        return unflatten(self._form, [leaf[position] for leaf in self._leaves or []])

    def _span(self, start: int, stop: int) -> Any:
        if stop > self._stop or self._leaves is None:
            return self._rows(range(start, stop))
        if self._form is None:
            return self._leaves[0][start:stop]
        return unflatten(self._form, [leaf[start:stop] for leaf in self._leaves])

    def _rows(self, positions: Positions) -> Any:
        if not len(positions):
            return self._no_rows()
        if self._pending is not NOTHING and int(np.max(positions)) == self._stop:
            if self._source is not None and self._source.chunk.tail is not NOTHING:
                self.own()  # rows side by side, so that writing to what a getter gives reaches the episode
                return self._rows(positions)
            if leaves_like(self._form, self._pending) is None:
                return object_leaf([owned(self._row(int(p))) for p in positions])
            return unflatten(self._form, self._with_pending(np.asarray(positions, np.int64)))
        where: Any = positions
        if isinstance(positions, range):
            end = positions.stop if positions.step > 0 or positions.stop >= 0 else None
            where = slice(positions.start, end, positions.step)
        return unflatten(self._form, [leaf[where] for leaf in self._leaves or []])

    def _no_rows(self) -> Any:
        if self._leaves is not None:
            return unflatten(self._form, [leaf[:0] for leaf in self._leaves])
        if self.space is None:
            return np.empty(0)
        try:
            return self._repeated(self._fill_row(0), 0)
        except SpaceError:  # a space of things that are not arrays
            return np.empty(0)

    def _with_pending(self, positions: np.ndarray[Any, np.dtype[np.int64]]) -> list[Leaf]:
        """Return copies of the leaves of rows, the raw provisional one among them."""
        newest = positions == self._stop
        before = np.where(newest, max(self._stop - 1, 0), positions)
        values = flatten_like(self._form, self._pending)
        return [with_rows(leaf[before], newest, value) for leaf, value in zip(self._leaves or [], values)]

    def _filled_rows(self, positions: np.ndarray[Any, np.dtype[np.int64]], fill: Any) -> Any:
        exist = (positions >= 0) & (positions < self._stop + (self._pending is not NOTHING))
        if not exist.any():
            return self._repeated(self._fill_row(fill), len(positions))
        return self._with_fill(self._rows(positions[exist]), exist, len(positions), fill)

    def _filled_span(self, start: int, stop: int, fill: Any) -> Any:
        low, high = max(start, 0), min(stop, self.len_incl_lookback())
        if low >= high:
            return super()._filled_span(start, stop, fill)
        return self._with_fill(self._span(low, high), slice(low - start, high - start), stop - start, fill)

    def _with_fill(self, rows: Any, where: Any, count: int, fill: Any) -> Any:
        """Return `count` rows: these ones where they belong (a slice or a mask), the fill value at the other places."""

        def spread(leaf: Leaf) -> Leaf:
            value, dtype = self._fill_value(leaf.dtype, fill)
            column = np.empty((count, *leaf.shape[1:]), dtype)
            column[...] = value
            column[where] = leaf
            return column

        return map_struct(spread, rows)

    def _fill_value(self, dtype: np.dtype[Any], fill: Any) -> tuple[Any, np.dtype[Any]]:
        """Return the fill value, and the type of rows beside it: without a space one that holds both, as in RLlib."""
        value = promoting_fill_value(dtype, fill) if self.space is None else fill_value(dtype, fill)
        return value, dtype if dtype.hasobject else value.dtype

    @staticmethod
    def _repeated(row: Any, count: int) -> Any:
        return map_struct(lambda leaf: np.repeat(np.asarray(leaf)[None], count, 0), row)

    def _fill_row(self, fill: Any) -> Any:
        if self._leaves is not None:
            rows = [np.full(leaf.shape[1:], *self._fill_value(leaf.dtype, fill))[()] for leaf in self._leaves]
            return unflatten(self._form, rows)
        return fill if self.space is None else fill_row(self.space, fill)

    def _one_hot(self, indices: Any, neg_index_as_lookback: bool, fill: Any) -> Any:
        if self.space is None:
            return super()._one_hot(indices, neg_index_as_lookback, fill)
        if fill is None:
            return one_hot_column(self.get(indices, neg_index_as_lookback=neg_index_as_lookback), self.space)
        total = self.len_incl_lookback()
        several = isinstance(indices, SEVERAL)
        selection = positions_of(indices if several else [indices], self.lookback, total, neg_index_as_lookback, True)
        positions = np.asarray(selection, np.int64)
        note_history(int(positions.min(initial=self.lookback)), self.lookback, self.t_started)
        exist = (positions >= 0) & (positions < total)
        hot = one_hot_column(self._rows(positions[exist]), self.space)
        if not exist.all():
            hot = self._with_fill(hot, exist, len(positions), fill)
        return hot if several else map_struct(lambda leaf: leaf[0], hot)

    # -- writing -------------------------------------------------------------------------------

    def _write_row(self, position: int, row: Any) -> None:
        newest = self._stop if self._pending is not NOTHING else self._stop - 1
        if position == newest and self.provisional:
            if self._source is not None:
                self._source.write_newest(row)
            else:
                if self._pending is NOTHING:
                    self._stop -= 1
                self._pending = NOTHING
                self._stage(row)
        elif not self.lay(position, row):
            values = flatten_like(self._form, row)
            dtypes = [fits(leaf, value) for leaf, value in zip(self._leaves or [], values)]
            if self._makes_objects(dtypes):
                self.own(_OTHER_SHAPE)
            for i, value in enumerate(unaliased(values)):
                store(self._promote(i, dtypes[i]), position, value)

    def _write_rows(self, positions: Positions, new_data: Any) -> None:
        """Overwrite rows; everything is checked before anything is stored.

        Only a column that is overwritten as a whole, with rows of another nesting or shape, gets new arrays; so does
        a provisional row that is addressed alone.
        """
        form, leaves, count = stacked_rows(new_data)
        if count != len(positions):
            raise EpisodeIndexError(
                "writing rows", expected=f"{len(positions)} rows", found=f"{count}", do="pass one row per index"
            )
        if leaves is None or not count:
            return
        total, where = self.len_incl_lookback(), np.asarray(positions, np.int64)
        if count == 1 and where[0] == total - 1 and self.provisional:
            self._write_row(total - 1, unflatten(form, [leaf[0] for leaf in leaves]))
            return
        shapes = [leaf.shape[1:] for leaf in self._leaves or []]
        alike = form == self._form and shapes == [leaf.shape[1:] for leaf in leaves]
        as_whole = count >= total and not alike and len(np.unique(where)) == total
        if self._source is not None and (as_whole or self._makes_objects(self._fitting(unflatten(form, leaves))[1])):
            self.own(_OTHER_SHAPE)
        if as_whole:
            order = np.empty(total, np.int64)
            order[where] = np.arange(count)
            self.replace(form, [copied(leaf[order]) for leaf in leaves], total)
            return
        stored = where != self._stop
        if stored.all():
            self._write_stored(positions, unflatten(form, leaves))
            return
        if stored.any():
            self._write_stored(where[stored], unflatten(form, [leaf[stored] for leaf in leaves]))
        raw = int(np.flatnonzero(~stored)[-1])
        self._write_row(self._stop, unflatten(form, [leaf[raw] for leaf in leaves]))

    def _write_stored(self, positions: Positions, rows: Any) -> None:
        values, dtypes = self._fitting(rows)
        where: Any = positions
        if isinstance(positions, range):
            where = slice(positions[0], positions[-1] + 1) if positions.step == 1 else np.asarray(positions, np.int64)
        for i, value in enumerate(unaliased(values)):
            leaf = self._promote(i, dtypes[i])
            leaf[where] = copied(object_leaf(value)) if leaf.dtype == object else value

    def _fitting(self, rows: Any) -> tuple[list[Any], list[np.dtype[Any] | None]]:
        """Return the leaves of stacked rows, and the types that the arrays need for them."""
        values = flatten_like(self._form, rows)
        return values, [fits(leaf, value, value.shape[1:]) for leaf, value in zip(self._leaves or [], values)]

    def _makes_objects(self, dtypes: list[np.dtype[Any] | None]) -> bool:
        """Return True if a write would turn an array of a block, which other episodes share, into one of objects."""
        return self._source is not None and any(
            dtype is None or dtype.kind == "O" != leaf.dtype.kind for leaf, dtype in zip(self._leaves or [], dtypes)
        )

    def _promote(self, i: int, dtype: np.dtype[Any] | None) -> Leaf:
        """Give leaf `i` another dtype, and return it."""
        leaves = self._leaves or []
        if dtype is None or dtype != leaves[i].dtype:
            if self._source is not None and self._source.chunk.stop is None:
                self._source.column.promote(i, dtype)
                self._source.sync(self)
            else:
                self.own()  # other episodes of the block keep their type
                leaves = self._leaves or []
                leaves[i] = promoted(leaves[i], self._stop, dtype)
                self._update_fast_path()
        return (self._leaves or [])[i]

    # -- copies and state ----------------------------------------------------------------------

    def copy_rows(self, rows: range | Sequence[int], lookback: int) -> InfiniteLookbackBuffer:
        """Return a buffer that owns copies of absolute rows, in ascending order.

        Args:
            rows: Their positions.
            lookback: How many of them come before the copy's start; clamped to those there are.
        """
        newest = self.len_incl_lookback() - 1
        out = InfiniteLookbackBuffer(None, 0, self.space)
        out.limits = self.limits
        pending = self._pending is not NOTHING and len(rows) > 0 and rows[-1] == newest
        stored = rows[:-1] if pending else rows
        if self._flat is not None and isinstance(stored, range) and stored.step == 1:
            leaf = self._flat[stored.start : stored.stop].copy()
            out._leaves, out._stop = [leaf], len(leaf)
            out._flat, out._shape, out._accepts = leaf, self._shape, self._accepts
        elif self._leaves is not None:
            where: Any = slice(stored.start, stored.stop, stored.step) if isinstance(stored, range) else list(stored)
            out.replace(self._form, [copied(leaf[where]) for leaf in self._leaves], len(stored))
        if pending:
            out._stage(self._pending)
        out.provisional = self.provisional
        out.lookback = min(lookback, len(rows))
        return out

    def with_newest_again(self) -> InfiniteLookbackBuffer:
        """Return a buffer that owns copies of all rows, and the newest one, which there has to be, once more.

        Raises:
            ColumnError: the newest row is raw and does not fit the column.
        """
        stop = self.len_incl_lookback()
        if self._pending is not NOTHING:
            out = self.copy_rows(range(stop), self.lookback)
            out.append(self.last())
        else:
            out = InfiniteLookbackBuffer(None, 0, self.space)
            out.limits = self.limits
            leaves = []
            for leaf in self._leaves or []:
                longer = np.concatenate((leaf[:stop], leaf[stop - 1 : stop]))
                leaves.append(copied(longer) if longer.dtype == object else longer)
            out.replace(self._form, leaves, stop + 1)
            out.lookback, out.provisional = self.lookback, self.provisional
        out.t_started = self.t_started
        return out

    def __add__(self, other: Any) -> InfiniteLookbackBuffer:
        """Return a new buffer with more rows, or with a number added to every number of this one.

        Args:
            other: A list of rows or stacked arrays; a buffer (its rows after the lookback are added); a number.

        Raises:
            ColumnError: rows of another nesting.
        """
        total = self.len_incl_lookback()
        number = isinstance(other, (int, float, complex, np.number))
        if number and total:
            data = map_struct(lambda leaf: _plus(leaf, other), self.data)
            return type(self)(data, self.lookback, self.space)
        out = self.copy_rows(range(total), self.lookback)
        if isinstance(other, InfiniteLookbackBuffer):
            out.concat(other)
        elif not number:
            out.extend(other)
        return out

    def get_state(self) -> dict[str, Any]:
        """Return plain data: `data` (arrays, lookback included, or None), `lookback`, `space` and more."""
        state = self.__getstate__()
        data, space = state["data"], None if self.space is None else space_to_dict(self.space)
        state["data"] = None if data is None else map_struct(copied, data)
        return {**state, "raw_row": list(map(owned, state["raw_row"])), "space": space, "finalized": True}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> InfiniteLookbackBuffer:
        """Rebuild a buffer from `get_state()`.

        Raises:
            CheckpointError: `state` is no buffer's.
        """
        do = "pass what get_state of a buffer gave"
        check_state(state, _STATE, f"{cls.__name__}.from_state", "a buffer", do)
        data, space = state["data"], state["space"]
        if data is not None:
            form, leaves, _ = stacked_rows(data)
            data = None if leaves is None else unflatten(form, list(map(copied, leaves)))
        buffer = cls.__new__(cls)
        buffer.__setstate__({**state, "data": data, "space": None if space is None else space_from_dict(space)})
        return buffer

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that `get_state` copies: the rows where they lie, and the space itself."""
        pending, leaves, raw = self.raw_row(), self._leaves or [], []
        leaves = [leaf[: self._stop] for leaf in leaves]
        if pending is not NOTHING:
            values = leaves_like(self._form, pending)
            if values is not None and all(map(fits_exactly, leaves, values)):
                leaves = self._with_pending(np.arange(self._stop + 1))
            else:
                raw = [pending]
        return {
            "data": unflatten(self._form, list(map(np.ascontiguousarray, leaves))) if leaves else None,
            "raw_row": raw,
            "provisional": self.provisional,
            "lookback": self.lookback,
            "t_started": self.t_started,
            "space": self.space,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        InfiniteLookbackBuffer.__init__(self, None, 0, state["space"])
        if state["data"] is not None:
            leaves, form = flatten(state["data"])
            self._read_only = not all(leaf.flags.writeable for leaf in leaves)
            self.replace(form, leaves, len(leaves[0]))
        for row in state["raw_row"]:
            self._stage(row)
        self.provisional, self.lookback = state["provisional"], state["lookback"]
        self.t_started = state.get("t_started", 0)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, InfiniteLookbackBuffer):
            return NotImplemented
        total = self.len_incl_lookback()
        if total != other.len_incl_lookback() or self.lookback != other.lookback:
            return False
        if not total:  # rows that were there before may have left their type
            return True
        (left, form), (right, other_form) = flatten(self.data), flatten(other.data)
        return form == other_form and all(map(same_leaf, left, right))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        total = self.len_incl_lookback()
        return f"InfiniteLookbackBuffer({total} rows, lookback={self.lookback}, space={self.space})"


def put_step(
    episode: SingleAgentEpisode, observation: Any, action: Any, reward: Any, extras: Mapping[str, Any]
) -> bool:
    """Add a step if the array of every column takes its row as it is.

    Rows are written after those in use, and counted only when all were taken.

    Returns:
        Whether it was added; if not, the columns are as they were.
    """
    observations, actions, rewards = episode.observations, episode.actions, episode.rewards
    outputs = episode.extra_model_outputs
    steps = rewards._stop
    rows = steps + 1
    level = observations._stop == rows and actions._stop == steps and len(extras) == len(outputs)
    if not level or observations.checked_for is not episode.given_observation_space:
        return False
    try:
        if type(reward) in rewards._accepts:
            rewards._flat[steps] = reward  # type: ignore[index]
        elif not rewards.lay(steps, reward):
            return False
        if type(action) in actions._accepts:
            actions._flat[steps] = action  # type: ignore[index]
        elif not actions.lay(steps, action):
            return False
        if actions.limits:
            first, stop = actions.limits
            if not (first <= action < stop if type(first) is int else ((first <= action) & (action < stop)).all()):
                return False
        for key, output in outputs.items():
            row = extras[key]
            if output._stop != steps:
                return False
            if type(row) in output._accepts:
                output._flat[steps] = row  # type: ignore[index]
            elif type(row) is _ARRAY and (cells := output._cells) is not None:
                cells[steps * output._width : rows * output._width] = row
            elif not output.lay(steps, row):
                return False
        if type(observation) is _ARRAY and (cells := observations._cells) is not None:
            cells[rows * observations._width : (rows + 1) * observations._width] = observation
        elif not observations.lay(rows, observation):
            return False
    except (IndexError, ValueError):  # a full array, or an array that is no row of it
        full = [column.make_room() for column in (observations, actions, rewards, *outputs.values())]
        return any(full) and put_step(episode, observation, action, reward, extras)
    except (KeyError, OverflowError):
        return False
    for output in outputs.values():
        output._stop = rows
    actions._stop = rewards._stop = rows
    observations._stop = rows + 1
    return True


def _plus(leaf: Leaf, number: Any) -> Any:
    """Integers are added as 64-bit ones, so that none wraps around."""
    is_integer = leaf.dtype.kind in "bui" and isinstance(number, (int, np.integer))
    return leaf + (np.int64(number) if is_integer else number)


def lengths_of(buffers: Sequence[Any]) -> list[int]:
    """Rows after the lookback of each buffer.

    Example:
        >>> lengths_of([InfiniteLookbackBuffer([1.0, 2.0], lookback=1), InfiniteLookbackBuffer()])
        [1, 0]
    """
    if set(map(type, buffers)) != {InfiniteLookbackBuffer}:
        return list(map(len, buffers))
    return [len(buffer) if buffer._flat is None else buffer._stop - buffer.lookback for buffer in buffers]


def rows_of(
    buffers: Sequence[Any], firsts: Sequence[int], spans: Sequence[int]
) -> tuple[Form, list[list[Leaf]]] | None:
    """Rows of each buffer, counted from the end of its lookback; views.

    Args:
        buffers: At least one.
        firsts: The first row of each.
        spans: How many rows of each.

    Returns:
        Their nesting, and for each leaf the buffers' rows; None unless all rows lie in numeric arrays that belong to
        their buffers, in one nesting and shape.

    Example:
        >>> rows_of([InfiniteLookbackBuffer([1.0, 2.0, 3.0], lookback=1)], [-1], [2])
        (None, [[array([1., 2.])]])
    """
    if set(map(type, buffers)) != {InfiniteLookbackBuffer}:
        return None
    if buffers[0]._flat is None:
        return _leaf_rows_of(buffers, firsts, spans)
    shape, parts = buffers[0]._shape, []
    for buffer, first, span in zip(buffers, firsts, spans):
        leaf, low = buffer._flat, buffer.lookback + first
        high = low + span
        if leaf is None or buffer._shape != shape or high > buffer._stop:
            return None
        parts.append(leaf[low:high] if low or high != len(leaf) else leaf)
    return None, [parts]


def _leaf_rows_of(
    buffers: Sequence[Any], firsts: Sequence[int], spans: Sequence[int]
) -> tuple[Form, list[list[Leaf]]] | None:
    """Rows of buffers that are nested, or lie in read-only memory (see `rows_of`)."""
    form, example = buffers[0]._form, buffers[0]._leaves
    if example is None:
        return None
    shapes = [leaf.shape[1:] for leaf in example]
    leaves: list[list[Leaf]] = [[] for _ in shapes]
    for buffer, first, span in zip(buffers, firsts, spans):
        buffer_leaves, low = buffer._leaves, buffer.lookback + first
        high = low + span
        if buffer._source is not None or buffer_leaves is None or buffer._form != form or high > buffer._stop:
            return None
        for leaf, shape, parts in zip(buffer_leaves, shapes, leaves):
            if leaf.shape[1:] != shape or leaf.dtype.kind not in "biufc":
                return None
            parts.append(leaf[low:high])
    return form, leaves


def newest_of(buffers: Sequence[Any]) -> Any:
    """Stack what `last()` gives for each buffer.

    Args:
        buffers: At least one.

    Returns:
        Arrays of shape [number of buffers, ...], copies, nested like the rows; None if that cannot be had this
        way: a buffer has no row, or does not own it, or holds it apart from the others; or the rows differ in
        nesting or shape, or are no numbers.

    Example:
        >>> newest_of([InfiniteLookbackBuffer([1.0, 2.0]), InfiniteLookbackBuffer([3.0])]).tolist()
        [2.0, 3.0]
    """
    form = buffers[0]._form
    if form is None:
        try:  # each buffer is looked at once: many are more than the caches hold
            rows = [buffer._flat[buffer._stop - 1] if buffer._stop else None for buffer in buffers]
            return _stacked(rows)
        except TypeError:  # one of them is nested, or has no array of its own that holds all its rows
            return None
    stops = [buffer._stop for buffer in buffers]
    if 0 in stops:
        return None
    if [buffer._form for buffer in buffers].count(form) < len(buffers):
        return None
    for buffer in buffers:
        if buffer._source is not None or buffer._pending is not NOTHING:
            return None
    leaves = [buffer._leaves or [] for buffer in buffers]
    positions = range(len(leaves[0]))
    stacked = [_stacked([arrays[i][stop - 1] for arrays, stop in zip(leaves, stops)]) for i in positions]
    return None if any(leaf is None for leaf in stacked) else unflatten(form, stacked)


def _stacked(rows: list[Any]) -> Leaf | None:
    """Rows of one leaf as one array; None if they are not of one shape, or no numbers."""
    kinds = set(map(type, rows))
    if kinds == {_ARRAY}:
        first = rows[0]
        try:
            if first.dtype.kind in "biufc" and len(set(map(len, rows))) == 1:
                return np.concatenate(rows).reshape(len(rows), *first.shape)
        except (TypeError, ValueError):  # no dimension at all, another number of them, or a later one that differs
            pass
        return None
    return np.array(rows) if all(issubclass(kind, (np.number, np.bool_)) for kind in kinds) else None
