"""Reading a column: a slow model of it by Python's rules for lists, and where RLlib is listed to give something else.

What epibatch gives has to be what the model says, always. What RLlib gives has to be the same, but for the situations
of the listed differences.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import index as as_index
from typing import Any

import gymnasium as gym
import numpy as np

from oracle.compare import (
    Mismatch,
    Outcome,
    difference,
    each,
    first_of,
    leaves,
    outcome,
    position,
    settle,
    space_struct,
)

FILL = object()


@dataclass(frozen=True)
class Read:
    """A read of a column.

    Attributes:
        rows: the column's rows, lookback included, if it holds Python objects (infos), which are never stacked.
        columns: the rows stacked otherwise; None if there are none and nothing says of what type they would be.
        space: the space that RLlib's column has.
        our_space: the space that ours has.
        arrays: whether RLlib's column is arrays by now.
    """

    rows: list[Any] | None
    columns: Any
    lookback: int
    space: gym.Space[Any] | None
    our_space: gym.Space[Any] | None
    arrays: bool
    indices: Any
    neg_index_as_lookback: bool = False
    fill: Any = None
    one_hot: bool = False

    @property
    def total(self) -> int:
        if self.rows is not None:
            return len(self.rows)
        return 0 if self.columns is None else len(leaves(self.columns)[0])

    @property
    def step(self) -> int | None:
        """The step of a slice; None for other indices."""
        return (self.indices.step or 1) if isinstance(self.indices, slice) else None


def compare_read(
    theirs: Any, ours: Any, indices: Any, call: Any = None, *, objects: bool = False, **options: Any
) -> None:
    """Read a buffer of each library, and settle what both give.

    Args:
        theirs: RLlib's.
        ours: ours.
        indices: which rows.
        call: does it, given 0 for RLlib and 1 for ours; without it the buffers' own `get` is called.
        objects: whether it is a column of Python objects.
        **options: `neg_index_as_lookback`, `fill`, `one_hot`.
    """
    typed = ours.len_incl_lookback() or bool(getattr(ours, "leaves", ()))  # rows, or none but their type
    rows, columns = (list(ours.data), None) if objects else (None, ours.data if typed else None)
    read = Read(rows, columns, ours.lookback, theirs.space, ours.space, theirs.finalized, indices, **options)
    keywords = {key: value for key, value in options.items() if key != "one_hot"}
    if read.one_hot:
        keywords["one_hot_discrete"] = True
    call = call or (lambda side: (theirs, ours)[side].get(indices, **keywords))
    found, expected = [outcome(lambda side=side: call(side)) for side in (0, 1)], slow_read(read)
    assert found[1].kind == expected.kind, (read, expected, found[1])
    assert expected.kind or not first_of()(expected.value, found[1].value), (read, expected, found[1])
    settle(*found, read, first_of())


def slow_read(read: Read) -> Outcome:
    """What a read gives."""
    return outcome(lambda: _Reader(read).get())


class _Reader:
    def __init__(self, read: Read) -> None:
        self.read, self.total, self.space = read, read.total, read.our_space

    def get(self) -> Any:
        read, indices = self.read, self.read.indices
        if read.one_hot and self.space is None:
            raise ValueError("no space")
        if indices is None or isinstance(indices, slice):
            return self._several(self._slice(slice(None) if indices is None else indices))
        if isinstance(indices, (list, tuple, np.ndarray)):
            return self._several([self._at(as_index(i)) for i in indices])
        return self._row(self._at(as_index(indices)))

    def _at(self, index: int) -> Any:
        """Where an index points, or FILL."""
        at = position(index, self.read.lookback, self.total, self.read.neg_index_as_lookback)
        if 0 <= at < self.total:
            return at
        if self.read.fill is not None:
            return FILL
        raise IndexError(index)

    def _slice(self, wanted: slice) -> list[Any]:
        read, total = self.read, self.total
        step = 1 if wanted.step is None else as_index(wanted.step)
        first, last = (read.lookback, total) if step > 0 else (total - 1, read.lookback - 1)
        start, stop = (
            default if bound is None else position(as_index(bound), read.lookback, total, read.neg_index_as_lookback)
            for bound, default in ((wanted.start, first), (wanted.stop, last))
        )
        if read.fill is not None:
            return [at if 0 <= at < total else FILL for at in range(start, stop, step)]
        low, high = (max(start, 0), min(stop, total)) if step > 0 else (min(start, total - 1), max(stop, -1))
        return list(range(low, high, step))

    # -- rows ----------------------------------------------------------------------------------

    def _row(self, item: Any) -> Any:
        if item is FILL:
            return self._fill_rows(None)
        if self.read.rows is not None:
            return self.read.rows[item]
        row = each(lambda leaf: leaf[item], self.read.columns)
        return self._hot(row, 0) if self.read.one_hot else row

    def _several(self, items: list[Any]) -> Any:
        if self.read.rows is not None:
            return [self._row(item) for item in items]
        real = [item for item in items if item is not FILL]
        if not real and items:
            return self._fill_rows(len(items))
        rows = each(lambda leaf: leaf[real], self.read.columns) if real else self._no_rows()
        if self.read.one_hot:
            rows = self._hot(rows, 1)
        missing = np.array([item is FILL for item in items], bool)
        return each(lambda leaf: self._spread(leaf, missing), rows)

    def _spread(self, leaf: Any, missing: Any) -> Any:
        """Rows of a leaf where they are not missing, fill rows of its type elsewhere."""
        kind = self._type_with_fill(leaf.dtype) if missing.any() else leaf.dtype
        out = np.empty((len(missing), *leaf.shape[1:]), kind)
        out[~missing] = leaf
        if missing.any():
            out[missing] = self._filled((), kind)
        return out

    def _no_rows(self) -> Any:
        if self.read.columns is not None:
            return each(lambda leaf: leaf[:0], self.read.columns)
        if self.space is None:
            return np.empty(0)
        return each(lambda leaf: np.zeros((0, *leaf.shape), leaf.dtype), space_struct(self.space))

    # -- fill rows and one-hot rows ------------------------------------------------------------

    def _fill_rows(self, count: int | None) -> Any:
        """One fill row, or `count` of them stacked."""
        read, lead = self.read, () if count is None else (count,)
        if read.rows is not None:
            return read.fill
        if read.columns is None and self.space is None:
            return read.fill if count is None else np.array([read.fill] * count)
        if read.one_hot:
            return each(lambda leaf: self._hot_fill(leaf, lead), space_struct(self.space))
        if read.columns is None:
            return each(lambda leaf: self._filled((*lead, *leaf.shape), leaf.dtype), space_struct(self.space))
        return each(lambda leaf: self._filled((*lead, *leaf.shape[1:]), self._type_with_fill(leaf.dtype)), read.columns)

    def _type_with_fill(self, dtype: Any) -> Any:
        """The type of rows without a space beside fill rows: one that holds both."""
        with np.errstate(invalid="ignore"):
            fill = np.asarray(self.read.fill)
            fits = self.space is not None or dtype.kind not in "biu" or fill.astype(dtype) == fill
        return dtype if fits else np.result_type(dtype, fill.dtype)

    def _hot_fill(self, leaf: Any, lead: tuple[int, ...]) -> Any:
        if isinstance(leaf, (gym.spaces.Discrete, gym.spaces.MultiDiscrete)):
            return self._filled((*lead, int(np.sum(getattr(leaf, "nvec", getattr(leaf, "n", 0))))), np.float32)
        return self._filled((*lead, *leaf.shape), leaf.dtype)

    def _filled(self, shape: tuple[int, ...], dtype: Any) -> Any:
        try:
            return np.full(shape, np.array(self.read.fill, dtype), dtype)
        except OverflowError as error:
            raise ValueError(str(error)) from error

    def _hot(self, rows: Any, lead: int) -> Any:
        return each(lambda leaf, space: self._hot_leaf(leaf, space, lead), rows, space_struct(self.space))

    def _hot_leaf(self, values: Any, space: Any, lead: int) -> Any:
        if isinstance(space, gym.spaces.Discrete):
            return _eye(np.asarray(values) - space.start, int(space.n))
        if not isinstance(space, gym.spaces.MultiDiscrete):
            return values
        values = np.asarray(values) - space.start
        flat = values.reshape(*values.shape[:lead], space.nvec.size)
        return np.concatenate([_eye(flat[..., i], int(n)) for i, n in enumerate(space.nvec.ravel())], -1)


def _eye(numbers: Any, count: int) -> Any:
    if numbers.size and numbers.max() >= count:
        raise AssertionError("a number beyond the space")
    return (numbers[..., None] == np.arange(count)).astype(np.float32)


# -- where RLlib gives something else --------------------------------------------------------------


@difference("O59", Read)
def no_rows_to_read(read: Read, mismatch: Mismatch) -> bool:
    """RLlib fails on an empty list of indices, and on some slices of a column without rows."""
    listed = isinstance(read.indices, (list, slice, tuple)) and (not read.total or read.indices in ([], ()))
    return isinstance(mismatch.theirs, Exception) and listed


@difference("one-hot-no-rows", Read)
def one_hots_of_no_rows(read: Read, mismatch: Mismatch) -> bool:
    if not read.one_hot:
        return False
    return read.our_space is None or isinstance(mismatch.theirs, ValueError) or not np.size(leaves(mismatch.ours)[0])


@difference("O44", Read)
def one_hots_of_choices_with_a_start_or_several_axes(read: Read, mismatch: Mismatch) -> bool:
    if not read.one_hot or read.space is None:
        return False
    spaces = leaves(space_struct(read.space))
    return any(np.any(getattr(leaf, "start", 0)) or np.ndim(getattr(leaf, "nvec", 0)) > 1 for leaf in spaces)


@difference("rewards-space", Read)
def rewards_have_a_space(read: Read, mismatch: Mismatch) -> bool:
    return read.space is not None and read.our_space is None and (read.fill is not None or not read.total)


@difference("fill-value", Read)
def a_fill_value_that_no_row_can_hold(read: Read, mismatch: Mismatch) -> bool:
    return read.fill is not None and isinstance(mismatch.ours, ValueError)


@difference("O19", Read)
def indices_before_the_lookback(read: Read, mismatch: Mismatch) -> bool:
    """On arrays RLlib's go around to the newest rows."""
    return read.arrays and read.neg_index_as_lookback and isinstance(mismatch.ours, IndexError)


@difference("O58", Read)
def a_slice_filled_on_one_side(read: Read, mismatch: Mismatch) -> bool:
    return read.fill is not None and read.step == 1 and mismatch.kind in ("length", "shape")


@difference("O20", Read)
def other_indices_and_types_of_fill_rows(read: Read, mismatch: Mismatch) -> bool:
    """RLlib refuses NumPy integers and tuples, has no open slices backwards, and fill rows of other types."""
    known = read.indices is None or isinstance(read.indices, (int, list, slice))
    return not known or read.step not in (None, 1) or read.fill is not None


@difference("columns", Read)
def rows_in_a_list(read: Read, mismatch: Mismatch) -> bool:
    return not read.arrays and isinstance(mismatch.theirs, list) and not isinstance(mismatch.ours, Exception)


@difference("column-types", Read)
def rows_of_their_own_types(read: Read, mismatch: Mismatch) -> bool:
    return not read.arrays and mismatch.kind in ("dtype", "type", "value", "layout")
