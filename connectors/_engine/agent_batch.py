"""The batch of a call about several agents: the columns of each module's rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from epibatch.core.errors import BatchLayoutError, ColumnError
from epibatch.core.structs import map_struct

from .call import Call
from .columns import EpisodeColumn
from .layouts import collect, is_plain, join_items, join_rows, plain_column

if TYPE_CHECKING:
    from .agent_chunks import AgentChunk

__all__ = ["AgentBatch", "merge_columns"]


class AgentBatch:
    """Columns by module, and what belongs to no module.

    Args:
        groups: Module id -> columns of that module's rows.
        loose: What somebody put beside them.
    """

    __slots__ = ("groups", "loose")

    def __init__(self, groups: dict[Any, dict[str, Any]], loose: dict[Any, Any] | None = None) -> None:
        self.groups = groups
        self.loose = loose or {}

    def holds_items(self) -> bool:
        """Whether rows are items of chunks still, and no batched arrays."""
        return any(isinstance(column, EpisodeColumn) for own in self.groups.values() for column in own.values())

    def values(self) -> list[Any]:
        """Each module's columns, and what belongs to none."""
        return [*self.groups.values(), *self.loose.values()]

    def keep(self, rows: Mapping[Any, np.ndarray[Any, np.dtype[np.int64]]]) -> None:
        """Leave out rows of columns with one row per chunk.

        Args:
            rows: Per module the positions that stay; modules that are missing lose everything.
        """
        self.groups = {
            module_id: {name: _taken(column, rows[module_id]) for name, column in own.items()}
            for module_id, own in self.groups.items()
            if module_id in rows
        }

    def by_key(self, calls: Mapping[Any, Call], chunks: Sequence[AgentChunk]) -> dict[Any, Any]:
        """`{column: {key: [items]}}`, keys in the order of the call's chunks."""
        columns: dict[str, dict[Any, Any]] = {}
        for module_id, own in self.groups.items():
            for name, column in own.items():
                columns.setdefault(name, {}).update(plain_column(column, calls[module_id]))
        order = [chunk.key for chunk in chunks]
        ordered = {name: {key: items[key] for key in order if key in items} for name, items in columns.items()}
        return {**ordered, **self.loose}

    def by_module(self, calls: Mapping[Any, Call]) -> dict[Any, Any]:
        """`{module: {column: [items]}}`, or arrays where they are batched."""
        out: dict[Any, Any] = {}
        for module_id, own in self.groups.items():
            columns = {name: _flat_items(column, calls[module_id]) for name, column in own.items()}
            if columns:
                out[module_id] = columns
        return {**out, **self.loose}

    @classmethod
    def of_keys(cls, batch: Mapping[Any, Any], calls: Mapping[Any, Call]) -> AgentBatch:
        """From `{column: {key: [items]}}`."""
        out = cls({module_id: {} for module_id in calls})
        if not batch:
            return out
        home = {key: module_id for module_id, call in calls.items() for key in call.keys}
        for name, value in batch.items():
            if not is_plain(value):
                out.loose[name] = value
                continue
            parts: dict[Any, dict[Any, Any]] = {}
            for key, items in value.items():
                if key not in home:
                    raise BatchLayoutError(
                        f"column {name!r}",
                        expected=f"the keys of this call's {len(home)} chunks, such as {next(iter(home), None)}",
                        found=str(key),
                        do="add items with add_batch_item(..., single_agent_episode=episode), which finds the key",
                    )
                parts.setdefault(home[key], {})[key] = items
            for module_id, part in parts.items():
                out.groups[module_id][name] = collect(name, part, calls[module_id])
        return out

    @classmethod
    def of_modules(cls, batch: Mapping[Any, Any], calls: Mapping[Any, Call], *, items: bool) -> AgentBatch:
        """From `{module: {column: ...}}`.

        Args:
            batch: The plain batch; what is under no module's id stays beside the modules.
            calls: The modules' calls.
            items: Whether lists are items of rows, to be columns again.
        """
        out = cls({})
        for name, value in batch.items():
            if name not in calls or not isinstance(value, Mapping):
                out.loose[name] = value
            elif items:
                out.groups[name] = {key: _column(key, column, calls[name]) for key, column in value.items()}
            else:
                out.groups[name] = dict(value)
        return out


def _taken(column: Any, rows: np.ndarray[Any, np.dtype[np.int64]]) -> Any:
    if not isinstance(column, EpisodeColumn):
        return column
    data = column.data
    kept = [data[i] for i in rows] if isinstance(data, list) else map_struct(lambda leaf: leaf[rows], data)
    return EpisodeColumn(kept, None if column.counts is None else column.counts[rows], single=column.single)


def _flat_items(column: Any, call: Call) -> Any:
    if not isinstance(column, EpisodeColumn):
        return column
    return [item for items in plain_column(column, call).values() for item in items]


def _column(name: str, value: Any, call: Call) -> Any:
    """A list of a module's items as a column of its chunks, whose number of rows is known."""
    return join_items(name, value, call) if isinstance(value, list) else value


def merge_columns(
    parts: Sequence[tuple[dict[str, Any], Call]], places: Sequence[Sequence[int]], call: Call
) -> dict[str, Any]:
    """The columns of several groups of chunks as columns of all their chunks.

    Args:
        parts: Each group's columns and call.
        places: Where each group's chunks stand among all.
        call: The call of all of them; it has their chunks in another order.

    Raises:
        ColumnError: a column that some lack, or whose rows differ in shape.
    """
    chunks = np.concatenate([np.array(own, np.int64) for own in places])
    names = dict.fromkeys(name for columns, _ in parts for name in columns)
    if any(own.rows is not None for _, own in parts):
        rows = np.concatenate([own.expected_rows for _, own in parts])
        call.rows = rows[np.argsort(chunks)]
    return {name: _merged(name, parts, chunks, call) for name in names}


def _merged(
    name: str, parts: Sequence[tuple[dict[str, Any], Call]], chunks: np.ndarray[Any, Any], call: Call
) -> EpisodeColumn:
    lacking = [own for columns, own in parts if name not in columns]
    if lacking:
        raise ColumnError(
            f"column {name!r} of module {call.module_id!r}",
            expected="rows of all its agents",
            found=f"none of {lacking[0].describe(0)}",
            do="add the column for every agent of the module, or for none",
        )
    columns = [columns[name] for columns, _ in parts]
    counts = np.concatenate(
        [
            np.ones(len(own.episodes), np.int64) if one.counts is None else one.counts
            for one, (_, own) in zip(columns, parts)
        ]
    )
    single, one_each = all(one.single for one in columns), all(one.counts is None for one in columns)
    back = np.argsort(chunks, kind="stable")
    starts = np.cumsum(counts) - counts
    rows = np.concatenate([np.arange(starts[i], starts[i] + counts[i]) for i in back.tolist()])
    if any(one.holds_objects for one in columns):
        items = [item for one in columns for item in one.data]
        return EpisodeColumn([items[i] for i in rows], None if one_each else counts[back], single=single)
    firsts = np.cumsum([0, *(len(own.episodes) for _, own in parts)])[:-1]
    owners = np.argsort(back, kind="stable")[firsts].tolist()
    data = map_struct(lambda leaf: leaf[rows], join_rows(name, [one.data for one in columns], owners, call))
    return EpisodeColumn(data, None if one_each else counts[back], single=single)
