"""One data stream of a chunk as growable arrays, with the rows before its start kept as lookback."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from epibatch.core.errors import EpisodeIndexError, SpaceError
from epibatch.core.space_dicts import space_from_dict, space_to_dict
from epibatch.core.spaces import fill_row, fill_value, one_hot_column, promoting_fill_value
from epibatch.core.structs import Form, flatten, flatten_like, map_struct, unflatten

from ._parts.arguments import check_state
from ._storage.growing_column import NO_TYPES, NOTHING, GrowingColumn
from ._storage.lookback_buffer import LookbackBuffer
from .arrays import (
    Leaf,
    copied,
    fits,
    fits_exactly,
    leaves_like,
    object_leaf,
    owned,
    same_leaf,
    shielded,
    stacked_rows,
    unaliased,
)
from .indexing import SEVERAL, Positions, check_writable, may_write, note_history, positions_of

if TYPE_CHECKING:
    from ._storage.chunk import RowSource

_ARRAY = np.ndarray
_OBJECT = np.dtype(object)
_STATE = ("data", "raw_row", "provisional", "lookback", "space")
_OTHER_SHAPE = "rows of another nesting, shape or kind in the place of committed ones"


class InfiniteLookbackBuffer(GrowingColumn, LookbackBuffer):
    """A growable column, time first, with RLlib's rules for its rows: those before the chunk's start are its lookback.

    Appending is amortised O(1). The column's type is that of its first rows; later rows promote it
    and never cast down. A leaf that changes its shape becomes an object column.

    The newest row of observations is provisional. If it has the column's nesting, shapes and types, it lies in the
    arrays like any other row; otherwise it is held raw, apart from them.

    Args:
        data: Rows, lookback included: a list of rows, or stacked arrays (shape [T, ...] per leaf). Copied.
        lookback: The number of rows before the chunk's start; clamped to the rows there are.
        space: The stream's Gymnasium space, used for one-hot rows and to fill an empty column.

    Attributes:
        source: The owner of the rows; None: this buffer.
        limits: The first integers of a column of actions that lie in its space, and the first ones after them; empty
            if the rows are nested; None if actions are not checked.

    Raises:
        EpisodeIndexError: a negative lookback, or stacked arrays of unequal length.

    Examples:
        >>> buffer = InfiniteLookbackBuffer([1.0, 2.0, 3.0], lookback=1)
        >>> len(buffer), buffer.get().tolist(), buffer.get(slice(-4, None), fill=0.0).tolist()
        (2, [2.0, 3.0], [0.0, 1.0, 2.0, 3.0])
    """

    __slots__ = ("limits", "lookback", "source", "space", "t_started")

    axes = 1

    def __init__(self, data: Any = None, lookback: int = 0, space: gym.Space[Any] | None = None) -> None:
        # The base class's attributes, without a call, which would take as long as all of this.
        self.form = self.flat = self.cells = self.checked_for = self.capacity = None
        self.leaves, self.accepts, self.pending, self.space = [], NO_TYPES, NOTHING, space
        self.provisional = self.read_only = self.settled = False
        self.stop = self.lookback = self.t_started = 0
        self.source: RowSource | None = None
        self.limits: tuple[Any, ...] | None = None
        if data is not None:
            form, leaves, count = stacked_rows(data)
            if leaves is not None:
                self.replace(form, leaves if isinstance(data, list) else list(map(copied, leaves)), count)
        if lookback:
            if lookback < 0:
                raise EpisodeIndexError(
                    "lookback", expected="a number of rows from 0 on", found=str(lookback), do="use 0 for none"
                )
            self.lookback = min(lookback, self.stop)

    # -- rows that a block owns ----------------------------------------------------------------

    @classmethod
    def over(cls, source: RowSource, lookback: int, space: gym.Space[Any] | None) -> InfiniteLookbackBuffer:
        """Return a buffer that shows rows which `source` owns."""
        buffer = cls(None, 0, space)
        buffer.source, buffer.read_only = source, source.column.read_only
        buffer.lookback = lookback
        return buffer

    def make_writable(self) -> None:
        """Copy rows that lie in read-only memory; of a block the whole column, which its other episodes show too."""
        if self.source is None:
            super().make_writable()
        else:
            self.source.column.make_writable()
            self.read_only = False

    def own(self, change: str = "an operation that adds or removes rows") -> None:
        """Copy the rows out of the block, or the read-only memory, that they lie in, if they do.

        Args:
            change: What it is for, should that be refused.

        Raises:
            EpisodeStateError: the rows are still being recorded.
        """
        source = self.source
        if source is not None:
            source.sync(self)
            source.release(change)
            self.source, self.read_only = None, True
        if self.read_only:
            super().make_writable()
            pending, self.pending = self.pending, NOTHING
            if pending is not NOTHING:
                self.stage(pending)

    # -- adding and removing rows --------------------------------------------------------------

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
        GrowingColumn.stage(self, item)

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
        count = other.len_incl_lookback() - (other.pending is not NOTHING) - start
        if count > 0:
            self.commit()
            rows = [leaf[start : start + count] for leaf in other.leaves]
            if self.is_new:
                self.replace(other.form, list(map(copied, rows)), count)
            else:
                self.add_rows(flatten_like(self.form, unflatten(other.form, rows)), count)
        if other.pending is not NOTHING:
            self.stage(other.pending)

    def pop(self, index: int = -1) -> Any:
        """Remove and return the row at an absolute (lookback included) list index."""
        self.own()
        total = self.len_incl_lookback()
        position = index if index >= 0 else total + index
        if not 0 <= position < total:
            raise self._out_of_range(index, total)
        row = map_struct(lambda leaf: leaf[()] if isinstance(leaf, np.ndarray) else leaf, owned(self._row(position)))
        if position < self.stop:
            for leaf in self.leaves:
                leaf[position : self.stop - 1] = leaf[position + 1 : self.stop]
        if position == total - 1 or self.pending is NOTHING:
            self.drop_last()
        else:
            self.stop -= 1
        self.lookback = min(self.lookback, total - 1)
        return row

    # -- reading -------------------------------------------------------------------------------

    @property
    def data(self) -> Any:
        """All rows, lookback included: arrays of shape [T, ...] in the stream's nesting (views)."""
        if not may_write():
            return shielded(self._span(0, self.len_incl_lookback()))
        if self.read_only:
            self.make_writable()
        return self._span(0, self.len_incl_lookback())

    @data.setter
    def data(self, rows: Any) -> None:
        check_writable()
        self.own("other rows in the place of all")
        other = InfiniteLookbackBuffer(rows, self.lookback)
        self.replace(other.form, other.leaves, other.stop)
        self.lookback = other.lookback

    @property
    def finalized(self) -> bool:
        """Always True: a column is arrays from its first row on."""
        return True

    def finalize(self) -> None:
        """Do nothing; columns are arrays already."""

    def len_incl_lookback(self) -> int:
        """Number of rows, lookback included."""
        if self.source is not None:
            self.source.sync(self)
        return self.stop if self.pending is NOTHING else self.stop + 1

    def raw_row(self) -> Any:
        """Return the provisional row that is held apart from the column because it does not fit; else NOTHING."""
        if self.source is not None:
            self.source.sync(self)
        return self.pending

    def last(self) -> Any:
        """Return the newest row, as given if it is still provisional."""
        if self.source is not None:
            self.source.sync(self)
        if self.pending is not NOTHING:
            return self.pending
        if not self.stop:
            raise self._out_of_range(-1, 0)
        return self.row(self.stop - 1)

    def rows(self, start: int, stop: int) -> list[Leaf]:
        """Return the leaves of rows `start` to `stop`, counted from the chunk's start.

        They are views, except where a raw provisional row is among them.

        Raises:
            ColumnError: that row is nested differently than the column.
        """
        low, high = self.lookback + start, self.lookback + stop
        if self.raw_row() is not NOTHING and high > self.stop:
            return self._with_pending(np.arange(low, min(high, self.stop + 1)))
        high = min(high, self.stop)
        return [leaf[low:high] for leaf in self.leaves]

    def _row(self, position: int) -> Any:
        if position == self.stop:
            return self.pending
        return self.row(position)

    def _span(self, start: int, stop: int) -> Any:
        if stop > self.stop or not self.leaves:
            return self._rows(range(start, stop))
        if self.form is None:
            return self.leaves[0][start:stop]
        return unflatten(self.form, [leaf[start:stop] for leaf in self.leaves])

    def _rows(self, positions: Positions) -> Any:
        if not len(positions):
            return self._no_rows()
        if self.pending is not NOTHING and int(np.max(positions)) == self.stop:
            if self.source is not None and self.source.chunk.tail is not NOTHING:
                self.own()  # rows side by side, so that writing to what a getter gives reaches the episode
                return self._rows(positions)
            if leaves_like(self.form, self.pending) is None:
                return object_leaf([owned(self._row(int(p))) for p in positions])
            return unflatten(self.form, self._with_pending(np.asarray(positions, np.int64)))
        where: Any = positions
        if isinstance(positions, range):
            end = positions.stop if positions.step > 0 or positions.stop >= 0 else None
            where = slice(positions.start, end, positions.step)
        return unflatten(self.form, [leaf[where] for leaf in self.leaves])

    def _no_rows(self) -> Any:
        if not self.is_new:
            return unflatten(self.form, [leaf[:0] for leaf in self.leaves])
        if self.space is None:
            return np.empty(0)
        try:
            return self._repeated(self._fill_row(0), 0)
        except SpaceError:  # a space of things that are not arrays
            return np.empty(0)

    def _with_pending(self, positions: np.ndarray[Any, np.dtype[np.int64]]) -> list[Leaf]:
        """Return copies of the leaves of rows, the raw provisional one among them."""
        newest = positions == self.stop
        before = np.where(newest, max(self.stop - 1, 0), positions)
        values = flatten_like(self.form, self.pending)
        column = InfiniteLookbackBuffer()
        column.replace(self.form, [leaf[before] for leaf in self.leaves], len(positions))
        for at in np.flatnonzero(newest):
            column.write(at, values, list(map(fits, column.leaves, values)))
        return column.leaves

    def _filled_rows(self, positions: np.ndarray[Any, np.dtype[np.int64]], fill: Any) -> Any:
        exist = (positions >= 0) & (positions < self.stop + (self.pending is not NOTHING))
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
        if not self.is_new:
            rows = [np.full(leaf.shape[1:], *self._fill_value(leaf.dtype, fill))[()] for leaf in self.leaves]
            return unflatten(self.form, rows)
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
        newest = self.stop if self.pending is not NOTHING else self.stop - 1
        if position == newest and self.provisional:
            if self.source is not None:
                self.source.write_newest(row)
            else:
                self.drop_last()
                self.stage(row)
        elif not self.lay(position, row):
            values = flatten_like(self.form, row)
            self._write(position, values, list(map(fits, self.leaves, values)))

    def _write(self, where: Any, values: Sequence[Any], dtypes: list[np.dtype[Any] | None]) -> None:
        """Write rows; those of a block get arrays of other types as far as its other episodes can have them, too."""
        changed = [i for i, dtype in enumerate(dtypes) if dtype is None or dtype != self.leaves[i].dtype]
        source = self.source
        if source is not None and changed:
            kinds = {dtypes[i] for i in changed}
            if source.chunk.stop is None and not kinds & {None, _OBJECT}:
                for i in changed:
                    source.column.promote(i, dtypes[i])
                source.sync(self)
            else:  # other episodes of the block keep their type
                self.own(_OTHER_SHAPE)
        self.write(where, unaliased(values), dtypes)

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
        shapes = [leaf.shape[1:] for leaf in self.leaves]
        alike = form == self.form and shapes == [leaf.shape[1:] for leaf in leaves]
        as_whole = count >= total and not alike and len(np.unique(where)) == total
        if as_whole:
            self.own(_OTHER_SHAPE)
            order = np.empty(total, np.int64)
            order[where] = np.arange(count)
            self.replace(form, [copied(leaf[order]) for leaf in leaves], total)
            return
        stored = where != self.stop
        if stored.all():
            self._write_stored(positions, unflatten(form, leaves))
            return
        if stored.any():
            self._write_stored(where[stored], unflatten(form, [leaf[stored] for leaf in leaves]))
        raw = int(np.flatnonzero(~stored)[-1])
        self._write_row(total - 1, unflatten(form, [leaf[raw] for leaf in leaves]))

    def _write_stored(self, positions: Positions, rows: Any) -> None:
        where: Any = positions
        if isinstance(positions, range):
            where = slice(positions[0], positions[-1] + 1) if positions.step == 1 else np.asarray(positions, np.int64)
        values = flatten_like(self.form, rows)
        self._write(where, values, [fits(leaf, value, value.shape[1:]) for leaf, value in zip(self.leaves, values)])

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
        pending = self.pending is not NOTHING and len(rows) > 0 and rows[-1] == newest
        stored = rows[:-1] if pending else rows
        if self.flat is not None and isinstance(stored, range) and stored.step == 1:
            leaf = self.flat[stored.start : stored.stop].copy()
            out.leaves, out.stop = [leaf], len(leaf)
            out.flat, out.row_shape, out.accepts = leaf, self.row_shape, self.accepts
        elif not self.is_new:
            where: Any = (
                slice(stored.start, stored.stop, stored.step)
                if isinstance(stored, range)
                else np.asarray(stored, np.int64)
            )
            out.replace(self.form, [copied(leaf[where]) for leaf in self.leaves], len(stored))
        if pending:
            out.stage(self.pending)
        out.provisional = self.provisional
        out.lookback = min(lookback, len(rows))
        return out

    def with_newest_again(self) -> InfiniteLookbackBuffer:
        """Return a buffer that owns copies of all rows, and the newest one, which there has to be, once more.

        Raises:
            ColumnError: the newest row is raw and does not fit the column.
        """
        stop = self.len_incl_lookback()
        if self.pending is not NOTHING:
            out = self.copy_rows(range(stop), self.lookback)
            out.append(self.last())
        else:
            out = InfiniteLookbackBuffer(None, 0, self.space)
            out.limits = self.limits
            leaves = []
            for leaf in self.leaves:
                longer = np.concatenate((leaf[:stop], leaf[stop - 1 : stop]))
                leaves.append(copied(longer) if longer.dtype == object else longer)
            out.replace(self.form, leaves, stop + 1)
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
        pending, leaves, raw = self.raw_row(), self.leaves, []
        leaves = [leaf[: self.stop] for leaf in leaves]
        if pending is not NOTHING:
            values = leaves_like(self.form, pending)
            if values is not None and all(map(fits_exactly, leaves, values)):
                leaves = self._with_pending(np.arange(self.stop + 1))
            else:
                raw = [pending]
        return {
            "data": unflatten(self.form, list(map(np.ascontiguousarray, leaves))) if leaves else None,
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
            self.read_only = not all(leaf.flags.writeable for leaf in leaves)
            self.replace(form, leaves, len(leaves[0]))
        for row in state["raw_row"]:
            if self.read_only and self.stop:  # the arrays are copied when something is written to them
                self.pending = owned(row)
            else:
                self.stage(row)
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


def _plus(leaf: Leaf, number: Any) -> Any:
    """Integers are added as 64-bit ones, so that none wraps around."""
    is_integer = leaf.dtype.kind in "bui" and isinstance(number, (int, np.integer))
    return leaf + (np.int64(number) if is_integer else number)


def lengths_of(buffers: Sequence[Any]) -> list[int]:
    """Rows after the lookback of each buffer.

    Examples:
        >>> lengths_of([InfiniteLookbackBuffer([1.0, 2.0], lookback=1), InfiniteLookbackBuffer()])
        [1, 0]
    """
    if set(map(type, buffers)) != {InfiniteLookbackBuffer}:
        return list(map(len, buffers))
    return [
        len(buffer) if buffer.flat is None or buffer.pending is not NOTHING else buffer.stop - buffer.lookback
        for buffer in buffers
    ]


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

    Examples:
        >>> rows_of([InfiniteLookbackBuffer([1.0, 2.0, 3.0], lookback=1)], [-1], [2])
        (None, [[array([1., 2.])]])
    """
    if set(map(type, buffers)) != {InfiniteLookbackBuffer}:
        return None
    if buffers[0].flat is None:
        return _leaf_rows_of(buffers, firsts, spans)
    shape, parts = buffers[0].row_shape, []
    for buffer, first, span in zip(buffers, firsts, spans):
        leaf, low = buffer.flat, buffer.lookback + first
        high = low + span
        if leaf is None or buffer.row_shape != shape or high > buffer.stop:
            return None
        parts.append(leaf[low:high] if low or high != len(leaf) else leaf)
    return None, [parts]


def _leaf_rows_of(
    buffers: Sequence[Any], firsts: Sequence[int], spans: Sequence[int]
) -> tuple[Form, list[list[Leaf]]] | None:
    """Rows of buffers that are nested, or lie in read-only memory (see `rows_of`)."""
    form, example = buffers[0].form, buffers[0].leaves
    if not example:
        return None
    shapes = [leaf.shape[1:] for leaf in example]
    leaves: list[list[Leaf]] = [[] for _ in shapes]
    for buffer, first, span in zip(buffers, firsts, spans):
        buffer_leaves, low = buffer.leaves, buffer.lookback + first
        high = low + span
        if buffer.source is not None or not buffer_leaves or buffer.form != form or high > buffer.stop:
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

    Examples:
        >>> newest_of([InfiniteLookbackBuffer([1.0, 2.0]), InfiniteLookbackBuffer([3.0])]).tolist()
        [2.0, 3.0]
    """
    form = buffers[0].form
    if form is None:
        try:  # each buffer is looked at once: many are more than the caches hold
            rows = [
                buffer.flat[buffer.stop - 1] if buffer.stop and buffer.pending is NOTHING else None
                for buffer in buffers
            ]
            return _stacked(rows)
        except TypeError:  # one of them is nested, or has no array of its own that holds all its rows
            return None
    stops = [buffer.stop for buffer in buffers]
    if 0 in stops:
        return None
    if [buffer.form for buffer in buffers].count(form) < len(buffers):
        return None
    for buffer in buffers:
        if buffer.source is not None or buffer.pending is not NOTHING:
            return None
    leaves = [buffer.leaves for buffer in buffers]
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
