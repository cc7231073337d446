"""Rows of one stream in arrays that grow: what an episode of its own and a block keep their columns in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import gymnasium as gym
import numpy as np

from epibatch.core.structs import Form, flatten, flatten_like, unflatten

from ..arrays import (
    Leaf,
    as_value,
    copied,
    empty_leaf,
    first_capacity,
    fits,
    fits_exactly,
    leaves_like,
    owned,
    plain_types,
    promoted,
    roomier,
    store,
    unaliased,
)

_ARRAY = np.ndarray
NO_TYPES: frozenset[type] = frozenset()
_CELLS = "?bBhHiIlLqQfd"  # types that a memoryview can take in

_HELD = ("capacity", "form", "leaves", "pending", "provisional", "settled", "stop")

RowPlan: TypeAlias = "tuple[Form, list[Any], list[np.dtype[Any] | None]]"


class _Nothing:
    """Marks the absence of a row (None is a legal observation); copies of it are the mark itself."""

    def __reduce__(self) -> str:
        return "NOTHING"


NOTHING: Final = _Nothing()


class GrowingColumn:
    """Rows of one stream of N environments: each leaf is one array of shape [capacity, N, ...].

    A subclass with `axes = 1` has the rows of one: each leaf is one array of shape [capacity, ...].

    The column's type is that of its first rows; later rows promote it and never cast down. A leaf whose rows change
    their shape becomes an array of objects.

    The newest row of observations is provisional. If it has the column's nesting, shapes and types, it lies in the
    arrays like any other row; otherwise it is `pending`, apart from them.

    Args:
        form: Nesting of its rows.
        leaves: Its arrays, as given; none before there are rows.
        capacity: Rows to make room for at first; None: as many as fit into a few kilobytes.

    Attributes:
        axes: How many axes of its arrays number rows.
        stop: How many rows lie in the arrays. More may be there, which do not count yet.
        settled: Whether the arrays keep their types when their only row is replaced: a row of them was final.
        pending: The newest row, if it is held apart from the others; else NOTHING.
        provisional: Whether the newest row, until another one follows, can be replaced by one of another nesting, shape
            or type.
        read_only: Whether the arrays lie in memory of another process, which cannot be written to.
        flat: The one array, if `lay` may write rows into it as they are.
        row_shape: The shape of its rows.
        accepts: The types of scalars that it holds as they are.
        cells: A memoryview of it, if its rows are vectors.
        width: The numbers in such a row.
        checked_for: The space that all rows in the array were checked against, if they were.
    """

    __slots__ = (
        "accepts",
        "capacity",
        "cells",
        "checked_for",
        "flat",
        "form",
        "leaves",
        "pending",
        "provisional",
        "read_only",
        "row_shape",
        "settled",
        "stop",
        "width",
    )

    axes = 2

    def __init__(self, form: Form = None, leaves: Sequence[Leaf] = (), capacity: int | None = None) -> None:
        self.capacity, self.form = capacity, form
        self.leaves: list[Leaf] = []
        self.stop = 0
        self.pending: Any = NOTHING
        self.provisional = self.read_only = self.settled = False
        self.flat: Leaf | None = None
        self.accepts: frozenset[type] = NO_TYPES
        self.cells: Any = None
        self.checked_for: gym.Space[Any] | None = None
        if leaves:
            self.read_only = not all(leaf.flags.writeable for leaf in leaves)
            self.replace(form, leaves, len(leaves[0]))

    def __getstate__(self) -> dict[str, Any]:
        """Return what makes the column, without the notes about its arrays."""
        return {name: getattr(self, name) for name in _HELD}

    def __setstate__(self, state: dict[str, Any]) -> None:
        GrowingColumn.__init__(self)
        for name, value in state.items():
            setattr(self, name, value)
        self.read_only = not all(leaf.flags.writeable for leaf in self.leaves)
        self.renew()

    @property
    def is_new(self) -> bool:
        """True if nothing shows what a row is like."""
        return not self.leaves and self.form is None

    def replace(self, form: Form = None, leaves: Sequence[Leaf] = (), count: int = 0) -> None:
        """Hold these `count` rows, as given, in place of those before."""
        self.form, self.leaves, self.stop = form, list(leaves), count
        self.pending = NOTHING
        self.renew()

    def make_writable(self) -> None:
        """Copy arrays that cannot be written to."""
        if self.read_only:
            self.leaves, self.read_only = list(map(copied, self.leaves)), False
            self.renew()

    def renew(self) -> None:
        """Note, after the arrays changed, which rows `lay` may write as they are."""
        self.flat, self.cells, self.accepts, self.checked_for = None, None, NO_TYPES, None
        if not self.leaves or self.form is not None or self.read_only:
            return
        leaf = self.leaves[0]
        if leaf.dtype.kind in "biufc" and leaf.dtype.isnative:
            self.flat, self.row_shape = leaf, leaf.shape[1:]
            if leaf.ndim == 1:
                self.accepts = plain_types(leaf.dtype)

    def note_checked(self, space: gym.Space[Any] | None, row: Any) -> None:
        """Note that all rows that `lay` takes fit a space, if that follows from this row, which fits it."""
        if self.flat is None:
            return
        if type(row) in self.accepts if self.flat.ndim == 1 else as_value(row).shape == self.row_shape:
            self.checked_for = space

    # -- rows that fit as they are ---------------------------------------------------------------

    def lay(self, position: int, item: Any) -> bool:
        """Write into a row of the array, one in use or a later one, if it can take the item as it is.

        Returns:
            Whether it was written; if not, nothing changed.

        Raises:
            IndexError: the array has no such row yet.
        """
        if type(item) is not _ARRAY:
            if type(item) not in self.accepts:
                return False
            try:
                self.flat[position] = item  # type: ignore[index]
            except OverflowError:  # a Python int that int64 cannot hold
                return False
            return True
        cells = self.cells
        if cells is not None:
            begin = position * self.width
            try:
                cells[begin : begin + self.width] = item
                return True
            except ValueError:  # another length or type; or no such row
                pass
        leaf = self.flat
        if leaf is None or item.shape != self.row_shape or item.dtype != leaf.dtype:
            return False
        leaf[position] = item
        if cells is None:
            self._show_cells(leaf)
        return True

    def _show_cells(self, leaf: Leaf) -> None:
        """Let rows of numbers be written through a memoryview: it takes no array of another type or length."""
        if leaf.ndim == 2 and leaf.shape[1] and leaf.dtype.char in _CELLS and leaf.flags.carray:
            cells: Any = leaf.reshape(-1)
            self.cells, self.width = memoryview(cells), leaf.shape[1]

    def lay_or_grow(self, position: int, item: Any) -> bool:
        """Write a row if the array can take it as it is, and make the array longer if it is full."""
        try:
            return self.lay(position, item)
        except IndexError:
            self.make_room(position + 1)
            return self.lay(position, item)

    def make_room(self, rows: int) -> bool:
        """Make arrays with fewer rows longer; return True if they had fewer."""
        if not self.leaves or len(self.leaves[0]) >= rows:
            return False
        checked = self.checked_for
        self.leaves = roomier(self.leaves, rows)
        self.renew()
        self.checked_for = checked
        return True

    def exact_leaves(self, item: Any, env: int | None = None) -> Sequence[Any] | None:
        """Return the leaves of a row that has the column's nesting, shapes and types exactly; None if it has not.

        Args:
            item: The row.
            env: The environment whose row it is; None: a row of the column.
        """
        values = leaves_like(self.form, item)
        like = self.leaves if env is None else [leaf[:, env] for leaf in self.leaves]
        if values is None or not all(map(fits_exactly, like, values)):
            return None
        if self.axes > 1 and any(leaf.dtype.kind == "O" for leaf in like):  # rows of environments may differ
            return None
        return unaliased(values)

    # -- adding rows -----------------------------------------------------------------------------

    def plan(self, item: Any) -> RowPlan | None:
        """Check a row and find the types that the arrays need for it; nothing changes.

        Returns:
            What `add` is to do; None if the row lies after those in use already, and only has to be counted.

        Raises:
            ColumnError: another nesting than the rows before.
        """
        if self.flat is not None and self.lay_or_grow(self.stop, item):
            return None
        if self.form is None and not self.leaves:
            if not isinstance(item, (dict, tuple)):
                value = as_value(item)
                return None, [value], [value.dtype]
            values, form = flatten(item)
            values = list(map(as_value, values))
            return form, values, [value.dtype for value in values]
        values = flatten_like(self.form, item)
        return self.form, values, list(map(fits, self.leaves, values))

    def add(self, plan: RowPlan | None) -> None:
        """Add the row of a plan."""
        if plan is not None:
            form, values, dtypes = plan
            if self.form is None and not self.leaves:
                self.form = form
                capacity = first_capacity(values) if self.capacity is None else self.capacity
                self.leaves += [empty_leaf(value, capacity) for value in values]
                self.renew()
            if self.leaves and self.stop >= len(self.leaves[0]):
                self.make_room(self.stop + 1)
            self.write(self.stop, values, dtypes)
        self.stop += 1

    def add_rows(self, rows: Sequence[Leaf], count: int) -> None:
        """Add `count` rows: the leaves, stacked, of rows of the column's nesting."""
        stop = self.stop + count
        dtypes = [fits(leaf, values, values.shape[1:]) for leaf, values in zip(self.leaves, rows)]
        self.make_room(stop)
        self.write(slice(self.stop, stop), rows, dtypes)
        self.stop = stop

    def put(self, position: int, item: Any) -> None:
        """Write a row, which is the newest from then on.

        Raises:
            ColumnError: another nesting than the rows before.
        """
        self.stop = position
        self.add(self.plan(item))

    def write(self, where: Any, values: Sequence[Any], dtypes: Sequence[np.dtype[Any] | None]) -> None:
        """Write rows that are there; an array of objects gets copies.

        Args:
            where: A position, or what selects several.
            values: Their leaves.
            dtypes: The types that the arrays need for them; None: objects.
        """
        for i, value in enumerate(values):
            leaf, dtype = self.leaves[i], dtypes[i]
            if dtype is None or dtype != leaf.dtype:
                leaf = self.promote(i, dtype)
            store(leaf, where, value)

    def put_rows(self, rows: list[int], envs: list[int], value: Any) -> None:
        """Write one row of each of some environments into a column that has rows.

        Args:
            rows: Their positions.
            envs: The environments.
            value: Arrays of shape [len(envs), ...], nested like the stream.
        """
        self.make_room(max(rows, default=0) + 1)
        values = list(map(as_value, unaliased(flatten_like(self.form, value))))
        dtypes = [fits(leaf[:, 0], item, item.shape[1:]) for leaf, item in zip(self.leaves, values)]
        self.write((rows, envs), values, dtypes)

    def promote(self, i: int, dtype: np.dtype[Any] | None) -> Leaf:
        """Give leaf `i` another dtype, and return it; None makes it an array of objects."""
        leaf = self.leaves[i] = promoted(self.leaves[i], dtype, self.axes)
        self.renew()
        return leaf

    # -- the newest row --------------------------------------------------------------------------

    def stage(self, item: Any) -> None:
        """Add the newest row, which is provisional until the next one comes; nothing of the caller's is kept.

        Args:
            item: The row, in any nesting, shape and type.

        Raises:
            ColumnError: the provisional row before it does not fit the column; nothing changed.
        """
        if self.pending is not NOTHING:
            self.commit()
        self.provisional = True
        if self.flat is not None and self.lay_or_grow(self.stop, item):
            self.stop += 1
            return
        if not self.stop:
            self.forget_only_row()
        if self.form is None and not self.leaves:
            self.add(self.plan(item))
            return
        values = self.exact_leaves(item)
        if values is None:
            self.pending = owned(item)
        else:
            self.make_room(self.stop + 1)
            for leaf, value in zip(self.leaves, values):
                store(leaf, self.stop, value)
            self.stop += 1

    def commit(self) -> None:
        """Move a newest row that is held apart into the arrays.

        Raises:
            ColumnError: it is nested differently than the rows before; it is kept.
        """
        if self.pending is not NOTHING:
            self.add(self.plan(self.pending))
            self.pending = NOTHING

    def forget_only_row(self) -> None:
        """Let the next row, which takes the place of the only one, make the column anew."""
        if not self.settled and not self.is_new:
            self.replace()

    def drop_last(self) -> None:
        """Remove the newest row."""
        if self.pending is not NOTHING:
            self.pending = NOTHING
        else:
            self.stop -= 1

    # -- reading ---------------------------------------------------------------------------------

    def row(self, position: int) -> Any:
        """One row of the arrays: views."""
        if self.form is None:
            return self.leaves[0][position]
        return unflatten(self.form, [leaf[position] for leaf in self.leaves])

    def row_of(self, position: int, env: int) -> Any:
        """One environment's row."""
        return unflatten(self.form, [leaf[position, env] for leaf in self.leaves])

    def window(self, start: int, stop: int, capacity: int, behind: Mapping[int, int]) -> GrowingColumn:
        """A new column of `capacity` rows of N environments that begins with copies of rows `start` to `stop`.

        Args:
            start: The first row.
            stop: The row after the last.
            capacity: How many rows the column gets.
            behind: Environment -> how many rows before those its rows lie.
        """
        self.make_room(stop)  # resets come without rows of actions
        leaves = []
        for leaf in self.leaves:
            target = empty_leaf(leaf[0], capacity)
            low = max(start, 0)
            target[low - start : stop - start] = leaf[low:stop]
            for env, rows in behind.items():
                low = max(start, rows)
                target[low - start : stop - start, env] = leaf[low - rows : stop - rows, env]
            leaves.append(target)
        column = GrowingColumn(self.form, leaves, capacity)
        column.stop, column.settled = stop - start, True
        return column
