"""Reading a column: a slow model of it, in which every listed difference from RLlib can be switched on.

With nothing switched on it says what Python's rules for lists give, which is what epibatch has to give; with all
listed differences switched on it says what RLlib gives according to the page. So a mismatch is explained exactly if
both sides give what the model says, and what explains it are the differences that change what the model gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import index as as_index
from typing import Any

import gymnasium as gym
import numpy as np

from oracle.compare import Mismatch, Outcome, each, leaves, outcome, position, same, space_struct
from oracle.differences import IDS, difference

SWITCHES = (
    *("columns", "column-types", "rewards-space", "fill-value", "one-hot-no-rows"),
    *("O19", "O20", "O44", "O58", "O59"),
)
FILL = object()


@dataclass(frozen=True)
class Read:
    """A read of a column.

    Attributes:
        rows: the column's rows as RLlib holds them, lookback included.
        columns: the same rows stacked; None if there are none.
        space: the space that RLlib's column has.
        our_space: the space that ours has.
        arrays: whether RLlib's column is arrays by now.
        objects: whether it is a column of Python objects (infos), which are never stacked.
    """

    rows: list[Any]
    columns: Any
    lookback: int
    space: gym.Space[Any] | None
    our_space: gym.Space[Any] | None
    arrays: bool
    indices: Any
    neg_index_as_lookback: bool = False
    fill: Any = None
    one_hot: bool = False
    objects: bool = False


def expected(read: Read, on: frozenset[str]) -> Outcome:
    """What a read gives if these differences are switched on."""
    return outcome(lambda: _Reader(read, on).get())


class _Reader:
    """One read, with some differences switched on."""

    def __init__(self, read: Read, on: frozenset[str]) -> None:
        self.read, self.on = read, on
        self.total = len(read.rows)
        self.space = read.space if "rewards-space" in on else read.our_space
        self.lists = read.objects or ("columns" in on and not read.arrays)

    def get(self) -> Any:
        read, indices = self.read, self.read.indices
        if read.one_hot and self.space is None and "one-hot-no-rows" not in self.on:
            raise ValueError("no space")
        if indices is None or isinstance(indices, slice):
            items = self._slice(slice(None) if indices is None else indices)
            return self._several(items)
        if "O20" in self.on and not isinstance(indices, (int, list)):
            raise AssertionError("neither an int nor a slice nor a list")
        if isinstance(indices, (list, tuple, np.ndarray)):
            if "O44" in self.on:  # RLlib goes from index to index and stops at the first error, of whatever kind
                for i in indices:
                    self._row(self._at(as_index(i)))
            items = [self._at(as_index(i)) for i in indices]
            if "O59" in self.on and read.arrays and not items:
                raise ValueError("no rows to stack")
            return self._several(items)
        return self._row(self._at(as_index(indices)))

    def _at(self, index: int) -> Any:
        """Where an index points, or FILL."""
        read = self.read
        at = position(index, read.lookback, self.total, read.neg_index_as_lookback)
        if 0 <= at < self.total:
            return at
        if read.fill is not None:
            return FILL
        plain = read.arrays and isinstance(read.columns, np.ndarray) and not read.one_hot
        if "O19" in self.on and plain and read.neg_index_as_lookback and -self.total <= at < 0:
            return self.total + at
        raise IndexError(index)

    # -- slices --------------------------------------------------------------------------------

    def _slice(self, wanted: slice) -> list[Any]:
        read, total = self.read, self.total
        step = 1 if wanted.step is None else as_index(wanted.step)
        first, last = read.lookback, total
        if step < 0 and "O20" not in self.on:
            first, last = total - 1, read.lookback - 1
        start, stop = (
            default if bound is None else position(as_index(bound), read.lookback, total, read.neg_index_as_lookback)
            for bound, default in ((wanted.start, first), (wanted.stop, last))
        )
        if "O59" in self.on and not total and start >= 0 > stop:
            raise AssertionError("a slice of an empty column")
        low, high = (max(start, 0), min(stop, total)) if step > 0 else (min(start, total - 1), max(stop, -1))
        rows = list(range(low, high, step))
        if read.fill is None:
            return rows
        if ("O58" if step == 1 else "O20") in self.on:
            left, right = self._their_padding(start, stop)
            return [FILL] * left + rows + [FILL] * right
        return [at if 0 <= at < total else FILL for at in range(start, stop, step)]

    def _their_padding(self, start: int, stop: int) -> tuple[int, int]:
        """Fill rows on both sides: one bound alone is looked at, and neither the step nor which one comes first."""
        beyond = self.total
        if start < 0 > stop:
            return abs(start - stop), 0
        if start >= beyond <= stop:
            return 0, abs(start - stop)
        if start < 0:
            return -start, 0
        if stop < 0:
            return max(start - beyond + 1, 0), -stop - 1
        return 0, max(stop - beyond, 0)

    # -- rows ----------------------------------------------------------------------------------

    def _row(self, item: Any) -> Any:
        read = self.read
        if item is FILL:
            return self._fill_rows(None)
        if read.objects or read.columns is None or ("column-types" in self.on and not read.arrays):
            row = read.rows[item]
        else:
            row = each(lambda leaf: leaf[item], read.columns)
        return self._hot(row, 0) if read.one_hot else row

    def _several(self, items: list[Any]) -> Any:
        if self.lists:
            if self.read.one_hot and self.read.indices is None and self.space is None:
                raise ValueError("no space, with or without rows")
            return [self._row(item) for item in items]
        if FILL in items and "O20" in self.on and self.read.arrays:
            return self._theirs_filled(items)
        real = [item for item in items if item is not FILL]
        if not real:
            return self._fill_rows(len(items)) if items else self._no_rows()
        rows = each(lambda leaf: leaf[real], self.read.columns)
        if self.read.one_hot:
            rows = self._hot(rows, 1)
        missing = np.array([item is FILL for item in items])
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
        read = self.read
        if read.columns is None and self.space is None:
            return np.empty(0)
        if read.columns is None:
            rows = each(lambda leaf: np.zeros((0, *leaf.shape), leaf.dtype), space_struct(self.space))
        else:
            rows = each(lambda leaf: leaf[:0], read.columns)
        if not read.one_hot:
            return rows
        if "one-hot-no-rows" in self.on:
            if read.indices is not None:
                return rows
            if self.space is None or self._discrete():
                raise ValueError("no rows")
            return rows
        return self._hot(rows, 1)

    def _theirs_filled(self, items: list[Any]) -> Any:
        """RLlib puts fill rows beside the real ones and lets NumPy find a type for both."""
        if isinstance(self.read.indices, list):
            rows = [self._row(item) for item in items]
            nested = isinstance(rows[0], (dict, tuple))
            return each(_stacked_like_the_first, *rows) if nested else _stacked_like_the_first(*rows)
        real = [item for item in items if item is not FILL]
        left = items.index(real[0]) if real else len(items)
        right = len(items) - left - len(real)
        parts = [self._fill_rows(left)] if left else []
        if real:
            rows = each(lambda leaf: leaf[real], self.read.columns)
            parts.append(self._hot(rows, 1) if self.read.one_hot else rows)
        parts += [self._fill_rows(right)] if right else []
        return each(lambda *leaf: np.concatenate(leaf), *parts)

    # -- fill rows and one-hot rows ------------------------------------------------------------

    def _fill_rows(self, count: int | None) -> Any:
        """One fill row, or `count` of them stacked."""
        read = self.read
        lead = () if count is None else (count,)
        if read.objects:
            return read.fill
        typed_by_space = "O20" in self.on or read.columns is None
        if typed_by_space and self.space is None:
            return read.fill if count is None else np.array([read.fill] * count)
        if read.one_hot:
            return each(lambda leaf: self._hot_fill(leaf, lead), space_struct(self.space))
        if typed_by_space:
            return each(lambda leaf: self._filled((*lead, *leaf.shape), leaf.dtype), space_struct(self.space))
        return each(lambda leaf: self._filled((*lead, *leaf.shape[1:]), self._type_with_fill(leaf.dtype)), read.columns)

    def _type_with_fill(self, dtype: Any) -> Any:
        """The type of rows without a space beside fill rows: one that holds both, as NumPy finds it for RLlib."""
        with np.errstate(invalid="ignore"):
            fill = np.asarray(self.read.fill)
            held = self.space is not None or dtype.kind not in "biu" or fill.astype(dtype) == fill
        return dtype if held else np.result_type(dtype, fill.dtype)

    def _hot_fill(self, leaf: gym.Space[Any], lead: tuple[int, ...]) -> Any:
        if isinstance(leaf, gym.spaces.Discrete):
            return self._filled((*lead, int(leaf.n)), np.float32)
        if isinstance(leaf, gym.spaces.MultiDiscrete):
            return self._filled((*lead, int(leaf.nvec.sum())), np.float32)
        return self._filled((*lead, *leaf.shape), leaf.dtype)

    def _filled(self, shape: tuple[int, ...], dtype: Any) -> Any:
        if "fill-value" in self.on:
            return np.full(shape, self.read.fill, dtype)
        try:
            return np.full(shape, np.array(self.read.fill, dtype), dtype)
        except OverflowError as error:
            raise ValueError(str(error)) from error

    def _discrete(self) -> bool:
        kinds = (gym.spaces.Discrete, gym.spaces.MultiDiscrete)
        return any(isinstance(leaf, kinds) for leaf in leaves(space_struct(self.space)))

    def _hot(self, rows: Any, lead: int) -> Any:
        if self.space is None:
            raise ValueError("no space")
        return each(lambda leaf, space: self._hot_leaf(leaf, space, lead), rows, space_struct(self.space))

    def _hot_leaf(self, values: Any, space: Any, lead: int) -> Any:
        if isinstance(space, gym.spaces.Discrete):
            start = 0 if "O44" in self.on else space.start
            return self._eye(np.asarray(values) - start, int(space.n))
        if not isinstance(space, gym.spaces.MultiDiscrete):
            return values
        if "O44" in self.on and space.nvec.ndim > 1:
            raise ValueError("more than one axis")
        values = np.asarray(values) - (0 if "O44" in self.on else space.start)
        flat = values.reshape(*values.shape[:lead], space.nvec.size)
        parts = [self._eye(flat[..., i], int(n)) for i, n in enumerate(space.nvec.ravel())]
        return np.concatenate(parts, -1)

    def _eye(self, numbers: Any, count: int) -> Any:
        if numbers.size and numbers.max() >= count:
            raise AssertionError("a number beyond the space")
        return (numbers[..., None] == np.arange(count)).astype(np.float32)


def _stacked_like_the_first(*rows: Any) -> Any:
    first = rows[0]
    if not isinstance(first, np.ndarray):
        return np.array(rows)
    out = np.empty((len(rows), *first.shape), first.dtype)
    for i, row in enumerate(rows):
        out[i] = row
    return out


def _same_outcome(a: Outcome, b: Outcome) -> bool:
    return a.kind == b.kind and bool(a.kind or same(a.value, b.value))


def _as_outcome(side: Any) -> Outcome:
    return Outcome(error=side) if isinstance(side, Exception) else Outcome(side)


def _explanation(identity: str) -> None:
    @difference(identity, Read)
    def explains(read: Read, mismatch: Mismatch) -> bool:
        on = IDS.intersection(SWITCHES)
        theirs, ours = expected(read, on), expected(read, frozenset())
        if not _same_outcome(theirs, _as_outcome(mismatch.theirs)) or not _same_outcome(
            ours, _as_outcome(mismatch.ours)
        ):
            return False
        alone, others = expected(read, frozenset({identity})), expected(read, on - {identity})
        return not (_same_outcome(theirs, others) and _same_outcome(ours, alone))


for _identity in reversed(SWITCHES):
    _explanation(_identity)
