"""One data stream of a chunk as growable arrays, with the rows before its start kept as lookback."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.core.errors import EpisodeIndexError, SpaceError
from epibatch.core.fill_values import fill_value, promoting_fill_value
from epibatch.core.structs import flatten, flatten_like, form_of, map_struct, unflatten

from ._storage.arrays import (
    Leaf,
    copied,
    filled,
    fits,
    grown,
    object_leaf,
    owned,
    promoted,
    same_leaf,
    shielded,
    with_rows,
)
from ._storage.buffer_source import NOTHING, BufferSource
from ._storage.buffer_state import added, buffer_from_state, buffer_state, from_slots, slots_of
from ._storage.column_writes import stacked_rows, write_row, write_rows
from ._storage.growing_column import GrowingColumn
from ._storage.indexing import Positions, may_write, position_of, positions_of

__all__ = ["NOTHING", "InfiniteLookbackBuffer"]


class InfiniteLookbackBuffer(GrowingColumn):
    """A growable column: each leaf of a nested stream lives in one array, time first.

    Appending is amortised O(1). The column's type is that of its first rows; later rows promote it
    and never cast down. A leaf whose shape changes becomes an object column.

    Args:
        data: Rows, lookback included: a list of rows, or stacked arrays (shape [T, ...] per leaf). Copied.
        lookback: How many rows lie before the chunk's start; clamped to the rows there are.
        space: The stream's Gymnasium space, used for one-hot rows and to fill an empty column.

    Raises:
        EpisodeIndexError: a negative lookback, or stacked arrays of unequal length.

    Example:
        >>> buffer = InfiniteLookbackBuffer([1.0, 2.0, 3.0], lookback=1)
        >>> len(buffer), buffer.get().tolist(), buffer.get(slice(-4, None), fill=0.0).tolist()
        (2, [2.0, 3.0], [0.0, 1.0, 2.0, 3.0])
    """

    __slots__ = ()

    def __init__(self, data: Any = None, lookback: int = 0, space: gym.Space[Any] | None = None) -> None:
        super().__init__(space)
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

    @classmethod
    def over(cls, source: BufferSource, lookback: int, space: gym.Space[Any] | None) -> InfiniteLookbackBuffer:
        """A buffer that shows rows which `source` owns."""
        buffer = cls(None, 0, space)
        buffer._source = source
        buffer.lookback = lookback
        return buffer

    # -- reading -------------------------------------------------------------------------------

    @property
    def data(self) -> Any:
        """All rows, lookback included: arrays of shape [T, ...] in the stream's nesting (views)."""
        rows = self._span(0, self.len_incl_lookback())
        return rows if may_write() else shielded(rows)

    @property
    def finalized(self) -> bool:
        """Always True: a column is arrays from its first row on."""
        return True

    def finalize(self) -> None:
        """Do nothing; columns are arrays already."""

    def rows(self, start: int, stop: int) -> list[Leaf]:
        """The leaves of rows `start` to `stop`, counted from the chunk's start.

        They are views, except where a raw provisional row is among them.

        Raises:
            ColumnError: that row is nested differently than the column.
        """
        low, high = self.lookback + start, self.lookback + stop
        if self._flat is not None:
            return [self._flat[low : high if high < self._stop else self._stop]]
        if self._source is not None:
            self._source.sync(self)
        if self._pending is not NOTHING and high > self._stop:
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
            if self._source is not None and self._source.elsewhere():
                self.own()  # rows side by side, so that writing to what a getter gives reaches the episode
                return self._rows(positions)
            if self._leaves is not None and self.leaves_of(self._pending) is None:
                return object_leaf([owned(self._row(int(p))) for p in positions])
            form = form_of(self._pending) if self._leaves is None else self._form
            return unflatten(form, self._with_pending(np.asarray(positions, np.int64)))
        where: Any = positions
        if isinstance(positions, range):
            end = positions.stop if positions.step > 0 or positions.stop >= 0 else None
            where = slice(positions.start, end, positions.step)
        return unflatten(self._form, [leaf[where] for leaf in self._leaves or []])

    def _no_rows(self) -> Any:
        if self._leaves is not None:
            return unflatten(self._form, [leaf[:0] for leaf in self._leaves])
        if self._pending is NOTHING and self.space is None:
            return np.empty(0)
        try:
            return self._repeated(self._fill_row(0), 0)
        except SpaceError:  # a space of things that are not arrays
            return np.empty(0)

    def _with_pending(self, positions: np.ndarray[Any, np.dtype[np.int64]]) -> list[Leaf]:
        """Copies of the leaves of rows, the raw provisional one among them."""
        if self._leaves is None:
            return [np.repeat(leaf[:1], len(positions), 0) for leaf in self._pending_column()._leaves or []]
        newest = positions == self._stop
        before = np.where(newest, max(self._stop - 1, 0), positions)
        values = flatten_like(self._form, self._pending)
        return [with_rows(leaf[before], newest, value) for leaf, value in zip(self._leaves, values)]

    def _pending_column(self) -> InfiniteLookbackBuffer:
        column = InfiniteLookbackBuffer(space=self.space)
        column.append(self._pending)
        return column

    def _filled_rows(self, positions: np.ndarray[Any, np.dtype[np.int64]], fill: Any) -> Any:
        exist = (positions >= 0) & (positions < self._stop + (self._pending is not NOTHING))
        if not exist.any():
            return self._repeated(self._fill_row(fill), len(positions))
        leaves, form = flatten(self._rows(positions[exist]))
        out = []
        for leaf in leaves:
            column = self._filled((len(positions), *leaf.shape[1:]), leaf.dtype, fill)
            column[exist] = leaf
            out.append(column)
        return unflatten(form, out)

    def _filled_span(self, start: int, stop: int, fill: Any) -> Any:
        low, high = max(start, 0), min(stop, self._stop)
        if low >= high or self._leaves is None or (self._pending is not NOTHING and stop > self._stop):
            return super()._filled_span(start, stop, fill)
        out = []
        for leaf in self._leaves:
            value, dtype = self._fill_value(leaf.dtype, fill)
            column = np.empty((stop - start, *leaf.shape[1:]), dtype)
            column[: low - start] = value
            column[low - start : high - start] = leaf[low:high]
            column[high - start :] = value
            out.append(column)
        return unflatten(self._form, out)

    def _fill_value(self, dtype: np.dtype[Any], fill: Any) -> tuple[Any, np.dtype[Any]]:
        """The fill value, and the type of rows beside it: without a space one that holds both, as in RLlib."""
        value = promoting_fill_value(dtype, fill) if self.space is None else fill_value(dtype, fill)
        return value, dtype if dtype.hasobject else value.dtype

    def _filled(self, shape: tuple[int, ...], dtype: np.dtype[Any], fill: Any) -> Leaf:
        value, dtype = self._fill_value(dtype, fill)
        return filled(shape, dtype, value)

    @staticmethod
    def _repeated(row: Any, count: int) -> Any:
        return map_struct(lambda leaf: np.repeat(np.asarray(leaf)[None], count, 0), row)

    def _fill_row(self, fill: Any) -> Any:
        if self._leaves is not None:
            return unflatten(self._form, [self._filled(leaf.shape[1:], leaf.dtype, fill)[()] for leaf in self._leaves])
        if self._pending is not NOTHING:
            return self._pending_column()._fill_row(fill)
        if self.space is not None:
            from epibatch.core.spaces import fill_row

            return fill_row(self.space, fill)
        return fill

    def _one_hot(self, indices: Any, neg_index_as_lookback: bool, fill: Any) -> Any:
        from ._storage.one_hot_rows import one_hot_rows

        if self.space is None:
            return super()._one_hot(indices, neg_index_as_lookback, fill)
        total = self.len_incl_lookback()
        standing_in = None if fill is None else 0  # one-hot rows are filled with what their numbers may not hold
        rows = self.get(indices, neg_index_as_lookback=neg_index_as_lookback, fill=standing_in)
        many = indices is None or isinstance(indices, (slice, list, tuple, np.ndarray, range))
        if many:
            wanted = positions_of(indices, self.lookback, total, neg_index_as_lookback, fill is not None)
            positions = np.asarray(wanted, np.int64)
        else:
            positions = np.array([position_of(indices, self.lookback, total, neg_index_as_lookback)])
            rows = map_struct(lambda leaf: np.asarray(leaf)[None], rows)
        hot = one_hot_rows(rows, (positions < 0) | (positions >= total), self.space, fill)
        return hot if many else map_struct(lambda leaf: leaf[0], hot)

    # -- writing -------------------------------------------------------------------------------

    def extend(self, items: Any) -> None:
        """Add rows: a list of rows, stacked arrays, or all rows of a buffer.

        Raises:
            ColumnError: another nesting than the rows before.
        """
        other = items if isinstance(items, InfiniteLookbackBuffer) else InfiniteLookbackBuffer(items)
        self._extend(other, 0)

    def concat(self, other: InfiniteLookbackBuffer) -> None:
        """Add the rows of `other` that come after its lookback; its newest row may stay provisional.

        Raises:
            ColumnError: another nesting than the rows before.
        """
        self._extend(other, other.lookback)

    def _extend(self, other: InfiniteLookbackBuffer, start: int) -> None:
        self.own()
        count = other.len_incl_lookback() - (other._pending is not NOTHING) - start
        if count > 0:
            leaves = unflatten(other._form, [leaf[start : start + count] for leaf in other._leaves or []])
            if self._leaves is not None:
                flatten_like(self._form, leaves)
            self.commit()
            self._add_rows(leaves, count)
        if other._pending is not NOTHING:
            self.stage(other._pending)
        elif count > 0:
            self.provisional = other.provisional

    def _add_rows(self, rows: Any, count: int) -> None:
        if self._leaves is None:
            new, self._form = flatten(rows)
            self._leaves = [copied(leaf) for leaf in new]
        else:
            stop = self._stop + count
            for i, new_rows in enumerate(flatten_like(self._form, rows)):
                leaf = self._leaves[i]
                leaf = promoted(leaf, self._stop, fits(leaf, new_rows, new_rows.shape[1:]))
                if stop > len(leaf):
                    leaf = grown(leaf, self._stop, max(stop, 2 * len(leaf)))
                leaf[self._stop : stop] = copied(object_leaf(new_rows)) if leaf.dtype == object else new_rows
                self._leaves[i] = leaf
        self._stop += count
        self._settle()

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

    def _write_row(self, position: int, row: Any) -> None:
        newest = self._stop if self._pending is not NOTHING else self._stop - 1
        if position == newest and self.provisional:
            if self._source is not None:
                self._source.write_newest(row)
            else:
                self._restage(row)
        elif not self.lay(position, row):
            write_row(self, position, row)

    def _write_rows(self, positions: Positions, new_data: Any) -> None:
        write_rows(self, positions, new_data)

    # -- copies --------------------------------------------------------------------------------

    def copy_rows(self, rows: range | Sequence[int], lookback: int) -> InfiniteLookbackBuffer:
        """A buffer that owns copies of absolute rows, in ascending order.

        A provisional row stays provisional in the copy.

        Args:
            rows: Their positions.
            lookback: How many of them come before the copy's start; clamped to those there are.
        """
        total = self.len_incl_lookback()
        out = InfiniteLookbackBuffer(None, 0, self.space)
        newest = len(rows) > 0 and rows[-1] == total - 1 and self.provisional
        pending = newest and self._pending is not NOTHING
        stored = rows[:-1] if pending else rows
        if self._flat is not None and isinstance(stored, range) and stored.step == 1:
            out.share_kind(self, self._flat[stored.start : stored.stop].copy())
        elif self._leaves is not None:
            where: Any = slice(stored.start, stored.stop, stored.step) if isinstance(stored, range) else list(stored)
            out._form, out._stop = self._form, len(stored)
            out._leaves = [copied(leaf[where]) for leaf in self._leaves]
            out._settle()
        if pending:
            out._stage(self._pending)
        out.provisional = newest
        out.lookback = min(lookback, len(rows))
        return out

    def __add__(self, other: Any) -> InfiniteLookbackBuffer:
        """A new buffer with more rows, or with a number added to every number of this one.

        Args:
            other: A list of rows or stacked arrays; a buffer, of which the rows behind its lookback count; a number.

        Raises:
            ColumnError: rows of another nesting.
        """
        return added(self, other)

    def get_state(self) -> dict[str, Any]:
        """This buffer as plain data: `data` (arrays, lookback included, or None), `lookback`, `space` and more."""
        return buffer_state(self)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> InfiniteLookbackBuffer:
        """Rebuild a buffer from `get_state()`.

        Raises:
            CheckpointError: `state` is no buffer's.
        """
        return buffer_from_state(cls, state)

    def __getstate__(self) -> dict[str, Any]:
        return slots_of(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        GrowingColumn.__init__(self, state["space"])
        from_slots(self, state)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, InfiniteLookbackBuffer):
            return NotImplemented
        total = self.len_incl_lookback()
        if total != other.len_incl_lookback() or self.lookback != other.lookback:
            return False
        if not total:  # rows that were there before may have left their type
            return True
        mine, yours = flatten(self.data), flatten(other.data)
        return mine[1] == yours[1] and all(same_leaf(a, b) for a, b in zip(mine[0], yours[0]))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        total = self.len_incl_lookback()
        return f"InfiniteLookbackBuffer({total} rows, lookback={self.lookback}, space={self.space})"
