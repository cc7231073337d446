"""Rows of a column, some steps away from the rows of a batch, that lie in the episodes until they are batched."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from epibatch.core.columns import Columns
from epibatch.core.errors import LookbackError
from epibatch.core.padding import SequenceLayout
from epibatch.core.spaces import exact_fill_value
from epibatch.core.structs import Form, unflatten

from ...episodes._storage.arrays import Leaf
from ...episodes._storage.column_rows import LazyRows
from .chunks import ChunkGroup

_AT_OBSERVATIONS = (Columns.OBS, Columns.INFOS, Columns.T)

Indices = npt.NDArray[np.int64]


def check_lookback(group: ChunkGroup, column: str, needed: int | Indices, where: str) -> None:
    """Make sure that steps before a chunk that it does not keep do not exist either, so that fill values are right.

    Args:
        group: The chunks.
        column: Name of the column that is read, for the message.
        needed: How many steps before its start are read: of every chunk, or of each (int64 [chunks]).
        where: The piece, for the message.

    Raises:
        LookbackError: an episode had such steps, and its chunk lost them when it was cut.
    """
    starts, lookbacks = group.reader.starts, group.reader.lookbacks
    chunks = np.flatnonzero((lookbacks < needed) & (lookbacks < starts))
    if len(chunks):
        chunk = int(chunks[0])
        steps, start = int(np.broadcast_to(needed, starts.shape)[chunk]), int(starts[chunk])
        several = group.episodes[chunk].multi_agent_episode_id is not None
        cut = f"agent_steps={steps}" if several else f"len_lookback_buffer={steps}, or RolloutStorage(lookback={steps})"
        raise LookbackError(
            f"{where}, {group.describe(chunk)} that starts at t={start}",
            expected=f"a lookback of {min(steps, start)} steps",
            found=f"{lookbacks[chunk]} steps (filling in would hide {column} that exist)",
            do=f"cut episodes with {cut}",
        )


def window_bounds(
    group: ChunkGroup, column: str, shifts: Sequence[int], starts: Indices | int, counts: Indices, where: str
) -> tuple[Indices, Indices]:
    """Return which rows of each chunk the windows of its batch rows need, as far as the chunk holds them.

    Args:
        group: The chunks.
        column: Name of the column.
        shifts: Steps from a row of the batch to the values of its window; at least one.
        starts: Place of each chunk's first row in the batch, counted from the chunk's start.
        counts: Rows of each chunk in the batch.
        where: The piece, for the message.

    Returns:
        The first such row of each chunk, and the one after the last: int64 [chunks] each.

    Raises:
        LookbackError: a chunk has lost rows that existed.
    """
    lows, ends = starts + np.full_like(counts, min(shifts)), group.lengths + (column in _AT_OBSERVATIONS)
    check_lookback(group, column, np.where(counts > 0, -lows, 0), where)
    firsts = np.minimum(np.maximum(lows, -group.reader.lookbacks), ends)
    stops = np.maximum(firsts, np.minimum(starts + counts + max(shifts), ends))
    return firsts, np.where(counts > 0, stops, firsts)


def newest_window(group: ChunkGroup, column: str, lookback: int, where: str) -> tuple[Any, Indices | None]:
    """Read the newest rows of each chunk.

    Args:
        group: The chunks.
        column: Name of the column.
        lookback: How many steps before the newest observation; the window of observations has this one as well.
        where: The piece, for the message.

    Returns:
        As `EpisodeReader.latest`.

    Raises:
        ColumnError: rows of several shapes or nestings.
        LookbackError: a chunk has lost rows that existed.
    """
    window, sizes = group.reader.latest(column, lookback + (column == Columns.OBS))
    if sizes is not None:
        check_lookback(group, column, lookback - group.lengths, where)
    return window, sizes


class HeldRows(NamedTuple):
    """Consecutive rows that chunks hold of a column, without copying them.

    Args:
        form: Nesting of the column.
        leaves: For each leaf the chunks' rows: views of the episodes' storage.
        tails: For chunks with a last row in other memory: that row of each leaf, of shape [1, ...].
        firsts: Position of each chunk's first row, counted from the chunk's start.
        like: For each leaf an array without rows, of the column's shape and type.
        real: Which rows of each chunk are the episode's own: bool; None: all.
    """

    form: Form
    leaves: list[list[Leaf]]
    tails: Mapping[int, list[Leaf]]
    firsts: Indices
    like: list[Leaf]
    real: list[npt.NDArray[np.bool_]] | None = None

    def counts(self) -> Indices:
        """The number of rows of each chunk."""
        counts = np.fromiter(map(len, self.leaves[0]), np.int64, len(self.leaves[0]))
        counts[list(self.tails)] += 1
        return counts


class WindowRows(LazyRows):
    """For each row of a batch the values at some shifts from it, filled in where the chunk has none.

    Nothing is copied before `joined` or `padded`: a window of 50 steps is 50 times its column.

    Args:
        held: The chunks' rows; none that no window reaches.
        starts: Place of each chunk's first row in the batch, counted from the chunk's start.
        counts: Rows of each chunk.
        shifts: At least one.
        single: Whether there is one shift and no axis for it.
        fill: A number; None: zero.
        where: What the rows are, for messages.

    Raises:
        ColumnError: the column's type cannot hold `fill`: that of all chunks' rows, of which some may be floats.

    Example:
        >>> rows = np.array([1.0, 2.0, 3.0])
        >>> held = HeldRows(None, [[rows]], {}, np.array([0]), [rows[:0]])
        >>> WindowRows(held, np.array([0]), np.array([3]), (-2, 0), single=False).joined().tolist()
        [[0.0, 1.0], [0.0, 2.0], [1.0, 3.0]]
    """

    __slots__ = ("_counts", "_fills", "_held", "_low", "_reach", "_shifts", "_single", "_starts")

    def __init__(
        self,
        held: HeldRows,
        starts: Indices,
        counts: Indices,
        shifts: Sequence[int],
        *,
        single: bool,
        fill: float | None = None,
        where: str = "fill rows",
    ) -> None:
        self._held, self._starts, self._counts = held, starts, counts
        self._shifts, self._single, self._low = list(shifts), single, min(shifts)
        self._reach = max(shifts) - self._low + 1
        value = 0 if fill is None else fill
        self._fills = [exact_fill_value(self._dtype(i), value, where) for i in range(len(held.like))]

    @property
    def held(self) -> HeldRows:
        """The rows of the episodes that these are about."""
        return self._held

    def mask(self) -> npt.NDArray[np.bool_]:
        """Return a mask of the values that are the episode's own and no fill: bool, [rows] or [rows, k]."""
        counts = self._counts
        t = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts - self._starts + self._held.firsts, counts)
        indices = t[:, None] + np.array(self._shifts)
        sizes = self._held.counts()
        real: npt.NDArray[np.bool_] = (indices >= 0) & (indices < np.repeat(sizes, counts)[:, None])
        if self._held.real is not None:
            firsts = np.repeat(np.cumsum(sizes) - sizes, counts)[:, None]
            real[real] = np.concatenate(self._held.real)[(indices + firsts)[real]]
        return real[:, 0] if self._single else real

    def rows_and_bytes(self) -> tuple[int, int]:
        """Return the number of rows of `joined`, and the bytes of all its arrays."""
        rows = int(self._counts.sum())
        row = sum(math.prod(leaf.shape[1:]) * self._dtype(i).itemsize for i, leaf in enumerate(self._held.like))
        return rows, rows * row * len(self._shifts)

    def joined(self, *, halved: bool = False) -> Any:
        """Copies of all rows, chunk after chunk, in the column's nesting.

        Args:
            halved: Whether leaves that are float64 throughout become float32.
        """
        indices = None if self._single else self._places()
        return unflatten(self._held.form, [self._taken(i, indices, halved) for i in range(len(self._held.like))])

    def padded(self, layout: SequenceLayout) -> Any:
        """The arrays of shape [B, T, ...] in a padded layout, zeros where no row is; each is made once."""
        zeros = int(self._spans().sum())
        indices = np.append(self._places(), zeros)[layout.source]
        indices[layout.holes] = zeros
        leaves = [self._taken(i, indices, False) for i in range(len(self._held.like))]
        shape = (layout.num_sequences, layout.max_seq_len)
        return unflatten(self._held.form, [leaf.reshape(*shape, *leaf.shape[1:]) for leaf in leaves])

    def at(self, rows: Indices) -> Any:
        """Copies of some rows, in the column's nesting.

        Args:
            rows: Their numbers among all chunks' rows.
        """
        indices = self._places()[rows]
        return unflatten(self._held.form, [self._taken(i, indices, False) for i in range(len(self._held.like))])

    # -- rows side by side, with what is filled in ---------------------------------------------------

    def _spans(self) -> Indices:
        """Return the number of rows that each chunk's windows span."""
        spans: Indices = np.where(self._counts > 0, self._counts + self._reach - 1, 0)
        return spans

    def _places(self) -> Indices:
        """Return the start of each row's window among the rows that lie side by side."""
        spans, counts = self._spans(), self._counts
        firsts = np.cumsum(spans) - spans - (np.cumsum(counts) - counts)
        places: Indices = np.arange(counts.sum()) + np.repeat(firsts, counts)
        return places

    def _dtype(self, leaf: int, halved: bool = False) -> np.dtype[Any]:
        dtypes = {part.dtype for part in self._held.leaves[leaf] if len(part)}
        dtypes |= {tail[leaf].dtype for tail in self._held.tails.values()}
        dtype = np.result_type(*dtypes) if dtypes else self._held.like[leaf].dtype
        return np.dtype(np.float32) if halved and dtype == np.float64 and len(dtypes) < 2 else dtype

    def _taken(self, leaf: int, indices: Indices | None, halved: bool) -> Leaf:
        """The windows that begin at some rows of all that lie side by side; None: these rows themselves."""
        rows = self._side_by_side(leaf, halved)
        if indices is None:
            return rows[: len(rows) - self._reach]
        if self._single:
            return rows[indices]
        if self._shifts == list(range(self._low, self._low + self._reach)):
            out: Leaf = _windows(rows, self._reach)[indices]
        else:
            out = rows[indices[:, None] + (np.array(self._shifts) - self._low)]
        return out

    def _side_by_side(self, leaf: int, halved: bool) -> Leaf:
        """All chunks' rows with those filled in, and a window of zeros at the end."""
        template, parts = self._held.like[leaf], self._held.leaves[leaf]
        spans = self._spans()
        front = np.minimum(np.maximum(self._held.firsts - self._starts - self._low, 0), spans)
        back = spans - front - self._held.counts()
        max_rows = max(int(front.max(initial=0)), int(back.max(initial=0)))
        filler = np.full((max_rows, *template.shape[1:]), self._fills[leaf])
        fillers = {count: filler[:count] for count in {*front.tolist(), *back.tolist()}}
        arrays = [template] * (3 * len(parts) + 1)
        arrays[:-1:3] = [fillers[count] for count in front.tolist()]
        arrays[1::3] = parts
        arrays[2::3] = [fillers[count] for count in back.tolist()]
        arrays[-1] = np.zeros((self._reach, *template.shape[1:]), template.dtype)
        for chunk, tail in self._held.tails.items():
            arrays[3 * chunk + 1] = np.concatenate([parts[chunk], tail[leaf]])
        rows: Leaf = np.concatenate(arrays, dtype=self._dtype(leaf, halved), casting="same_kind")
        return rows


def _windows(rows: Leaf, width: int) -> Leaf:
    """The windows of `width` consecutive rows as a view: [rows - width + 1, width, ...]."""
    shape = (max(0, len(rows) - width + 1), width, *rows.shape[1:])
    return np.lib.stride_tricks.as_strided(rows, shape, (rows.strides[0], *rows.strides), writeable=False)
