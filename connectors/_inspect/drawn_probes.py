"""Copies of the rows of a draw, in which one recorded step of each chunk can be changed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from epibatch.core.columns import Columns

from ...episodes.chunk_table import ChunkTable
from ...episodes.chunks_by_module import ChunksByModule
from ...episodes.store import Flags, StoreColumn

_COLUMNS = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.INFOS)


class _Rows:
    """A store of columns that are given."""

    def __init__(self, columns: Mapping[str, StoreColumn]) -> None:
        self.columns = columns

    @property
    def outputs(self) -> Collection[str]:
        """The names of the model outputs."""
        return [name for name in self.columns if name not in _COLUMNS]

    def stored(self, name: str) -> StoreColumn | None:
        """Return a column, by places; None if there is none of that name."""
        return self.columns.get(name)


class DrawnProbes:
    """The chunks of a draw, each with rows of its own, so that a change of one does not change another.

    Args:
        draw: The draw: a table of chunks, or one for each module.
        lookback: Steps before each chunk that are copied, at most.
        ahead: Steps of the episode after it, at most.

    Attributes:
        low: The first step that a chunk has, lookback included: 0 or less.
        high: The most steps that a chunk has, those ahead included.
        sums_rewards: True if the draw's rewards are sums of several recorded ones already.
    """

    def __init__(self, draw: Any, lookback: int, ahead: int) -> None:
        self._draw = draw
        tables = draw.by_module if hasattr(draw, "by_module") else {None: draw}
        self._tables = {key: _copied(table, lookback, ahead) for key, table in tables.items()}
        self.low = -max(int(table.lookbacks.max(initial=0)) for table in self._tables.values())
        self.high = max(int((table.lengths + table.ahead).max(initial=0)) for table in self._tables.values())
        self.sums_rewards = any(table.skips_steps for table in self._tables.values())

    def changed(self, what: str, step: int, change: Callable[[Any], Any]) -> Any:
        """Return the draw with another value at one step of each chunk that has it.

        Args:
            what: "obs" or "rewards".
            step: The step of the chunk; `high + 1` is a step of none.
            change: Function of one row's leaf that returns another.
        """
        tables = {key: _changed(table, what, step, change) for key, table in self._tables.items()}
        return tables[None] if None in tables else ChunksByModule(tables, self._draw.draws)


def _copied(table: ChunkTable, lookback: int, ahead: int) -> ChunkTable:
    """Return the same chunks in stores of their own, in which the rows of each lie by themselves."""
    look, more = np.minimum(table.lookbacks, lookback), np.minimum(table.ahead, ahead)
    counts, first, stores = look + table.lengths + more + 1, np.zeros_like(table.first), []
    for number, store in enumerate(table.stores):
        chunks = np.flatnonzero(table.store == number)
        begins = np.cumsum(counts[chunks]) - counts[chunks]
        first[chunks] = begins + look[chunks]
        steps = np.arange(counts[chunks].sum()) - np.repeat(first[chunks], counts[chunks])
        places = np.repeat(table.first[chunks], counts[chunks]) + steps * np.repeat(
            table.stride[chunks], counts[chunks]
        )
        rows = store.rows_at(places) if hasattr(store, "rows_at") else places
        columns = {}
        for name in (*_COLUMNS, *store.outputs):
            column = store.stored(name)
            if column is not None:
                leaves = [leaf.take(column.rows_at(rows), 0, mode="clip") for leaf in column.leaves]
                columns[name] = StoreColumn(column.form, leaves)
        stores.append(_Rows(columns))
    out = ChunkTable(
        stores,
        first,
        table.lengths,
        store=table.store,
        lookbacks=look,
        ahead=more,
        starts=table.starts,
        terminateds=table.terminateds & (table.ahead <= ahead),
        truncateds=table.truncateds & (table.ahead <= ahead),
        lack_final_obs=table.lack_final_obs,
        tails=table.tails,
        ids=table.ids,
    )
    out.skips_steps, out.per_chunk, out.module_id = table.skips_steps, dict(table.per_chunk), table.module_id
    out.agents, out.multi_agent_ids = table.agents, table.multi_agent_ids
    return out


def _changed(table: ChunkTable, what: str, step: int, change: Callable[[Any], Any]) -> ChunkTable:
    last = table.lengths + table.ahead - (what != Columns.OBS)
    has: Flags = (-table.lookbacks <= step) & (step <= last) & ((what == Columns.OBS) | (step >= 0))
    out, stores = copy.copy(table), []
    copies: Sequence[Any] = table.stores
    for number, store in enumerate(copies):
        columns = dict(store.columns)
        form, leaves, _ = columns[what]
        rows = table.first[has & (table.store == number)] + step
        leaves = [leaf.copy() for leaf in leaves]
        for leaf in leaves:
            for row in rows.tolist():
                leaf[row] = change(leaf[row])
        columns[what] = StoreColumn(form, leaves)
        stores.append(_Rows(columns))
    out.stores = stores
    return out
