"""Time-major storage of N environments stepping together: one copy per column and vector step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from epibatch.core.structs import Form, flatten, flatten_like, unflatten

from .leaves import Leaf, as_value, empty_leaf, fits, grown, leaf_from_rows, owned, promoted, store

__all__ = ["Block", "BlockColumn"]


class BlockColumn:
    """One stream of a block: each leaf is one array of shape [capacity, N, ...]."""

    __slots__ = ("form", "leaves")

    def __init__(self) -> None:
        self.form: Form = None
        self.leaves: list[Leaf] = []

    def put(self, row: int, value: Any, capacity: int) -> None:
        """Write one vector step.

        Args:
            row: Row of the block.
            value: Arrays of shape [N, ...], nested like the stream.
            capacity: Rows to make room for when the column is new or full.
        """
        if self.leaves and self.form is None:
            leaf = self.leaves[0]
            if row < len(leaf) and type(value) is np.ndarray and value.dtype is leaf.dtype:
                leaf[row] = value
                return
        self._put(row, value, capacity)

    def _put(self, row: int, value: Any, capacity: int) -> None:
        if not self.leaves:
            items, self.form = flatten(value)
            self.leaves = [empty_leaf(as_value(item), capacity) for item in items]
        else:
            items = flatten_like(self.form, value)
        for i, item in enumerate(items):
            rows, leaf = as_value(item), self.leaves[i]
            dtype = fits(leaf, rows, rows.shape)
            if dtype is None or dtype != leaf.dtype:
                self.promote(i, dtype)
            leaf = self.leaves[i]
            if row >= len(leaf):
                leaf = self.leaves[i] = grown(leaf, row, max(capacity, 2 * len(leaf)))
            if leaf.dtype == object:
                for n, one in enumerate(rows):
                    leaf[row, n] = owned(one)
            else:
                leaf[row] = rows

    def put_one(self, row: int, value: Any) -> None:
        """Write one row of a column whose leaves have a single leading axis."""
        for i, item in enumerate(flatten_like(self.form, value)):
            leaf = self.leaves[i] = promoted(self.leaves[i], len(self.leaves[i]), fits(self.leaves[i], item))
            store(leaf, row, item)

    def promote(self, i: int, dtype: np.dtype[Any] | None) -> None:
        """Give leaf `i` another dtype; None makes it an object column of [capacity, N] rows."""
        leaf = self.leaves[i]
        if dtype is not None and dtype.kind != "O":
            self.leaves[i] = promoted(leaf, len(leaf), dtype)
            return
        out = np.empty(leaf.shape[:2], object)
        for at in np.ndindex(*leaf.shape[:2]):
            out[at] = leaf[at]
        self.leaves[i] = out

    def row(self, row: int) -> Any:
        """One vector step: arrays of shape [N, ...] (views)."""
        return unflatten(self.form, [leaf[row] for leaf in self.leaves])

    def window(self, start: int, stop: int, capacity: int) -> BlockColumn:
        """A new column of `capacity` rows that begins with copies of rows `start` to `stop`."""
        column = BlockColumn()
        column.form = self.form
        for leaf in self.leaves:
            fresh = empty_leaf(leaf[0], capacity)
            low = max(start, 0)
            fresh[low - start : stop - start] = leaf[low:stop]
            column.leaves.append(fresh)
        return column


class Block:
    """The columns of one fragment of N environments.

    Row r holds the observations before vector step r and what that step took and brought. The
    newest observations are provisional: held raw until `commit`.

    Args:
        num_envs: N.
        capacity: Rows to allocate at first.
        row: Row of the newest observations.
    """

    __slots__ = (
        "__weakref__",
        "actions",
        "capacity",
        "extras",
        "infos",
        "num_envs",
        "observations",
        "own_infos",
        "pending",
        "rewards",
        "row",
        "written",
    )

    def __init__(self, num_envs: int, capacity: int, row: int = 0) -> None:
        self.num_envs = num_envs
        self.capacity = capacity
        self.row = row
        self.observations = BlockColumn()
        self.actions = BlockColumn()
        self.rewards = BlockColumn()
        self.extras: dict[str, BlockColumn] = {}
        self.infos: dict[int, Any] = {}
        self.own_infos: dict[tuple[int, int], dict[str, Any]] = {}
        self.pending: Any = None
        self.written: dict[int, Any] = {}

    def step_columns(self) -> Iterator[BlockColumn]:
        """The columns with one row per step."""
        yield self.actions
        yield self.rewards
        yield from self.extras.values()

    def pending_row(self, env: int) -> Any:
        """The provisional observation of one environment."""
        if env in self.written:
            return self.written[env]
        leaves, form = flatten(self.pending)
        return unflatten(form, [leaf[env] for leaf in leaves])

    def latest_observations(self) -> Any:
        """The newest observations of all environments: arrays of shape [N, ...]."""
        if self.pending is None:
            return self.observations.row(self.row)
        if self.written:
            self.pending = self._stacked()
            self.written = {}
        return self.pending

    def _stacked(self) -> Any:
        rows = [flatten(self.pending_row(env)) for env in range(self.num_envs)]
        form = rows[0][1]
        columns = zip(*(leaves for leaves, _ in rows))
        return unflatten(form, [leaf_from_rows(column) for column in columns])

    def commit(self) -> None:
        """Move the provisional observations into their column."""
        if self.pending is not None:
            self.observations.put(self.row, self.latest_observations(), self.capacity)
            self.pending = None

    def successor(self, lookback: int, capacity: int) -> Block:
        """A block for the next fragment, beginning with the last `lookback` steps of this one."""
        self.commit()
        block = Block(self.num_envs, lookback + capacity, lookback)
        start, rows = self.row - lookback, lookback + capacity
        block.observations = self.observations.window(start, self.row + 1, rows)
        block.actions = self.actions.window(start, self.row, rows)
        block.rewards = self.rewards.window(start, self.row, rows)
        block.extras = {key: column.window(start, self.row, rows) for key, column in self.extras.items()}
        block.own_infos = {(row - start, env): own for (row, env), own in self.own_infos.items() if row >= start}
        block.infos = {row - start: infos for row, infos in self.infos.items() if row >= start}
        return block
