"""Adding items to per-episode batches, and changing them: the helpers of every ported piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from epibatch.core.columns import nearest_column
from epibatch.core.errors import BatchLayoutError, ColumnError
from epibatch.core.structs import BatchedNdArray, flatten, map_struct

from ...episodes.multi_agent_episode import MultiAgentEpisode
from .call import running_call


def key_for(episode: Any) -> tuple[Any, ...]:
    """The batch key of an episode: that of its chunk in the running call, else made of its ids.

    Raises:
        BatchLayoutError: an episode of several agents.
    """
    call = running_call()
    key = None if call is None else call.key_of(episode)
    if key is not None:
        return key
    if isinstance(episode, MultiAgentEpisode):
        raise BatchLayoutError(
            "an item of the batch",
            expected="the episode of one agent, to which it belongs",
            found=f"all of {episode}",
            do="go through `self.single_agent_episode_iterator(episodes)`, and pass what it gives",
        )
    if episode.agent_id is not None:
        return (episode.multi_agent_episode_id, episode.agent_id, episode.module_id)
    return (episode.id_,)


def _refuse_module_major(batch: dict[str, Any], column: str, episode: Any) -> None:
    module_id = getattr(episode, "module_id", None)
    if module_id is not None and module_id in batch:
        raise _module_major(column, module_id, batch[module_id])
    for name, value in batch.items():
        if not isinstance(value, dict) or not value or isinstance(next(iter(value)), tuple):
            continue
        if not any(isinstance(key, tuple) for key in value):
            raise _module_major(column, name, value)


def _module_major(column: str, module_id: Any, columns: Any) -> BatchLayoutError:
    return BatchLayoutError(
        f"adding to column {column!r}",
        expected="a per-episode batch: {column: {episode key: [items]}}",
        found=f"a per-module batch ({module_id!r} holds columns {sorted(map(str, columns))})",
        do="add items before the batch is mapped to modules",
    )


def add_batch_item(batch: dict[str, Any], column: str, item_to_add: Any, single_agent_episode: Any = None) -> None:
    """Append one item to a column, in place.

    Args:
        batch: A per-episode batch.
        column: Name of the column.
        item_to_add: One row.
        single_agent_episode: The episode the row belongs to; without one the column is a plain list.

    Raises:
        BatchLayoutError: a per-module batch, or a column added to both with and without episode.
    """
    _refuse_module_major(batch, column, single_agent_episode)
    if single_agent_episode is None:
        items = batch.setdefault(column, [])
        is_mixed = not isinstance(items, list)
    else:
        by_key = batch.setdefault(column, {})
        is_mixed = not isinstance(by_key, dict)
        items = [] if is_mixed else by_key.setdefault(key_for(single_agent_episode), [])
    if is_mixed:
        raise BatchLayoutError(
            f"column {column!r}",
            expected="all its items added with an episode, or all without",
            found="both",
            do="pass single_agent_episode= every time",
        )
    items.append(item_to_add)


def add_n_batch_items(
    batch: dict[str, Any], column: str, items_to_add: Any, num_items: int, single_agent_episode: Any = None
) -> None:
    """Append several items to a column, in place.

    Args:
        batch: A per-episode batch.
        column: Name of the column.
        items_to_add: A list of rows, or stacked arrays of shape [num_items, ...].
        num_items: How many there are.
        single_agent_episode: The episode they belong to.

    Raises:
        ColumnError: another number of rows than `num_items`.
    """
    is_list = isinstance(items_to_add, list)
    leaves = [items_to_add] if is_list or isinstance(items_to_add, np.ndarray) else flatten(items_to_add)[0]
    found = {len(leaf) for leaf in leaves}
    if found != {num_items}:
        owner = "" if single_agent_episode is None else f", episode {single_agent_episode.id_!r}"
        raise ColumnError(
            f"column {column!r}{owner}",
            expected=f"{num_items} rows, as num_items says",
            found=" and ".join(f"{count} rows" for count in sorted(found)),
            do="pass as many rows as num_items says",
        )
    if is_list:
        for item in items_to_add:
            add_batch_item(batch, column, item, single_agent_episode)
    else:
        add_batch_item(batch, column, map_struct(_tagged, items_to_add), single_agent_episode)


def _tagged(leaf: Any) -> BatchedNdArray:
    return leaf if isinstance(leaf, BatchedNdArray) else BatchedNdArray(np.asarray(leaf))


def foreach_batch_item_change_in_place(
    batch: dict[str, Any], column: str | Sequence[str], func: Callable[..., Any]
) -> None:
    """Replace every item of one or several columns by what `func` makes of it.

    Args:
        batch: A per-episode batch.
        column: A name, or several: then `func` gets and returns tuples.
        func: Called as `func(item, episode_id, agent_id, module_id)`.

    Raises:
        ColumnError: the batch lacks a column.
        BatchLayoutError: the columns do not hold the same episodes.
    """
    names = [column] if isinstance(column, str) else list(column)
    for name in names:
        if name not in batch:
            raise ColumnError(
                "batch", expected=f"a column {name!r}", found="none", do=nearest_column(name, map(str, batch))
            )
    first = batch[names[0]]
    groups = [(None, first)] if isinstance(first, list) else list(first.items())
    for key, items in groups:
        columns = [batch[name] if key is None else batch[name].get(key, []) for name in names]
        if len({len(rows) for rows in columns}) != 1:
            raise BatchLayoutError(
                f"columns {names}",
                expected=f"the same number of items for {key}",
                found=str([len(rows) for rows in columns]),
                do="add items to all of them",
            )
        ids = (*(key or ()), None, None, None)[:3]
        for i in range(len(items)):
            if isinstance(column, str):
                items[i] = func(items[i], *ids)
            else:
                for rows, new in zip(columns, func(tuple(rows[i] for rows in columns), *ids)):
                    rows[i] = new


def switch_batch_from_column_to_module_ids(batch: dict[str, Any]) -> dict[str, Any]:
    """Turn `{column: {module: data}}` into `{module: {column: data}}`."""
    out: dict[str, Any] = {}
    for column, by_module in batch.items():
        for module_id, data in by_module.items():
            out.setdefault(module_id, {})[column] = data
    return out


def _single_agent_episodes(episodes: Sequence[Any], stepped_only: bool) -> Sequence[Any]:
    if not len(episodes) or not isinstance(episodes[0], MultiAgentEpisode):
        return episodes
    if stepped_only:
        return [episode.agent_episodes[key] for episode in episodes for key in episode.get_agents_that_observed()]
    call = running_call()
    learning = (
        call is not None and call.training and not call.by_hand
    )  # parts without steps have no rows in a train batch
    return [part.episode for episode in episodes for part in episode.segments if len(part.episode) or not learning]


def single_agent_episode_iterator(
    episodes: Sequence[Any], agents_that_stepped_only: bool = True, zip_with_batch_column: Any = None
) -> Iterator[Any]:
    """Go through all single-agent episodes.

    Args:
        episodes: The episodes of a call.
        agents_that_stepped_only: For multi-agent episodes, only agents with a new observation.
        zip_with_batch_column: A per-episode column, or a list of one item per single-agent episode; then pairs of
            episode and item come.

    Raises:
        BatchLayoutError: the column does not hold exactly one item per episode.
    """
    episodes = _single_agent_episodes(episodes, agents_that_stepped_only)
    if zip_with_batch_column is None:
        yield from episodes
        return
    if isinstance(zip_with_batch_column, list):
        if len(zip_with_batch_column) != len(episodes):
            raise _unequal(len(episodes), f"a list of {len(zip_with_batch_column)}")
        yield from zip(episodes, zip_with_batch_column)
        return
    keys = [key_for(episode) for episode in episodes]
    items = {key: zip_with_batch_column.get(key, []) for key in keys}
    errors = [key for key in keys if len(items[key]) != 1] or [key for key in zip_with_batch_column if key not in items]
    if errors:
        raise _unequal(len(keys), f"{len(zip_with_batch_column.get(errors[0], []))} for {errors[0]}")
    for episode, key in zip(episodes, keys):
        yield episode, items[key][0]


def _unequal(episodes: int, found: str) -> BatchLayoutError:
    return BatchLayoutError(
        "zip_with_batch_column",
        expected=f"one item for each of {episodes} episodes",
        found=found,
        do="zip with a column that has one item per episode",
    )
