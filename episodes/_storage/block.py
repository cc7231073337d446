"""Time-major storage of N environments stepping together: one copy per column and vector step."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, add_context
from epibatch.core.structs import Form, flatten, flatten_like, map_struct, unflatten

from ..store import StoreColumn
from .arrays import (
    Leaf,
    as_value,
    copied,
    empty_leaf,
    fits,
    fits_exactly,
    grown,
    leaf_from_rows,
    leaves_like,
    owned,
    promoted,
    unaliased,
)

_OBJECT = np.dtype(object)


class BlockColumn:
    """One stream of a block: each leaf is one array of shape [capacity, N, ...].

    Args:
        form: Nesting of its rows.
        leaves: Its arrays, as given; none before there are rows.

    Attributes:
        read_only: Whether the arrays lie in memory of another process, which cannot be written to.
    """

    __slots__ = ("form", "leaves", "read_only")

    def __init__(self, form: Form = None, leaves: Sequence[Leaf] = ()) -> None:
        self.form = form
        self.leaves: list[Leaf] = list(leaves)
        self.read_only = not all(leaf.flags.writeable for leaf in self.leaves)

    def make_writable(self) -> None:
        """Copy arrays that cannot be written to; episodes that show them show the copies from then on."""
        if self.read_only:
            self.leaves, self.read_only = list(map(copied, self.leaves)), False

    def put(self, row: int, value: Any, capacity: int) -> None:
        """Write one vector step.

        Args:
            row: Row of the block.
            value: Arrays of shape [N, ...], nested like the stream.
            capacity: Rows to make room for when the column is new or full.
        """
        if not self.put_plain(row, value):
            self._put(row, value, capacity)

    def put_plain(self, row: int, value: Any) -> bool:
        """Write one vector step of a column without nesting if there is room and it fits exactly.

        Returns:
            Whether it was written.
        """
        if self.form is not None or type(value) is not np.ndarray or not self.leaves:
            return False
        leaf = self.leaves[0]
        dtype = leaf.dtype
        if value.dtype is not dtype or value.shape != leaf.shape[1:] or row >= len(leaf) or dtype is _OBJECT:
            return False
        leaf[row] = value
        return True

    def _put(self, row: int, value: Any, capacity: int) -> None:
        if not self.leaves:
            items, self.form = flatten(value)
            self.leaves = [empty_leaf(as_value(item), capacity) for item in items]
        else:
            items = flatten_like(self.form, value)
        for i, item in enumerate(unaliased(items)):
            rows, leaf = as_value(item), self.leaves[i]
            dtype = fits(leaf, rows, rows.shape)
            if dtype is None or dtype != leaf.dtype:
                self.promote(i, dtype)
            leaf = self._roomy(i, row, capacity)
            if leaf.dtype == object:
                for n, element in enumerate(rows):
                    leaf[row, n] = owned(element)
            else:
                leaf[row] = rows

    def _roomy(self, i: int, row: int, capacity: int) -> Leaf:
        """Leaf `i`, with room for `row`."""
        leaf = self.leaves[i]
        if row >= len(leaf):
            leaf = self.leaves[i] = grown(leaf, row, max(capacity, 2 * len(leaf)))
        return leaf

    def take(self, row: int, value: Any, capacity: int) -> bool:
        """Write one vector step if it has the column's nesting, shapes and types exactly.

        Returns:
            Whether it was written.
        """
        if self.put_plain(row, value):
            return True
        return self._take([self._roomy(i, row, capacity) for i in range(len(self.leaves))], row, value)

    def take_one(self, row: int, env: int, value: Any, capacity: int) -> bool:
        """Write one environment's row if it has the column's nesting, shapes and types exactly."""
        return self._take([self._roomy(i, row, capacity)[:, env] for i in range(len(self.leaves))], row, value)

    def put_rows(self, rows: list[int], envs: list[int], value: Any, capacity: int) -> None:
        """Write one row of each of some environments into a column that has rows.

        Args:
            rows: Rows of the block.
            envs: The environments.
            value: Arrays of shape [len(envs), ...], nested like the stream.
            capacity: Rows to make room for when the column is full.
        """
        for i, item in enumerate(unaliased(flatten_like(self.form, value))):
            values, leaf = as_value(item), self._roomy(i, max(rows, default=0), capacity)
            dtype = fits(leaf[:, 0], values, values.shape[1:])
            if dtype is None or dtype != leaf.dtype:
                self.promote(i, dtype)
                leaf = self.leaves[i]
            if leaf.dtype == object:
                for row, env, element in zip(rows, envs, values):
                    leaf[row, env] = owned(element)
            else:
                leaf[rows, envs] = values

    def _take(self, leaves: list[Leaf], row: int, value: Any) -> bool:
        values = leaves_like(self.form, value)
        if values is None:
            return False
        if not all(leaf.dtype.kind != "O" and fits_exactly(leaf, item) for leaf, item in zip(leaves, values)):
            return False
        for leaf, item in zip(leaves, unaliased(values)):
            leaf[row] = item
        return True

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
        if self.form is None:
            return self.leaves[0][row]
        return unflatten(self.form, [leaf[row] for leaf in self.leaves])

    def row_of(self, row: int, env: int) -> Any:
        """One environment's row."""
        return unflatten(self.form, [leaf[row, env] for leaf in self.leaves])

    def window(self, start: int, stop: int, capacity: int, behind: Mapping[int, int]) -> BlockColumn:
        """A new column of `capacity` rows that begins with copies of rows `start` to `stop`.

        Args:
            start: The first row.
            stop: The row after the last.
            capacity: How many rows the column gets.
            behind: Environment -> how many rows before those its rows lie.
        """
        column = BlockColumn(self.form)
        for leaf in self.leaves:
            target = empty_leaf(leaf[0], capacity)
            low = max(start, 0)
            target[low - start : stop - start] = leaf[low:stop]
            for env, rows in behind.items():
                low = max(start, rows)
                target[low - start : stop - start, env] = leaf[low - rows : stop - rows, env]
            column.leaves.append(target)
        return column


class Block:
    """The columns of one fragment of N environments.

    Row r holds the observations before vector step r, and the actions, rewards and flags of that step. Environments
    that take no part in a vector step get no row in it, so their newest row is `behind` that of the others. The newest
    observations are provisional until `commit`. They are in their row already if they have the column's nesting,
    shapes and types; otherwise they are stored in `pending`. Values that a piece writes for one environment go to
    the same row, or to `written`.

    Args:
        num_envs: N.
        capacity: Rows to allocate at first.
        row: Row of the newest observations.

    Attributes:
        behind: Environment -> how many rows before `row` its newest observation is, where it is not in `row`.
        provisional: Whether the newest observations can be replaced by any others.
        returns_before: The earlier returns of episodes that continue from another block: float64 [N], or None.
        unknown_rewards: Whether NaN among the rewards marks one that the caller did not give. It may not be read.
        views: The number of episode objects that were made of rows of this block.
    """

    def __init__(self, num_envs: int, capacity: int, row: int = 0) -> None:
        self.num_envs = num_envs
        self.capacity = capacity
        self.row = row
        self.behind: dict[int, int] = {}
        self.observations = BlockColumn()
        self.actions = BlockColumn()
        self.rewards = BlockColumn()
        self.extras: dict[str, BlockColumn] = {}
        self.infos: dict[int, Any] = {}
        self.own_infos: dict[tuple[int, int], dict[str, Any]] = {}
        self.pending: Any = None
        self.written: dict[int, Any] = {}
        self.provisional = self._only = self.unknown_rewards = False
        self.views = 0
        self.returns_before: Any = None

    def newest(self, env: int) -> int:
        """The row of the newest observation of one environment."""
        return self.row - self.behind.get(env, 0) if self.behind else self.row

    def advance(self, envs: Collection[int]) -> None:
        """Move on by one row in some environments."""
        rows = [self.newest(env) + (env in envs) for env in range(self.num_envs)]
        self.row = max(rows)
        self.behind = {env: self.row - row for env, row in enumerate(rows) if row < self.row}

    def column(self, name: str) -> BlockColumn | None:
        """The column `obs`, `actions` or `rewards`, or a model output; None if there is none of that name."""
        if name == Columns.OBS:
            return self.observations
        if name == Columns.ACTIONS:
            return self.actions
        return self.rewards if name == Columns.REWARDS else self.extras.get(name)

    @property
    def outputs(self) -> list[str]:
        """The names of the model outputs."""
        return list(self.extras)

    def stored(self, name: str) -> StoreColumn | None:
        """The column as a store's: row r of environment n is at place `r * num_envs + n`."""
        column = self.column(name)
        if column is None:
            return None
        flat = [leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]) for leaf in column.leaves]
        return StoreColumn(column.form, flat)

    def stage(self, observations: Any) -> None:
        """Take the newest observations, or others in their place; nothing of the caller's is kept.

        Args:
            observations: Arrays of shape [N, ...].
        """
        column = self.observations
        if self._only:
            column.form, column.leaves = None, []
        if self.written:
            self.written = {}
        self.pending = None
        self.provisional = True
        if not column.leaves:
            column.put(self.row, observations, self.capacity)
            self._only = True
        elif not column.take(self.row, observations, self.capacity):
            self.pending = map_struct(lambda leaf: copied(as_value(leaf)), observations)

    def put_plain(self, actions: Any, rewards: Any, extras: dict[str, Any]) -> bool:
        """Write what a vector step took and brought, if its columns are there, without nesting, and it fits exactly.

        Returns:
            Whether all of it was written; the row counts only once `row` is moved on.
        """
        columns, row = self.extras, self.row
        if len(extras) != len(columns):
            return False
        if not (self.rewards.put_plain(row, rewards) and self.actions.put_plain(row, actions)):
            return False
        for key, value in extras.items():  # noqa: SIM110 - all() costs more
            if key not in columns or not columns[key].put_plain(row, value):
                return False
        return True

    def write_newest(self, env: int, row: Any) -> None:
        """Replace the provisional observation of one environment by one of any nesting, shape and type."""
        if self.pending is None and self.observations.take_one(self.newest(env), env, row, self.capacity):
            self.written.pop(env, None)
        else:
            self.written[env] = owned(row)

    def newest_row(self, env: int) -> Any:
        """The newest observation of one environment."""
        if env in self.written:
            return self.written[env]
        if self.pending is None:
            return self.observations.row_of(self.newest(env), env)
        return map_struct(lambda leaf: leaf[env], self.pending)

    def latest_observations(self) -> Any:
        """The newest observations of all environments: arrays of shape [N, ...].

        Raises:
            ColumnError: pieces wrote back observations that differ in nesting.
        """
        if self.written:
            return self._stacked()
        return self.observations.row(self.row) if self.pending is None else self.pending

    def _stacked(self) -> Any:
        first, form = flatten(self.newest_row(0))
        rows = [first]
        for env in range(1, self.num_envs):
            try:
                rows.append(flatten_like(form, self.newest_row(env)))
            except ColumnError as error:
                add_context(error, f"the newest observation of environment {env}, beside that of environment 0:")
                raise
        return unflatten(form, [leaf_from_rows(column) for column in zip(*rows)])

    def commit(self) -> None:
        """Make the newest observations final, as pieces left them.

        Raises:
            ColumnError: they differ in nesting, among one another or from the rows before.
        """
        if self.behind:
            for env, row in self.written.items():
                one = map_struct(lambda leaf: as_value(leaf)[None], row)
                self.observations.put_rows([self.newest(env)], [env], one, self.capacity)
            self.written = {}
        elif self.written or self.pending is not None:
            rows, column = self.latest_observations(), self.observations
            if self._only:
                column.form, column.leaves = None, []
            column.put(self.row, rows, self.capacity)
            self.pending, self.written = None, {}
        self.provisional = self._only = False

    def before_newest(self, start: int) -> tuple[Form, list[Leaf]] | None:
        """The form and leaves of the observations from row `start` up to the newest; None if there are none."""
        if self._only or start >= self.row or not self.observations.leaves:
            return None
        return self.observations.form, [leaf[start : self.row] for leaf in self.observations.leaves]

    def info_at(self, row: int, env: int) -> dict[str, Any]:
        """The info dict of one environment that came with the observations of a row."""
        info = self.own_infos.get((row, env))
        return env_infos(self.infos.get(row, {}), env, self.num_envs) if info is None else info

    def successor(self, lookback: int, capacity: int) -> Block:
        """A block for the next fragment, beginning with the last `lookback` steps of this one."""
        self.commit()
        block = Block(self.num_envs, lookback + capacity, lookback)
        start, rows, behind = self.row - lookback, lookback + capacity, self.behind
        block.observations = self.observations.window(start, self.row + 1, rows, behind)
        block.actions = self.actions.window(start, self.row, rows, behind)
        block.rewards = self.rewards.window(start, self.row, rows, behind)
        block.extras = {key: column.window(start, self.row, rows, behind) for key, column in self.extras.items()}
        block.own_infos = {(row - start, env): info for (row, env), info in self.own_infos.items() if row >= start}
        block.infos = {row - start: infos for row, infos in self.infos.items() if row >= start}
        for env, count in behind.items():
            for row in range(max(start, count), self.row + 1):
                block.own_infos[row - start, env] = self.info_at(row - count, env)
        return block


ENV_INFOS = "env_infos"
"""The key of a vector environment's infos with a list of each environment's own info dict."""


def infos_by_env(infos: dict[str, Any]) -> Any:
    """Return what a vector environment's infos hold as a dict for each environment, if anything: a list or the like."""
    found = infos.get(ENV_INFOS)
    if isinstance(found, np.ndarray):
        return found if found.dtype == object and found.ndim == 1 else ()
    return found if isinstance(found, (list, tuple)) else ()


def env_infos(infos: Any, env: int, num_envs: int) -> dict[str, Any]:
    """One environment's part of a vector environment's infos, in a new dict.

    Args:
        infos: A list with a dict or None for each environment; or Gymnasium's dict of columns, with such a list under
            `env_infos` if the vector environment gives one. A tuple or an object array counts as a list.
        env: The environment's number.
        num_envs: N. What has not N rows belongs to every environment.
    """
    if not isinstance(infos, dict):
        info = infos[env] if _is_column(infos, num_envs) else None
        return dict(info) if isinstance(info, dict) else {}
    found = infos_by_env(infos)
    if len(found) != num_envs or not isinstance(found[env], (dict, type(None))):
        return _row_of_columns(infos, env, num_envs)
    return {
        **(found[env] or {}),
        **_row_of_columns({key: infos[key] for key in infos if key != ENV_INFOS}, env, num_envs),
    }


def _is_column(value: Any, num_envs: int) -> bool:
    if isinstance(value, np.ndarray):
        return bool(value.shape[:1] == (num_envs,))
    return isinstance(value, (list, tuple)) and len(value) == num_envs


def _row_of_columns(infos: dict[Any, Any], env: int, num_envs: int) -> dict[str, Any]:
    """One environment's part of a dict of columns; a boolean array `_key` says which environments have `key`."""
    part: dict[Any, Any] = {}
    for key, value in infos.items():
        if isinstance(key, str) and key.startswith("_") and key[1:] in infos:
            continue
        mask: Any = infos.get(f"_{key}")
        if _is_column(mask, num_envs) and not mask[env]:
            continue
        if isinstance(value, dict):
            part[key] = _row_of_columns(value, env, num_envs)
        else:
            part[key] = value[env] if _is_column(value, num_envs) else value
    return part
