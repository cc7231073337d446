"""Conversion of per-episode batches between the libraries: their keys and their tags."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from epibatch.connectors._engine.layouts import is_plain
from epibatch.core.columns import Columns
from epibatch.core.errors import BatchLayoutError
from epibatch.core.structs import BatchedNdArray, map_struct

from .library import rllib

Key = tuple[Any, ...]


def rllib_key(episode: Any) -> Key:
    """Return the key under which RLlib's pieces store the rows of one of its single-agent episodes."""
    if episode.agent_id is not None:
        return (episode.multi_agent_episode_id, episode.agent_id, episode.module_id)
    return (episode.id_,)


def to_rllib_tags(item: Any) -> Any:
    """Return an item of a batch with RLlib's tag instead of ours on arrays of several rows."""
    cls = rllib().BatchedNdArray
    return map_struct(lambda leaf: leaf.view(cls) if isinstance(leaf, BatchedNdArray) else leaf, item)


def to_epibatch_tags(item: Any) -> Any:
    """Return an item of a batch with our tag instead of RLlib's on arrays of several rows."""
    cls = rllib().BatchedNdArray
    return map_struct(lambda leaf: leaf.view(BatchedNdArray) if isinstance(leaf, cls) else leaf, item)


def with_keys(
    batch: dict[str, Any],
    old: Sequence[Key],
    new: Sequence[Key],
    retag: Callable[[Any], Any],
    lengths: Sequence[int] = (),
) -> dict[str, Any]:
    """Return a batch with other keys and tags in its per-episode columns; other columns stay.

    A column with unknown keys is matched by order if it has one key per chunk: RLlib's pieces rename episodes, and
    columns that were added earlier keep the old names.

    Args:
        batch: The batch.
        old: The key of each chunk in it; chunks may share one, as RLlib's do if ids occur twice.
        new: The key of each chunk in the returned batch.
        retag: Converts an item of the old batch to one of the new.
        lengths: Rows of each chunk, which distinguish the items of a shared key.

    Raises:
        BatchLayoutError: keys that belong to no chunk, or items of a shared key that cannot be distinguished.
    """
    chunks: dict[Key, list[int]] = defaultdict(list)
    for i, key in enumerate(old):
        chunks[key].append(i)
    out: dict[str, Any] = {}
    for name, column in batch.items():
        if isinstance(column, list):
            out[name] = [retag(item) for item in column]
        elif not is_plain(column):
            out[name] = column
        else:
            owners = _owners(name, column, chunks, len(old))
            converted: dict[Key, list[Any]] = {}
            for items, indices in zip(column.values(), owners):
                for i, part in zip(indices, _shares(name, items, indices, lengths)):
                    converted.setdefault(new[i], []).extend(retag(item) for item in part)
            out[name] = converted
    return out


def sequences(batch: dict[str, Any], keys: Sequence[Key], shared_data: dict[str, Any]) -> Any:
    """Return the number of padded sequences of each chunk in a per-episode batch; None without a time axis.

    Args:
        batch: The batch.
        keys: The key of each chunk.
        shared_data: The pieces' shared data; the padding piece stores the numbers there, in both libraries.
    """
    column = batch.get(Columns.SEQ_LENS, {})
    if not is_plain(column) or not any(str(name).startswith("_zero_padded_for_mid=") for name in shared_data):
        return None
    return np.array([sum(int(np.size(item)) for item in column.get(key, [])) for key in keys], np.int64)


def _owners(name: str, column: dict[Key, Any], chunks: dict[Key, list[int]], count: int) -> list[list[int]]:
    """Return the chunks of each key of a column."""
    unknown = [key for key in column if key not in chunks]
    if not unknown:
        return [chunks[key] for key in column]
    if len(column) == count:
        return [[i] for i in range(count)]
    raise BatchLayoutError(
        f"column {name!r}",
        expected=f"keys of this call's chunks, such as {list(chunks)[:1]}",
        found=str(unknown[0]),
        do="add items with add_batch_item(..., single_agent_episode=episode), which finds the key",
    )


def _shares(name: str, items: list[Any], chunks: list[int], lengths: Sequence[int]) -> list[list[Any]]:
    """Return the items of a key, separated by chunk."""
    if len(chunks) == 1:
        return [items]
    for counts in ([1] * len(chunks), [lengths[i] for i in chunks] if lengths else []):
        if counts and sum(counts) == len(items):
            stops = np.cumsum(counts).tolist()
            return [items[stop - count : stop] for stop, count in zip(stops, counts)]
    raise BatchLayoutError(
        f"column {name!r}",
        expected=f"one item for each of the {len(chunks)} chunks that share a key, or one per step",
        found=f"{len(items)} items",
        do="give the chunks ids of their own: RLlib keeps the rows of equal ids under one key",
    )
