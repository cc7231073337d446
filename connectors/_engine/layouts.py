"""From columns of arrays to the plain dicts and lists that user pieces see, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import BatchLayoutError, ColumnError
from epibatch.core.struct_batches import BatchedNdArray
from epibatch.core.structs import flatten, form_of, is_leaf, map_struct, unflatten

from .call import Call
from .columns import EpisodeColumn

if TYPE_CHECKING:
    from .agent_call import AgentCall

__all__ = [
    "collect",
    "hand_out",
    "is_plain",
    "join_items",
    "join_rows",
    "plain_column",
    "rows_in",
    "to_columns",
    "to_plain",
]


def is_plain(value: Any) -> bool:
    """Whether a batch value is a plain per-episode column: `{key tuple: [items]}`."""
    if not isinstance(value, dict) or not value:
        return False
    return all(isinstance(key, tuple) for key in value)


def to_plain(batch: Any, call: Call | AgentCall) -> dict[str, Any]:
    """Turn every EpisodeColumn into `{key: [items]}`; other values stay."""
    if call.grouped:
        return call.to_plain(batch)
    for value in batch.values():
        if type(value) is EpisodeColumn:
            break
    else:
        plain: dict[str, Any] = batch
        return plain
    return {name: plain_column(value, call) if type(value) is EpisodeColumn else value for name, value in batch.items()}


def hand_out(batch: Any, call: Call | AgentCall) -> dict[str, Any]:
    """The plain batch for a piece; columns that it leaves alone need not be put together again by `to_columns`."""
    plain = to_plain(batch, call)
    if not call.grouped and plain is not batch:
        call.handed_out = {
            name: (value, {key: list(items) for key, items in plain[name].items()})
            for name, value in batch.items()
            if type(value) is EpisodeColumn and not value.holds_objects and is_leaf(value.data)
        }
    return plain


def plain_column(column: EpisodeColumn, call: Call) -> dict[tuple[Any, ...], list[Any]]:
    """A column as `{key: [items]}`."""
    keys, data = call.keys, column.data
    if column.counts is None:
        return {key: [_row(data, i)] for i, key in enumerate(keys)}
    if not isinstance(data, list) and not column.single:
        data = map_struct(lambda leaf: leaf.view(BatchedNdArray), data)  # and so is every part of it
    plain, start = {}, 0
    for key, count in zip(keys, column.counts.tolist()):
        stop = start + count
        if isinstance(data, list):
            plain[key] = data[start:stop]
        elif column.single:
            plain[key] = [_row(data, i) for i in range(start, stop)]
        elif type(data) is BatchedNdArray:
            plain[key] = [data[start:stop]] if count else []
        else:
            rows = slice(start, stop)
            plain[key] = [map_struct(lambda leaf, rows=rows: leaf[rows], data)] if count else []
        start = stop
    return plain


def _row(data: Any, i: int) -> Any:
    return data[i] if isinstance(data, list) else map_struct(lambda leaf: leaf[i], data)


def to_columns(batch: dict[str, Any], call: Call | AgentCall) -> Any:
    """Turn every plain per-episode column into an EpisodeColumn; other values stay."""
    if call.grouped:
        return call.to_columns(batch)
    handed_out, call.handed_out = call.handed_out, {}
    for value in batch.values():
        if is_plain(value):
            break
    else:
        return batch
    columns = {}
    for name, value in batch.items():
        column, before = handed_out.get(name, (None, None))
        if column is not None and _untouched(value, column, before):
            columns[name] = column
        else:
            columns[name] = collect(name, value, call) if is_plain(value) else value
    return columns


def _untouched(plain: Any, column: EpisodeColumn, before: dict[Any, list[Any]]) -> bool:
    """Whether a plain column holds the very arrays that were handed out; what was written to them is in the column."""
    if type(plain) is not dict or plain.keys() != before.keys():
        return False
    shape, dtype, first = column.data.shape[1:], column.data.dtype, 0 if column.single else 1
    for key, old in before.items():
        items = plain[key]
        if type(items) is not list or len(items) != len(old):
            return False
        for item, one in zip(items, old):
            if item is not one or item.shape[first:] != shape or item.dtype != dtype:
                return False
    return True


def collect(name: str, column: dict[tuple[Any, ...], list[Any]], call: Call) -> EpisodeColumn:
    """Gather the items of a plain column in the order of the call's chunks.

    Raises:
        BatchLayoutError: a key that is no chunk of this call.
        ColumnError: items that cannot be stacked, because their shapes or nesting differ.
    """
    keys = call.keys
    known = set(keys)
    strangers = [key for key in column if key not in known]
    if strangers:
        raise BatchLayoutError(
            f"column {name!r}",
            expected=f"the keys of this call's {len(keys)} chunks, such as {keys[:1]}",
            found=str(strangers[0]),
            do="add items with add_batch_item(..., single_agent_episode=episode), which finds the key",
        )
    return _joined(name, [column.get(key, []) for key in keys], call)


def join_items(name: str, items: list[Any], call: Call) -> EpisodeColumn:
    """Gather items of all chunks, one chunk after the other, where nothing says which item is whose.

    Args:
        name: The column.
        items: Single rows, or arrays of many rows that were added as such.
        call: The running call, whose chunks have as many rows as it expects.

    Raises:
        ColumnError: another number of rows than the chunks have.
    """
    expected = call.expected_rows
    rows = np.array([1 if name == Columns.INFOS else rows_in(item) for item in items], np.int64)
    ends = np.cumsum(expected)
    chunk = np.searchsorted(ends, np.cumsum(rows))
    if rows.sum() != expected.sum() or not np.array_equal(np.bincount(chunk, rows, len(ends)), expected):
        raise ColumnError(
            f"column {name!r} of module {call.module_id!r}",
            expected=f"{int(expected.sum())} rows, {expected.tolist()} of its chunks",
            found=f"{int(rows.sum())} rows",
            do="keep one item per row of the other columns",
        )
    by_chunk: list[list[Any]] = [[] for _ in expected]
    for item, own in zip(items, chunk.tolist()):
        by_chunk[own].append(item)
    return _joined(name, by_chunk, call)


def _joined(name: str, items: list[list[Any]], call: Call) -> EpisodeColumn:
    """One column from the items of each chunk."""
    tagged = _join_tagged(name, items)
    if tagged is not None:
        return tagged
    counts = np.fromiter((_rows_in_all(name, own) for own in items), np.int64, len(items))
    flat = [item for own in items for item in own]
    single = name == Columns.INFOS or not any(_is_batched(item) for item in flat)
    if not flat:
        return EpisodeColumn([], counts)
    if name == Columns.INFOS or _is_object(flat[0]):
        return EpisodeColumn(flat, counts, single=True)
    owners = [i for i, own in enumerate(items) for _ in own]
    rows = [item if _is_batched(item) else map_struct(lambda leaf: np.asarray(leaf)[None], item) for item in flat]
    try:
        data = join_rows(name, rows, owners, call)
    except ColumnError:
        if name == Columns.ACTIONS_FOR_ENV and call.module_id is not None:
            return EpisodeColumn(flat, counts, single=True)  # agents of one module, each with a space of its own
        raise
    one_each = single and bool((counts == 1).all())
    return EpisodeColumn(data, None if one_each else counts, single=single)


def _join_tagged(name: str, items: list[list[Any]]) -> EpisodeColumn | None:
    """Join items that are all tagged numeric arrays of one shape; None if they are something else."""
    flat = [item for own in items for item in own]
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


def _rows_in_all(name: str, items: list[Any]) -> int:
    return len(items) if name == Columns.INFOS else sum(rows_in(item) for item in items)


def _is_batched(item: Any) -> bool:
    return isinstance(flatten(item)[0][0] if not isinstance(item, np.ndarray) else item, BatchedNdArray)


def rows_in(item: Any) -> int:
    """Return the number of rows of a plain column's item: one, or those of an array that was added as rows."""
    return len(flatten(item)[0][0]) if _is_batched(item) else 1


def _is_object(item: Any) -> bool:
    leaves = flatten(item)[0]
    return not leaves or not all(np.asarray(leaf).dtype.kind in "biufc" for leaf in leaves if leaf is not None)


def join_rows(name: str, parts: list[Any], owners: list[int], call: Call) -> Any:
    """Concatenate structures of rows.

    Args:
        name: The column, for error messages.
        parts: Structures whose leaves have rows first.
        owners: For each part the chunk it belongs to.
        call: The running call.

    Raises:
        ColumnError: two chunks whose rows differ in shape or nesting.
    """
    first, form = flatten(parts[0])
    leaves = [first]
    for part, owner in zip(parts[1:], owners[1:]):
        own, own_form = flatten(part)
        if own_form != form or any(a.shape[1:] != b.shape[1:] for a, b in zip(own, first)):
            raise _mixed(name, parts[0], part, owners[0], owner, call)
        leaves.append(own)
    return unflatten(form, [np.concatenate(column) for column in zip(*leaves)])


def _mixed(name: str, first: Any, other: Any, chunk: int, other_chunk: int, call: Call) -> ColumnError:
    def spell(part: Any) -> str:
        leaves, form = flatten(part)
        shapes = [f"{leaf.dtype} of shape {leaf.shape[1:]}" for leaf in leaves]
        return f"rows of {', '.join(shapes)}" + (f" nested as {form_of(part)}" if form else "")

    return ColumnError(
        f"column {name!r}",
        expected=f"{spell(first)}, as in {call.describe(chunk)}",
        found=f"{spell(other)} in {call.describe(other_chunk)}",
        do="batch only episodes of one space, or bring them to one shape with a piece in front",
    )
