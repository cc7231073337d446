"""The storage of a column: growable arrays, and its newest row while that is provisional."""

from __future__ import annotations

from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np

from epibatch.core.errors import ColumnError
from epibatch.core.structs import Form, flatten, flatten_like, form_of, unflatten

from .arrays import Leaf, as_value, copied, empty_leaf, fits, fits_exactly, owned, plain_types, promoted, roomier, store
from .buffer_source import NOTHING, BufferSource
from .lookback_buffer import LookbackBuffer

__all__ = ["GrowingColumn", "RowPlan"]

_ARRAY = np.ndarray
_NONE: frozenset[type] = frozenset()
_CELLS = "?bBhHiIlLqQfd"  # types that a memoryview can take in

RowPlan: TypeAlias = "tuple[Form, list[Any], list[np.dtype[Any] | None]]"


class GrowingColumn(LookbackBuffer):
    """Rows in growable arrays, one per leaf, time first; how they are read is left to subclasses.

    The newest row may be provisional. One that has the column's nesting, shapes and types lies in
    the arrays like any other; one that has not is held raw behind them.

    Args:
        space: The stream's Gymnasium space.

    Attributes:
        checked_for: The space that array rows are known to fit because of their shape, if that was checked.
        provisional: Whether the newest row can be replaced by one of another nesting, shape or type.
    """

    __slots__ = (
        "_accepts",
        "_cells",
        "_flat",
        "_form",
        "_leaves",
        "_pending",
        "_shape",
        "_source",
        "_stop",
        "_width",
        "checked_for",
        "provisional",
        "space",
    )

    def __init__(self, space: gym.Space[Any] | None = None) -> None:
        self.space = space
        self.lookback = self.t_started = 0
        self._form: Form = None
        self._leaves: list[Leaf] | None = None
        self._stop = 0
        self._pending: Any = NOTHING
        self.provisional = False
        self._source: BufferSource | None = None
        self._flat: Leaf | None = None
        self._accepts: frozenset[type] = _NONE
        self._cells: Any = None  # a memoryview of the array, if its rows are vectors
        self._width = 0
        self.checked_for: gym.Space[Any] | None = None

    def point(self, form: Form, leaves: list[Leaf] | None, stop: int) -> None:
        """Show these rows from now on (for the buffer's source)."""
        self._form, self._leaves, self._stop = form, leaves, stop
        self._pending, self.provisional = NOTHING, False

    def point_newest(self, pending: Any) -> None:
        """Call the newest row provisional (for the buffer's source).

        Args:
            pending: The row, if it is held apart from those pointed to; else NOTHING.
        """
        if pending is not NOTHING:
            self._pending = pending
            if self._leaves is None:
                self._form = form_of(pending)
        self.provisional = True

    @property
    def form(self) -> Form:
        """The nesting of the stream's rows."""
        return self._form

    def raw_row(self) -> Any:
        """The provisional row that is held apart from the column because it does not fit; else NOTHING."""
        if self._source is not None:
            self._source.sync(self)
        return self._pending

    def len_incl_lookback(self) -> int:
        """Number of rows, lookback included."""
        if self._source is not None:
            self._source.sync(self)
        return self._stop if self._pending is NOTHING else self._stop + 1

    def last(self) -> Any:
        """The newest row, as given if it is still provisional."""
        if self._source is not None:
            self._source.sync(self)
        if self._pending is not NOTHING:
            return self._pending
        leaves, stop = self._leaves, self._stop
        if leaves is None or not stop:
            raise self._out_of_range(-1, 0)
        if self._form is None:
            return leaves[0][stop - 1]
        return unflatten(self._form, [leaf[stop - 1] for leaf in leaves])

    def last_leaves(self, form: Form) -> list[Any]:
        """The leaves of the newest row, in the order of `form`.

        Raises:
            ColumnError: the row is nested differently.
        """
        if self._source is None and self._pending is NOTHING and self._form == form and self._leaves and self._stop:
            newest = self._stop - 1
            return [leaf[newest] for leaf in self._leaves]
        return flatten_like(form, self.last())

    # -- adding rows ---------------------------------------------------------------------------

    def put(self, item: Any) -> bool:
        """Add a row if the arrays can take it as it is.

        Args:
            item: The row.

        Returns:
            Whether it was added; if not, nothing changed and `plan` and `add` will do it.
        """
        try:
            if not self.lay(self._stop, item):
                return False
        except IndexError:
            self.make_room()
            return self.put(item)
        self._stop += 1
        return True

    def lay(self, position: int, item: Any) -> bool:
        """Write into a row of the array, one in use or the next one, if it can take the item as it is.

        Returns:
            Whether it was written; if not, nothing changed.

        Raises:
            IndexError: the array has no such row yet.
        """
        if type(item) is _ARRAY:
            cells = self._cells
            if cells is not None:
                begin = position * self._width
                try:
                    cells[begin : begin + self._width] = item
                    return True
                except ValueError:  # another length or type; or no such row
                    pass
            return self._lay_array(position, item)
        if type(item) not in self._accepts:
            return False
        try:
            self._flat[position] = item  # type: ignore[index]
        except OverflowError:  # a Python int that int64 cannot hold
            return False
        return True

    def _lay_array(self, position: int, item: Leaf) -> bool:
        leaf = self._flat
        if leaf is None or item.shape != self._shape or item.dtype != leaf.dtype:
            return False
        leaf[position] = item
        if self._cells is None:
            self._show_cells(leaf)
        return True

    def _show_cells(self, leaf: Leaf) -> None:
        """Let rows of numbers be written through a memoryview: it takes no array of another type or length."""
        if leaf.ndim == 2 and leaf.shape[1] and leaf.dtype.char in _CELLS and leaf.flags.carray:
            cells: Any = leaf.reshape(-1)
            self._cells, self._width = memoryview(cells), leaf.shape[1]

    def make_room(self) -> bool:
        """Make the array that `lay` writes to longer, if it is full; says whether it was."""
        leaf, stop = self._flat, self._stop
        if leaf is None or stop < len(leaf):
            return False
        leaf = roomier(leaf, stop)
        self._leaves, self._flat, self._cells = [leaf], leaf, None
        self._show_cells(leaf)
        return True

    def plan(self, item: Any) -> RowPlan:
        """Check a row and say which types the arrays need for it; nothing changes.

        Raises:
            ColumnError: another nesting than the rows before.
        """
        leaves = self._leaves
        if leaves is None:
            if not isinstance(item, (dict, tuple)):
                value = as_value(item)
                return None, [value], [value.dtype]
            values, form = flatten(item)
            return form, values, [as_value(value).dtype for value in values]
        values = flatten_like(self._form, item)
        return self._form, values, [fits(leaf, value) for leaf, value in zip(leaves, values)]

    def add(self, plan: RowPlan) -> None:
        """Add the row of a plan."""
        form, values, dtypes = plan
        if self._leaves is None and form is None:
            self._begin(values[0])
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
        self._settle()

    def _begin(self, value: Leaf) -> None:
        """Make the array of a column that has none, of its first row."""
        leaf = empty_leaf(value)
        store(leaf, 0, value)
        self._form, self._leaves, self._stop = None, [leaf], 1
        self._settle()
        if self._flat is not None:
            self._show_cells(leaf)

    def drop_last(self) -> None:
        """Take back the newest row of a column that owns its rows."""
        if self._pending is not NOTHING:
            self._pending = NOTHING
            self._settle()
        else:
            self._stop -= 1
        self.provisional = False

    def append(self, item: Any) -> None:
        """Add one row; a provisional row becomes final first.

        Args:
            item: A row, nested like the rows before it.

        Raises:
            ColumnError: another nesting than the rows before.
        """
        if not self.put(item):
            self.own()
            plan = self.plan(item)
            if self._pending is not NOTHING:
                self.commit()
                plan = self.plan(item)
            self.add(plan)
        self.provisional = False

    def stage(self, item: Any) -> None:
        """Add one row that stays provisional until the next one comes.

        Args:
            item: The row, in any nesting, shape and type.

        Raises:
            ColumnError: the provisional row before it does not fit the column; nothing changed.
        """
        if not self.put(item):
            self.own()
            if self._pending is not NOTHING:
                self.commit()
            self._stage(item)
        self.provisional = True

    def _stage(self, item: Any) -> None:
        if not self._stop:
            self._leaves = None
        leaves = self._leaves
        if leaves is None:
            self.add(self.plan(item))
            return
        values = self.leaves_of(item)
        if values is not None and all(fits_exactly(leaf, value) for leaf, value in zip(leaves, values)):
            self.add((self._form, values, [leaf.dtype for leaf in leaves]))
        else:
            self._pending = owned(item)
            self._settle()

    def leaves_of(self, row: Any) -> list[Any] | None:
        """The leaves of a row in the order of the column's; None if it is nested differently."""
        values, form = flatten(row)
        if form == self._form:
            return values
        if form is None or self._form is None:
            return None
        try:
            return flatten_like(self._form, row)  # keys in another order
        except ColumnError:
            return None

    def _restage(self, item: Any) -> None:
        """Put another row in the place of the provisional one."""
        if self._pending is NOTHING:
            self._stop -= 1
        self._pending = NOTHING
        self._stage(item)
        self.provisional = True

    def restore_newest(self, raw: list[Any], provisional: bool) -> None:
        """Bring back what `raw_row` (at most one) and `provisional` said of a column with these rows."""
        for row in raw:
            self._stage(row)
        self.provisional = provisional

    def commit(self) -> None:
        """Make the provisional row final.

        Raises:
            ColumnError: it is nested differently than the rows before; it is kept.
        """
        if self._source is not None:
            self._source.sync(self)
        elif self._pending is not NOTHING:
            plan = self.plan(self._pending)
            self._pending = NOTHING
            self.add(plan)
        self.provisional = False

    def replace(self, form: Form, leaves: list[Leaf], count: int) -> None:
        """Hold these `count` rows, as given, in place of those before."""
        self._form, self._leaves, self._stop, self._pending = form, leaves, count, NOTHING
        self._settle()

    def own(self, change: str = "an operation that adds or removes rows") -> None:
        """Make sure that this column owns its rows, copying them out of a block if needed.

        Args:
            change: What it is for, should that be refused.

        Raises:
            EpisodeStateError: the rows are still being recorded.
        """
        source = self._source
        if source is None:
            return
        source.sync(self)
        source.release(change)
        self._source = None
        self._leaves = [copied(leaf[: self._stop]) for leaf in self._leaves or []] or None
        pending, self._pending = self._pending, NOTHING
        self._settle()
        if pending is not NOTHING:
            self.stage(pending)

    def _settle(self) -> None:
        """Note, after the arrays changed, which rows `put` may write as they are."""
        leaves = self._leaves
        self._flat, self._cells, self._accepts, self.checked_for = None, None, _NONE, None
        if leaves is None or self._form is not None or self._pending is not NOTHING or self._source is not None:
            return
        leaf = leaves[0]
        if leaf.dtype.kind in "biufc" and leaf.dtype.isnative:
            self._flat, self._shape = leaf, leaf.shape[1:]
            if leaf.ndim == 1:
                self._accepts = plain_types(leaf.dtype)

    def share_kind(self, other: GrowingColumn, leaf: Leaf) -> None:
        """Hold `leaf`, which is of the same shape and type as the one array of `other`."""
        self._leaves, self._stop = [leaf], len(leaf)
        self._flat, self._shape, self._accepts, self._cells = leaf, other._shape, other._accepts, None

    def _promote(self, i: int, dtype: np.dtype[Any] | None) -> Leaf:
        """Leaf `i` with another dtype, in place of the one before."""
        leaves = self._leaves or []
        if dtype is None or dtype != leaves[i].dtype:
            if self._source is not None:
                self._source.promote(i, dtype)
                self._source.sync(self)
            else:
                leaves[i] = promoted(leaves[i], self._stop, dtype)
                self._settle()
        return (self._leaves or [])[i]
