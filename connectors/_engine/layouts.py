"""From columns of groups of chunks to the plain dicts and lists that user pieces see, and back."""

from __future__ import annotations

import marshal
from collections.abc import Mapping, Sequence
from itertools import chain
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import BatchLayoutError, ColumnError, nearest
from epibatch.core.structs import BatchedNdArray, flatten, form_of, is_leaf, map_struct, unflatten

from .columns import Batch, EpisodeColumn
from .grouping import Ints, order_of

if TYPE_CHECKING:
    from .call import PipelineCall
    from .chunks import ChunkGroup


def is_plain(value: Any) -> bool:
    """True if a batch value is a plain per-episode column: `{key tuple: [items]}`."""
    return isinstance(value, dict) and bool(value) and all(issubclass(kind, tuple) for kind in set(map(type, value)))


def to_plain(batch: Batch, call: PipelineCall) -> dict[str, Any]:
    """The batch as plain pieces and the pipeline's caller see it; columns that are batched already stay as they are."""
    if call.multi:
        call.name_module(batch)
    if not call.several and not call.mapped:
        (columns,) = batch.groups.values()
        if EpisodeColumn not in map(type, columns.values()):
            return {**columns, **batch.loose} if batch.loose else columns
    call.shown_items = batch.holds_items()
    plain: dict[Any, Any]
    if call.mapped:
        plain = {key: _flat_items(columns, call.groups[key]) for key, columns in batch.groups.items() if columns}
    else:
        plain = _by_key(batch, call) if call.shown_items or not call.several else _by_episode(batch, call)
    return {**plain, **batch.loose}


def _by_key(batch: Batch, call: PipelineCall) -> dict[Any, Any]:
    """`{column: {key: [items]}}`, keys in the order of the call's chunks."""
    groups = call.groups
    if len(batch.groups) == 1:
        ((key, group_columns),) = batch.groups.items()
        return {name: plain_column(column, groups[key]) for name, column in group_columns.items()}
    columns: dict[str, dict[Any, Any]] = {}
    for group, group_columns in batch.groups.items():
        for name, column in group_columns.items():
            columns.setdefault(name, {}).update(plain_column(column, groups[group]))
    order = call.keys
    return {name: {key: items[key] for key in order if key in items} for name, items in columns.items()}


def _by_episode(batch: Batch, call: PipelineCall) -> dict[Any, list[dict[Any, Any]]]:
    """Batched columns of agents as `{column: [{agent: value}]}`, one dict for each episode."""
    out: dict[Any, list[dict[Any, Any]]] = {}
    orders: dict[tuple[Any, ...], _AgentOrder] = {}
    cache: dict[tuple[int, ...], list[dict[Any, Any]]] = {}
    by_name: dict[str, dict[Any, Any]] = {}
    for module_id, module_columns in batch.groups.items():
        for name, column in module_columns.items():
            by_name.setdefault(name, {})[module_id] = column
    for name, by_module in by_name.items():
        order = tuple(by_module)
        if order not in orders:
            orders[order] = _AgentOrder([call.groups[module_id] for module_id in order], call)
        columns = list(by_module.values())
        ids = tuple(map(id, columns))  # actions that need no change for the environment are one array twice
        if ids in cache:
            out[name] = list(map(dict, cache[ids]))
        else:
            out[name] = cache[ids] = orders[order].by_episode(columns)
    return out


def _flat_items(columns: Mapping[str, Any], group: ChunkGroup) -> dict[str, Any]:
    """Columns with the items of all chunks in one list; something else as it is."""
    flat = dict(columns)
    for name, column in columns.items():
        if isinstance(column, EpisodeColumn):
            flat[name] = [item for items in plain_column(column, group).values() for item in items]
    return flat


def plain_column(column: Any, group: ChunkGroup) -> Any:
    """A column as `{key: [items]}`; something else as it is."""
    if type(column) is not EpisodeColumn:
        return column
    keys, counts, data = group.keys, column.counts, column.data
    if counts is None:
        return {key: [row] for key, row in zip(keys, _rows(data))}
    ends = np.cumsum(counts).tolist()
    if column.item_per_row or isinstance(data, list):
        rows = _rows(data)
        return {key: rows[start:stop] for key, start, stop in zip(keys, [0, *ends], ends)}
    if is_leaf(data):
        tagged = data.view(BatchedNdArray)  # and so is every part of it
        return {key: [tagged[start:stop]] if start < stop else [] for key, start, stop in zip(keys, [0, *ends], ends)}
    leaves, form = flatten(data)
    leaves = [leaf.view(BatchedNdArray) for leaf in leaves]
    return {
        key: [unflatten(form, [leaf[start:stop] for leaf in leaves])] if start < stop else []
        for key, start, stop in zip(keys, [0, *ends], ends)
    }


def _rows(data: Any) -> list[Any]:
    """The rows of a column one by one; flags are Python's own."""
    if isinstance(data, list):
        return data
    if is_leaf(data):
        return data.tolist() if data.ndim == 1 and data.dtype == np.bool_ else list(data)
    leaves, form = flatten(data)
    return [unflatten(form, list(row)) for row in zip(*leaves)]


# -- reuse of columns that a piece leaves alone --------------------------------------------------


def show(batch: Batch, call: PipelineCall) -> dict[str, Any]:
    """The plain batch for a piece; columns that it leaves alone need not be put together again by `to_columns`."""
    plain = to_plain(batch, call)
    call.shown = {}
    for key, columns in batch.groups.items():
        for name, column in columns.items():
            if type(column) is EpisodeColumn:
                place = (key, name) if call.mapped else (None, name)
                record = call.shown.get(place)
                if record is None:
                    record = call.shown[place] = _Shown(plain[key][name] if call.mapped else plain[name], column)
                record.columns[key] = column
    return plain


class _Shown:
    """The items that a piece was shown of a column, to find out whether the piece has left them alone.

    Args:
        value: `{key: [items]}`, or a list of items.
        column: The column that it was made of.
    """

    __slots__ = ("_contents", "_items", "_looks", "columns")

    def __init__(self, value: Any, column: EpisodeColumn) -> None:
        data = column.data
        numbers = column.item_per_row and isinstance(data, np.ndarray) and data.ndim == 1
        fixed = _fixed_contents if numbers or column.holds_objects else _contents
        self._contents = _flags if numbers and data.dtype == np.bool_ else fixed
        self._items, self._looks = self._contents(value)
        self.columns: dict[Any, EpisodeColumn] = {}

    def is_left_alone(self, value: Any) -> bool:
        """True if a value has the same items that were shown, with arrays of the same shapes and types.

        Values that were written to these arrays are in the column.
        """
        if set(map(type, value.values() if type(value) is dict else [value])) - {list}:
            return False
        items, looks = self._contents(value)
        return bool(looks == self._looks) and all(map(is_, items, self._items))


_LOOK = attrgetter("shape", "dtype")


def _contents(value: Any) -> tuple[list[Any], Any]:
    """The items, and the arrays in them; and what else has to stay as it is: shapes, types and nesting."""
    items, counts = _fixed_contents(value)
    if set(map(type, items)) <= {np.ndarray, BatchedNdArray}:
        return items, (counts, list(map(_LOOK, items)))
    parts = list(map(flatten, items))
    arrays = [leaf for leaves, _ in parts for leaf in leaves]
    looks = [(getattr(leaf, "shape", None), getattr(leaf, "dtype", None)) for leaf in arrays]
    return items + arrays, (counts, looks, [form for _, form in parts])


def _fixed_contents(value: Any) -> tuple[list[Any], Any]:
    """Items that are no arrays, and how many each key has."""
    if type(value) is list:
        return value.copy(), len(value)
    return list(chain.from_iterable(value.values())), (list(value), list(map(len, value.values())))


def _flags(value: Any) -> tuple[list[Any], Any]:
    """Python's own flags, spelled out: looking at them one by one takes ten times as long."""
    keys, lists = (list(value), list(value.values())) if type(value) is dict else (None, value)
    try:
        return [], (keys, marshal.dumps(lists, 2))
    except ValueError:  # something else is among them
        return [], None


def to_columns(plain: Mapping[Any, Any], call: PipelineCall) -> Batch:
    """The batch that columnar pieces work on, from a plain one.

    Raises:
        BatchLayoutError: a key that is no chunk of this call, or not the modules that were given rows.
        ColumnError: items that cannot be stacked, because their shapes or nesting differ.
    """
    records, call.shown = call.shown or {}, None
    if call.multi and not call.several:
        call.find_modules(plain)
    if call.mapped:
        return _of_modules(plain, call, records)
    if not call.several and not records and type(plain) is dict:
        for value in plain.values():
            if isinstance(value, dict) and is_plain(value):
                break
        else:
            return Batch({None: plain})
    if call.several and call.by_hand and plain:
        keys = {key for column in plain.values() if is_plain(column) for key in column}
        records = {} if call.include_idle_agents(keys) else records  # columns of other chunks
    batch = Batch({key: {} for key in call.groups})
    target = batch.groups.get(None, batch.loose)
    for name, value in plain.items():
        before = records.get((None, name)) if records else None
        if before is not None and before.columns.keys() <= batch.groups.keys() and before.is_left_alone(value):
            for key, column in before.columns.items():
                batch.groups[key][name] = column
        elif is_plain(value):
            _collect_all(name, value, call, batch)
        else:
            target[name] = value
    return batch


def _collect_all(name: str, value: dict[Any, list[Any]], call: PipelineCall, batch: Batch) -> None:
    """Gather the items of a plain column of all groups."""
    if len(call.groups) == 1:
        ((group_key, group),) = call.groups.items()
        batch.groups[group_key][name] = collect(name, value, group)
        return
    for group_key, group in call.groups.items():
        part = {key: value[key] for key in group.keys if key in value}
        if part:
            batch.groups[group_key][name] = collect(name, part, group)
    _refuse_strangers(name, value, dict.fromkeys(call.keys))


def _of_modules(plain: Mapping[Any, Any], call: PipelineCall, records: Mapping[Any, _Shown]) -> Batch:
    """From `{module: {column: ...}}`; what is under no module's id stays beside the modules."""
    if call.still_acting and not call.shown_items:
        _check_modules(plain, call)
        ended_modules = call.still_acting.keys() - call.groups.keys()  # all of its agents have ended since
        plain = {name: value for name, value in plain.items() if name not in ended_modules}
    batch = Batch({})
    for name, value in plain.items():
        if name not in call.groups or not isinstance(value, Mapping):
            batch.loose[name] = value
        elif not call.shown_items:
            batch.groups[name] = dict(value)
        else:
            columns = batch.groups[name] = {}
            for key, column in value.items():
                before = records.get((name, key))
                if before is not None and before.is_left_alone(column):
                    columns[key] = before.columns[name]
                else:
                    columns[key] = join_items(key, column, call.groups[name]) if isinstance(column, list) else column
    return batch


def _check_modules(batch: Mapping[Any, Any], call: PipelineCall) -> None:
    strangers = [name for name in batch if name not in call.still_acting and isinstance(batch[name], Mapping)]
    missing = [name for name in call.groups if name not in batch]
    if strangers or missing:
        where = "outputs of the modules"
        expected = f"those of modules that were given rows: {', '.join(sorted(map(repr, call.still_acting)))}"
        found, do = f"none of {missing and missing[0]!r}", "let forward return outputs of every module in its batch"
        if strangers:
            found, do = repr(strangers[0]), "let forward return outputs of the modules in its batch only"
            do += f"; {nearest(str(strangers[0]), map(str, call.still_acting))}"
        raise BatchLayoutError(where, expected=expected, found=found, do=do)


def _refuse_strangers(name: str, column: Mapping[Any, Any], keys: Any) -> None:
    strangers = [key for key in column if key not in keys]
    if strangers:
        raise BatchLayoutError(
            f"column {name!r}",
            expected=f"the keys of this call's {len(keys)} chunks, such as {next(iter(keys), None)}",
            found=str(strangers[0]),
            do="add items with add_batch_item(..., single_agent_episode=episode), which finds the key",
        )


# -- items and rows ------------------------------------------------------------------------------


def collect(name: str, column: dict[tuple[Any, ...], list[Any]], group: ChunkGroup) -> EpisodeColumn:
    """Gather the items of a plain column in the order of the group's chunks.

    Raises:
        BatchLayoutError: a key that is no chunk of this group.
        ColumnError: items that cannot be stacked, because their shapes or nesting differ.
    """
    keys = group.keys
    key_set = dict.fromkeys(keys)
    _refuse_strangers(name, column, key_set)
    return _joined(name, [column.get(key, []) for key in keys], group)


def join_items(name: str, items: list[Any], group: ChunkGroup) -> EpisodeColumn:
    """Gather items of all chunks, one chunk after the other, if the items have no keys.

    Args:
        name: The column.
        items: Single rows, or arrays of many rows that were added as such.
        group: The chunks, which have as many rows as it expects.

    Raises:
        ColumnError: another number of rows than the chunks have.
    """
    expected = group.expected_rows
    rows = np.array([1 if name == Columns.INFOS else rows_in(item) for item in items], np.int64)
    ends = np.cumsum(expected)
    chunk = np.searchsorted(ends, np.cumsum(rows))
    if rows.sum() != expected.sum() or not np.array_equal(np.bincount(chunk, rows, len(ends)), expected):
        raise ColumnError(
            f"column {name!r} of module {group.module_id!r}",
            expected=f"{int(expected.sum())} rows, {expected.tolist()} of its chunks",
            found=f"{int(rows.sum())} rows",
            do="keep one item per row of the other columns",
        )
    by_chunk: list[list[Any]] = [[] for _ in expected]
    for item, owner in zip(items, chunk.tolist()):
        by_chunk[owner].append(item)
    return _joined(name, by_chunk, group)


def _joined(name: str, items: list[list[Any]], group: ChunkGroup) -> EpisodeColumn:
    """One column from the items of each chunk."""
    tagged = _join_tagged(name, items)
    if tagged is not None:
        return tagged
    flat = [item for chunk in items for item in chunk]
    if flat and set(map(type, flat)) == {bool}:
        counts = np.fromiter(map(len, items), np.int64, len(items))
        return EpisodeColumn(np.array(flat), None if (counts == 1).all() else counts, item_per_row=True)
    rows_of_each = (len(chunk) if name == Columns.INFOS else sum(map(rows_in, chunk)) for chunk in items)
    counts = np.fromiter(rows_of_each, np.int64, len(items))
    single = name == Columns.INFOS or not any(_is_batched(item) for item in flat)
    if not flat:
        return EpisodeColumn([], counts)
    if name == Columns.INFOS or _is_object(flat[0]):
        return EpisodeColumn(flat, counts, item_per_row=True)
    owners = [i for i, chunk in enumerate(items) for _ in chunk]
    rows = [item if _is_batched(item) else map_struct(lambda leaf: np.asarray(leaf)[None], item) for item in flat]
    try:
        data = join_rows(name, rows, owners, group)
    except ColumnError:
        if name == Columns.ACTIONS_FOR_ENV and group.several:
            return EpisodeColumn(flat, counts, item_per_row=True)  # agents of one module, each with a space of its own
        raise
    one_each = single and bool((counts == 1).all())
    return EpisodeColumn(data, None if one_each else counts, item_per_row=single)


def _join_tagged(name: str, items: list[list[Any]]) -> EpisodeColumn | None:
    """Join items that are all tagged numeric arrays of one shape; None if they are something else."""
    flat = [item for chunk in items for item in chunk]
    if set(map(type, flat)) != {BatchedNdArray} or name == Columns.INFOS:
        return None
    if len({item.shape[1:] for item in flat}) != 1 or flat[0].dtype.kind not in "biufcO":
        return None
    if not all(item.ndim for item in flat):
        return None
    rows = np.fromiter(map(len, flat), np.int64, len(flat))
    if len(flat) == len(items) and all(items):
        return EpisodeColumn(np.concatenate(flat), rows)
    owners = np.repeat(np.arange(len(items)), list(map(len, items)))
    return EpisodeColumn(np.concatenate(flat), np.bincount(owners, rows, len(items)).astype(np.int64))


def _is_batched(item: Any) -> bool:
    return isinstance(flatten(item)[0][0] if not isinstance(item, np.ndarray) else item, BatchedNdArray)


def rows_in(item: Any) -> int:
    """Return the number of rows of a plain column's item: one, or those of an array that was added as rows."""
    return len(flatten(item)[0][0]) if _is_batched(item) else 1


def _is_object(item: Any) -> bool:
    leaves = flatten(item)[0]
    return not leaves or not all(np.asarray(leaf).dtype.kind in "biufc" for leaf in leaves if leaf is not None)


def join_rows(name: str, parts: list[Any], owners: list[int], group: ChunkGroup) -> Any:
    """Concatenate structures of rows.

    Args:
        name: The column, for error messages.
        parts: Structures of arrays with rows on the first axis.
        owners: For each part the chunk it belongs to.
        group: The group of the chunks.

    Raises:
        ColumnError: the rows of two chunks differ in shape or nesting.
    """
    first, form = flatten(parts[0])
    leaves = [first]
    for part, owner in zip(parts[1:], owners[1:]):
        other, other_form = flatten(part)
        if other_form != form or any(a.shape[1:] != b.shape[1:] for a, b in zip(other, first)):
            raise _mixed(name, parts[0], part, owners[0], owner, group)
        leaves.append(other)
    return unflatten(form, [np.concatenate(column) for column in zip(*leaves)])


def _mixed(name: str, first: Any, other: Any, chunk: int, other_chunk: int, group: ChunkGroup) -> ColumnError:
    def spell(part: Any) -> str:
        leaves, form = flatten(part)
        shapes = [f"{leaf.dtype} of shape {leaf.shape[1:]}" for leaf in leaves]
        return f"rows of {', '.join(shapes)}" + (f" nested as {form_of(part)}" if form else "")

    return ColumnError(
        f"column {name!r}",
        expected=f"{spell(first)}, as in {group.describe(chunk)}",
        found=f"{spell(other)} in {group.describe(other_chunk)}",
        do="batch only episodes of one space, or bring them to one shape with an earlier piece",
    )


def merge_columns(
    parts: Sequence[dict[str, Any]], members: Sequence[ChunkGroup], order: Ints, group: ChunkGroup
) -> dict[str, Any]:
    """Return the columns of several groups of chunks as columns of all their chunks.

    Args:
        parts: Each group's columns.
        members: The groups.
        order: How to take their chunks, one group after the other, in the order of `group`: int64 [chunks].
        group: All of them.

    Raises:
        ColumnError: some groups lack a column, or its rows differ in shape.
    """
    names = dict.fromkeys(name for columns in parts for name in columns)
    return {name: _merged(name, parts, members, order, group) for name in names}


def _merged(
    name: str, parts: Sequence[dict[str, Any]], members: Sequence[ChunkGroup], order: Ints, group: ChunkGroup
) -> EpisodeColumn:
    bad_groups = [member for columns, member in zip(parts, members) if name not in columns]
    if bad_groups:
        raise ColumnError(
            f"column {name!r} of module {group.module_id!r}",
            expected="rows of all its agents",
            found=f"none of {bad_groups[0].describe(0)}",
            do="add the column for every agent of the module, or for none",
        )
    columns, sizes = [columns[name] for columns in parts], [len(member.episodes) for member in members]
    firsts = np.argsort(order)[np.cumsum([0, *sizes])[:-1]].tolist()  # of each group, in the new order
    holds_objects = any(column.holds_objects for column in columns)
    data: Any = [item for column in columns for item in column.data] if holds_objects else None
    if not holds_objects:
        data = join_rows(name, [column.data for column in columns], firsts, group)
    one_each = all(column.counts is None for column in columns)
    counts = [
        np.ones(size, np.int64) if column.counts is None else column.counts for column, size in zip(columns, sizes)
    ]
    single = all(column.item_per_row for column in columns)
    together = EpisodeColumn(data, None if one_each else np.concatenate(counts), item_per_row=single)
    return together.picked(order)


def _each_row(data: Any) -> Any:
    """The rows of a column, one by one; flags are NumPy's."""
    return data if isinstance(data, (list, np.ndarray)) else _rows(data)


class _AgentOrder:
    """The rows of some modules in the order of episodes and agents.

    Args:
        groups: The modules' chunks.
        call: Their call.
    """

    def __init__(self, groups: Sequence[ChunkGroup], call: PipelineCall) -> None:
        self._order, chunks = order_of(groups), call.chunks
        at = np.concatenate([group.at for group in groups])[self._order].tolist()
        self._agents = [chunks.agents[i] for i in at]
        owners = np.array([chunks.owners[i] for i in at], np.int64)
        ends = np.bincount(owners, minlength=len(call.episodes)).cumsum().tolist()
        self._spans = list(zip([0, *ends], ends))

    def by_episode(self, columns: Sequence[Any]) -> list[dict[Any, Any]]:
        """Each episode's `{agent: value}`, from one column per module."""
        agents, arrays = self._agents, set(map(type, columns)) == {np.ndarray} and columns[0].dtype != object
        if arrays and len({(column.dtype, column.shape[1:]) for column in columns}) == 1:
            values = list(np.concatenate(columns)[self._order])
        else:
            rows = [row for column in columns for row in _each_row(column)]
            values = [rows[i] for i in self._order.tolist()]
        return [dict(zip(agents[start:stop], values[start:stop])) for start, stop in self._spans]
