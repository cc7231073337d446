"""Time-major storage of N environments stepping together: one copy per column and vector step."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, add_context
from epibatch.core.structs import flatten, flatten_like, map_struct, unflatten

from ..arrays import as_value, leaf_from_rows, owned
from ..env_infos import env_infos
from ..store import StoreColumn
from .growing_column import NOTHING, GrowingColumn


class Block:
    """The columns of one fragment of N environments.

    Row r holds the observations before vector step r, and the actions, rewards and flags of that step. Environments
    that take no part in a vector step get no row in it, so their newest row is `behind` that of the others. The newest
    observations are provisional until `commit`. They are in their row already if they have the column's nesting,
    shapes and types; otherwise the column holds them apart, as `pending`. Values that a piece writes for one
    environment go to the same row, or to `written`.

    Args:
        num_envs: N.
        capacity: Rows to allocate at first.
        row: Row of the newest observations.

    Attributes:
        behind: Environment -> how many rows before `row` its newest observation is, where it is not in `row`.
        returns_before: The earlier returns of episodes that continue from another block: float64 [N], or None.
        unknown_rewards: Whether NaN among the rewards marks one that the caller did not give. It may not be read.
        num_objects: The number of episode objects that were made of rows of this block.
    """

    def __init__(self, num_envs: int, capacity: int, row: int = 0) -> None:
        self.num_envs = num_envs
        self.capacity = capacity
        self.row = row
        self.behind: dict[int, int] = {}
        self.observations, self.actions, self.rewards = (self.new_column() for _ in range(3))
        self.extras: dict[str, GrowingColumn] = {}
        self.infos: dict[int, Any] = {}
        self.own_infos: dict[tuple[int, int], dict[str, Any]] = {}
        self.written: dict[int, Any] = {}
        self.unknown_rewards = False
        self.num_objects = 0
        self.returns_before: Any = None

    def new_column(self) -> GrowingColumn:
        """A column without rows."""
        return GrowingColumn(capacity=self.capacity)

    def newest(self, env: int) -> int:
        """The row of the newest observation of one environment."""
        return self.row - self.behind.get(env, 0) if self.behind else self.row

    def advance(self, envs: Collection[int]) -> None:
        """Move on by one row in some environments."""
        rows = [self.newest(env) + (env in envs) for env in range(self.num_envs)]
        self.row = max(rows)
        self.behind = {env: self.row - row for env, row in enumerate(rows) if row < self.row}

    def column(self, name: str) -> GrowingColumn | None:
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
        if type(observations) is not np.ndarray:
            observations = map_struct(as_value, observations)
        column, self.written = self.observations, {}
        column.pending, column.stop = NOTHING, self.row
        column.stage(observations)

    def write_newest(self, env: int, row: Any) -> None:
        """Replace the provisional observation of one environment by one of any nesting, shape and type."""
        column, position = self.observations, self.newest(env)
        values = column.exact_leaves(row, env) if column.pending is NOTHING else None
        if values is None:
            self.written[env] = owned(row)
            return
        self.written.pop(env, None)
        column.make_room(position + 1)
        for leaf, value in zip(column.leaves, values):
            leaf[position, env] = value

    def newest_row(self, env: int) -> Any:
        """The newest observation of one environment."""
        if env in self.written:
            return self.written[env]
        pending = self.observations.pending
        if pending is NOTHING:
            return self.observations.row_of(self.newest(env), env)
        return map_struct(lambda leaf: leaf[env], pending)

    def latest_observations(self) -> Any:
        """The newest observations of all environments: arrays of shape [N, ...].

        Raises:
            ColumnError: pieces wrote back observations that differ in nesting.
        """
        if self.written:
            return self._stacked()
        pending = self.observations.pending
        return self.observations.row(self.row) if pending is NOTHING else pending

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
        column = self.observations
        if self.behind:
            for env, row in self.written.items():
                one = map_struct(lambda leaf: as_value(leaf)[None], row)
                column.put_rows([self.newest(env)], [env], one)
        elif self.written or column.pending is not NOTHING:
            rows = self.latest_observations()
            if not self.row:
                column.forget_only_row()
            column.put(self.row, rows)
            column.pending = NOTHING
        self.written = {}
        column.stop, column.provisional, column.settled = self.row + 1, False, True

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
