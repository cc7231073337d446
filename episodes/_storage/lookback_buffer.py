"""The index logic that every episode buffer shares, over whatever holds the rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from epibatch.core.errors import EpisodeIndexError, SpaceError

from ..arrays import shielded
from ..indexing import (
    SEVERAL,
    WATCH,
    Indices,
    Positions,
    check_writable,
    may_write,
    note_history,
    position_of,
    positions_of,
)


class LookbackBuffer(ABC):
    """Rows of one data stream of a chunk, the first `lookback` of them before the chunk's start.

    Subclasses hold the rows; this class turns requests into row positions.
    """

    __slots__ = ()

    lookback: int
    t_started: int
    read_only = False

    def make_writable(self) -> None:  # noqa: B027 - most have nothing to do
        """Copy rows that lie in read-only memory."""

    @abstractmethod
    def len_incl_lookback(self) -> int:
        """Number of rows, lookback included."""

    @abstractmethod
    def _row(self, position: int) -> Any:
        """The row at an absolute position that exists."""

    def _span(self, start: int, stop: int) -> Any:
        """The rows at the absolute positions `start` to `stop`, which all exist."""
        return self._rows(range(start, stop))

    @abstractmethod
    def _rows(self, positions: Positions) -> Any:
        """The rows at absolute positions that all exist."""

    @abstractmethod
    def _filled_rows(self, positions: np.ndarray[Any, np.dtype[np.int64]], fill: Any) -> Any:
        """Rows at absolute positions; those that do not exist are the fill row."""

    @abstractmethod
    def _fill_row(self, fill: Any) -> Any:
        """One row made of the fill value."""

    @abstractmethod
    def _write_row(self, position: int, row: Any) -> None:
        """Write one row to an absolute position that exists."""

    @abstractmethod
    def _write_rows(self, positions: Positions, new_data: Any) -> None:
        """Write rows to absolute positions that all exist."""

    def __len__(self) -> int:
        length = self.len_incl_lookback() - self.lookback
        return length if length > 0 else 0

    def __getitem__(self, indices: Indices) -> Any:
        return self.get(indices)

    def __setitem__(self, indices: Indices, new_data: Any) -> None:
        self.set(new_data, at_indices=indices)

    def get(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
    ) -> Any:
        """Rows by int, slice or list: views where possible, read-only while a piece runs that may not write.

        Args:
            indices: An int gives one row, a slice or list gives stacked rows; None gives all rows
                after the lookback.
            neg_index_as_lookback: Count negative indices backwards from the chunk's start.
            fill: Value of the rows asked for outside the buffer; without it such ints raise and
                such slices are shortened.
            one_hot_discrete: Turn Discrete and MultiDiscrete leaves into float32 one-hot rows.

        Raises:
            EpisodeIndexError: an index outside the rows, and no fill.
            SpaceError: one-hot rows of a column without a space.
        """
        if self.read_only and may_write():
            self.make_writable()
        if one_hot_discrete:
            return self._one_hot(indices, neg_index_as_lookback, fill)
        total = self.len_incl_lookback()
        if type(indices) is slice and (indices.step is None or indices.step == 1):
            rows = self._get_span(indices, total, neg_index_as_lookback, fill)
        elif indices is None:
            rows = self._span(self.lookback, total)
        elif type(indices) is not int and isinstance(indices, SEVERAL):
            rows = self._get_many(indices, total, neg_index_as_lookback, fill)
        else:
            rows = self._get_one(indices, total, neg_index_as_lookback, fill)
        watch = WATCH.get()
        return rows if watch is None or watch.writable else shielded(rows)

    def _get_one(self, index: Any, total: int, neg_index_as_lookback: bool, fill: Any) -> Any:
        lookback = self.lookback
        if type(index) is int:
            position = lookback + index if index >= 0 or neg_index_as_lookback else total + index
        else:
            position = position_of(index, lookback, total, neg_index_as_lookback)
        if position < lookback:
            note_history(position, lookback, self.t_started)
        if 0 <= position < total:
            return self._row(position)
        if fill is None:
            raise self._out_of_range(index, total)
        return self._fill_row(fill)

    def _get_span(self, indices: slice, total: int, neg_index_as_lookback: bool, fill: Any) -> Any:
        lookback, low, high = self.lookback, indices.start, indices.stop
        if low is None:
            low = lookback
        elif type(low) is int:
            low += lookback if low >= 0 or neg_index_as_lookback else total
        else:
            low = position_of(low, lookback, total, neg_index_as_lookback)
        if high is None:
            high = total
        elif type(high) is int:
            high += lookback if high >= 0 or neg_index_as_lookback else total
        else:
            high = position_of(high, lookback, total, neg_index_as_lookback)
        if fill is None:
            low, high = low if low > 0 else 0, high if high < total else total
        if low >= high:
            return self._rows(range(0))
        if low < lookback:
            note_history(low, lookback, self.t_started)
        if low >= 0 and high <= total:
            return self._span(low, high)
        return self._filled_span(low, high, fill)

    def _filled_span(self, start: int, stop: int, fill: Any) -> Any:
        """The rows at absolute positions `start` to `stop`; those that do not exist are the fill row."""
        return self._filled_rows(np.arange(start, stop, dtype=np.int64), fill)

    def _get_many(self, indices: Any, total: int, neg_index_as_lookback: bool, fill: Any) -> Any:
        positions = positions_of(indices, self.lookback, total, neg_index_as_lookback, fill is not None)
        if not len(positions):
            return self._rows(range(0))
        first, last = int(min(positions[0], positions[-1])), int(max(positions[0], positions[-1]))
        if not isinstance(positions, range):
            first, last = int(positions.min()), int(positions.max())
        if first < self.lookback:
            note_history(first, self.lookback, self.t_started)
        if first >= 0 and last < total:
            return self._rows(positions)
        if fill is None:
            raise self._out_of_range(indices, total)
        return self._filled_rows(np.asarray(positions, np.int64), fill)

    def set(self, new_data: Any, *, at_indices: Indices = None, neg_index_as_lookback: bool = False) -> None:
        """Overwrite rows.

        Args:
            new_data: One row for an int index, otherwise as many stacked rows as are addressed.
            at_indices: Which rows; None addresses all rows after the lookback.
            neg_index_as_lookback: Count negative indices backwards from the chunk's start.

        Raises:
            EpisodeIndexError: rows that do not exist, or another number of rows than addressed.
            EpisodeStateError: a piece is running that did not declare to write.
        """
        watch = WATCH.get()
        if watch is not None and not watch.writable:
            check_writable()
        if self.read_only:
            self.make_writable()
        total = self.len_incl_lookback()
        if type(at_indices) is int:
            position = self.lookback + at_indices if at_indices >= 0 or neg_index_as_lookback else total + at_indices
        elif not isinstance(at_indices, SEVERAL):
            position = position_of(at_indices, self.lookback, total, neg_index_as_lookback)
        else:
            positions = positions_of(at_indices, self.lookback, total, neg_index_as_lookback, False)
            if len(positions) and (min(positions) < 0 or max(positions) >= total):
                raise self._out_of_range(at_indices, total)
            self._write_rows(positions, new_data)
            return
        if not 0 <= position < total:
            raise self._out_of_range(at_indices, total)
        self._write_row(position, new_data)

    def _out_of_range(self, indices: Any, total: int) -> EpisodeIndexError:
        return EpisodeIndexError(
            "episode buffer",
            expected=f"indices within {total} rows ({self.lookback} of them lookback)",
            found=repr(indices),
            do="ask for rows that exist, or pass `fill=` to pad what is missing",
        )

    def _one_hot(self, indices: Any, neg_index_as_lookback: bool, fill: Any) -> Any:
        raise SpaceError(
            "one_hot_discrete",
            expected="a column with a space",
            found="one without",
            do="give the episode its spaces, or leave one_hot_discrete out",
        )
