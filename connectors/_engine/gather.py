"""Whole columns out of the episodes of a call."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from epibatch.core.columns import Columns, column_meant, nearest_column
from epibatch.core.errors import ColumnError, EpisodeError, nearest
from epibatch.core.structs import flatten, flatten_like, map_struct, unflatten

from ...episodes._storage.column_parts import ColumnParts
from ...episodes._storage.newest_rows import newest_rows
from ...episodes.infinite_lookback_buffer import InfiniteLookbackBuffer
from ...episodes.single_agent_episode import no_column
from .chunks import ChunkGroup
from .columns import EpisodeColumn
from .layouts import join_rows

__all__ = ["end_flags", "gather", "gather_column", "latest_observations", "next_observations", "output_keys", "taken"]


def output_keys(group: ChunkGroup) -> list[str]:
    """Names of the model outputs that the call's episodes have; every episode has the same.

    Raises:
        ColumnError: an episode lacks an output that another one has.
    """
    if group.vector is not None:
        return group.vector.output_names()
    outputs = [episode.extra_model_outputs.keys() for episode in group.episodes]
    first = outputs[0] if outputs else {}.keys()
    for chunk, own in enumerate(outputs):
        if own != first:
            raise ColumnError(
                "model outputs",
                expected=f"{sorted(first)}, as in {group.describe(0)}",
                found=f"{sorted(own)} in {group.describe(chunk)}",
                do="batch only episodes that were recorded with the same module",
            )
    return list(first)


def gather(group: ChunkGroup, name: str, *, plus_one: bool = False, last: Any = None) -> Any:
    """One column of all chunks, chunk after chunk.

    Args:
        group: The running call.
        name: `obs`, `actions`, `rewards` or the key of a model output.
        plus_one: Give each chunk one row more: the last observation, or the last step again.
        last: With `plus_one`, the value of that row instead of the last step again.

    Returns:
        Arrays of shape [sum of lengths (+ number of chunks), ...]; copies, never views of an episode.
    """
    data = _gathered(group, name, plus_one, last)
    return data.joined() if type(data) is ColumnParts else data


def gather_column(group: ChunkGroup, name: str, *, last: Any = None) -> EpisodeColumn:
    """One column of all chunks, with a bootstrap row each if the call has them.

    Its rows are looked up now and copied when they are needed, so that they go straight into the layout that is wanted.

    Args:
        group: The running call.
        name: `obs`, `actions`, `rewards` or the key of a model output.
        last: Value of the bootstrap rows; default: the last observation, or the last step again.
    """
    return EpisodeColumn(_gathered(group, name, group.plus_one, last), group.counts)


def _gathered(group: ChunkGroup, name: str, plus_one: bool, last: Any) -> Any:
    """The column's arrays, or its parts where nothing but joining them is left to do."""
    vector = group.vector
    if vector is not None:
        data = vector.gather(name, plus_one=plus_one)
    else:
        parts = _parts(group, name, plus_one, last)
        if parts is not None:
            return parts
        data = _from_list(group, name, plus_one)
    _refuse_ragged(group, name, data, plus_one)
    if plus_one and last is not None and group.lengthened is None:
        if isinstance(last, float):  # integers become floats, float32 stays
            data = map_struct(lambda leaf: leaf.astype(np.result_type(leaf.dtype, last), copy=False), data)
        ends = np.cumsum(group.lengths + 1) - 1
        for leaf in flatten(data)[0]:
            leaf[ends] = last
    return data


def _parts(group: ChunkGroup, name: str, plus_one: bool, last: Any) -> ColumnParts | None:
    """The column's rows where they lie, unless they are views of a block, or no plain arrays of one shape."""
    repeat = plus_one and name != Columns.OBS and group.lengthened is None
    more = int(plus_one and not repeat)
    lengths = group.lengths.tolist()
    if repeat and not all(lengths):
        return None
    counts = [length + more for length in lengths] if more else lengths
    parts = ColumnParts.of(_buffers(group.lengthened or group.episodes, name), counts) if counts else None
    return parts.with_bootstraps(last) if parts is not None and repeat else parts


def _buffers(episodes: Sequence[Any], name: str) -> list[Any]:
    if name == Columns.OBS:
        return [episode.observations for episode in episodes]
    if name == Columns.ACTIONS:
        return [episode.actions for episode in episodes]
    if name == Columns.REWARDS:
        return [episode.rewards for episode in episodes]
    outputs = [episode.extra_model_outputs for episode in episodes]
    try:
        return [own[name] for own in outputs]
    except KeyError:
        episode, own = next((one, own) for one, own in zip(episodes, outputs) if name not in own)
        do = nearest(name, own)
        raise ColumnError(f"episode {episode.id_!r}", expected=f"a column {name!r}", found="none", do=do) from None


def _from_list(group: ChunkGroup, name: str, plus_one: bool) -> Any:
    """Join the chunks' rows; each part is a list of leaves."""
    repeat = plus_one and name != Columns.OBS and group.lengthened is None
    more = int(plus_one and not repeat)
    form, parts, shape, regular = None, [], None, True
    episodes = group.lengthened or group.episodes
    for episode, buffer, length in zip(episodes, _buffers(episodes, name), group.lengths.tolist()):
        if not length + more:
            continue  # a column without rows need not know its form
        if not isinstance(buffer, InfiniteLookbackBuffer):
            raise no_column(episode, name, buffer)
        rows = buffer.rows(0, length + more)
        own = [leaf.shape[1:] for leaf in rows]
        if shape is None:
            form, shape = buffer.form, own
        regular = regular and buffer.form == form and own == shape
        parts.append(rows)
        if repeat:
            parts.append([leaf[-1:] for leaf in rows])
    if not regular:
        return _irregular(group, name, more, repeat)
    if not shape:
        raise EpisodeError(
            f"column {name!r}",
            expected="a step in one of the episodes, which shows what the column holds",
            found=f"{len(group.episodes)} without steps",
            do="leave out episodes without steps: [episode for episode in episodes if len(episode)]",
        )
    return unflatten(form, [np.concatenate(column) for column in zip(*parts)])


def _irregular(group: ChunkGroup, name: str, more: int, repeat: bool) -> Any:
    """Join columns whose chunks differ in nesting or shape; raises unless only key order differs."""
    buffers = _buffers(group.lengthened or group.episodes, name)
    parts = [buffer.get(slice(0, length + more)) for buffer, length in zip(buffers, group.lengths.tolist())]
    first_form = buffers[0].form
    with suppress(ColumnError):  # join_rows names the episodes
        parts = [unflatten(first_form, flatten_like(first_form, part)) for part in parts]
    if repeat:
        parts = [map_struct(lambda leaf: np.concatenate([leaf, leaf[-1:]]), part) for part in parts]
    return join_rows(name, parts, list(range(len(parts))), group)


def _refuse_ragged(group: ChunkGroup, name: str, data: Any, plus_one: bool) -> None:
    for leaf in flatten(data)[0]:
        if leaf.dtype == object and len(leaf) and isinstance(leaf[0], (np.ndarray, np.generic)):
            if leaf[0].dtype.kind in "SU" and not any(map(np.ndim, leaf)):
                continue  # text, as NumPy has it
            shapes = [np.shape(row) for row in leaf]
            other = next((i for i, shape in enumerate(shapes) if shape != shapes[0]), 0)
            chunk = int(np.searchsorted(np.cumsum(group.lengths + plus_one), other, side="right"))
            raise ColumnError(
                f"column {name!r}, {group.describe(chunk)}",
                expected=f"rows of one shape, {shapes[0]}",
                found=f"a row of shape {shapes[other]} (the episode keeps such a column as objects)",
                do="bring them to one shape, by padding say, with a piece in front",
            )


def next_observations(group: ChunkGroup) -> EpisodeColumn:
    """What was observed behind each step; a bootstrap row has the last observation again."""
    parts = _next_rows(group)
    if parts is not None:
        return EpisodeColumn(parts, group.counts)
    observations = gather(group, Columns.OBS, plus_one=True)
    rows = np.arange(1, int(group.lengths.sum()) + len(group.lengths) + 1)
    ends = np.cumsum(group.lengths + 1) - 1
    if group.plus_one:
        rows[ends] = ends
    else:
        rows = np.delete(rows, ends)
    return EpisodeColumn(map_struct(lambda leaf: leaf[rows], observations), group.counts)


def _next_rows(group: ChunkGroup) -> ColumnParts | None:
    """The rows where they lie, unless they are views of a block, or no plain arrays of one shape."""
    lengths = group.lengths.tolist()
    if group.vector is not None or group.lengthened is not None or not all(lengths):
        return None
    parts = ColumnParts.of([episode.observations for episode in group.episodes], lengths, first=1) if lengths else None
    return parts.with_bootstraps() if parts is not None and group.plus_one else parts


def latest_observations(group: ChunkGroup) -> Any:
    """The newest observation of every chunk: arrays of shape [number of chunks, ...], copies.

    Raises:
        ColumnError: observations that differ in shape or nesting.
    """
    if group.recording is not None:
        return map_struct(np.array, group.recording.latest_observations())
    rows = newest_rows([episode.observations for episode in group.episodes])
    if rows is not None:
        return rows
    rows = [episode.observations.last() for episode in group.episodes]
    with_axis = [map_struct(lambda leaf: np.asarray(leaf)[None], row) for row in rows]
    return join_rows(Columns.OBS, with_axis, list(range(len(rows))), group)


def end_flags(group: ChunkGroup, *, truncate: bool = False) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return terminateds and truncateds of a train batch: bool, [2, rows]; only a chunk's last step can be True.

    Args:
        group: The running call.
        truncate: Whether chunks that were not terminated count as truncated.
    """
    flags = np.zeros((2, int(group.counts.sum())), np.bool_)
    last, steps = np.cumsum(group.counts) - 1 - group.plus_one, group.lengths > 0
    terminated, truncated = group.ends()
    flags[:, last[steps]] = np.stack([terminated, truncated | ~terminated if truncate else truncated])[:, steps]
    return flags


_OF_EPISODES = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)
_FLAGS = (Columns.TERMINATEDS, Columns.TRUNCATEDS)


def taken(batch: dict[str, Any], group: ChunkGroup, column: str, piece: str) -> Any:
    """What a batch has as a column; if it has none yet, the rows of the episodes.

    In training these are all steps of all chunks, and a bootstrap row each if the pipeline has such rows: the last
    observation, a reward of 0, flags that are False, the last step again. When acting they are the newest observations.

    Args:
        batch: Columns.
        group: The running call.
        column: `obs`, `new_obs`, `actions`, `rewards`, `terminateds`, `truncateds` or the key of a model
            output; any that the batch has.
        piece: Name of the piece, for messages.

    Raises:
        ColumnError: neither has such a column; or the batch has not, and rows of episodes would come too late for it.
    """
    if column in batch:
        return batch[column]
    if group.batched:
        raise _too_late(batch, column, piece)
    if group.training is not False and column == Columns.NEXT_OBS:
        return next_observations(group)
    if group.training is not False and column in _OF_EPISODES:
        return gather_column(group, column, last=0.0 if column == Columns.REWARDS else None)
    if group.training is not False and column in _FLAGS:
        flags = end_flags(group, truncate=group.plus_one)
        return EpisodeColumn(flags[_FLAGS.index(column)], group.counts, single=True)
    if column == Columns.OBS:
        return EpisodeColumn(latest_observations(group))
    if column == Columns.ACTIONS_FOR_ENV and Columns.ACTIONS in batch:
        return batch[Columns.ACTIONS]
    outputs = output_keys(group) if group.training is not False else []
    if column in outputs:
        return gather_column(group, column)
    raise _missing(batch, group, column, piece, outputs)


def _too_late(batch: dict[str, Any], column: str, piece: str) -> ColumnError:
    known = list(map(str, batch))
    return ColumnError(
        f"{piece}, column {column!r}",
        expected="a column of the batch, which BatchIndividualItems has made arrays of",
        found=f"columns {sorted(known)}",
        do=f"{nearest_column(column, known)}; or put {piece} in front of BatchIndividualItems",
    )


def _missing(batch: dict[str, Any], group: ChunkGroup, column: str, piece: str, outputs: list[str]) -> ColumnError:
    known = [
        *map(str, batch),
        *([Columns.OBS] if group.training is False else (*_OF_EPISODES, *_FLAGS, Columns.NEXT_OBS)),
        *outputs,
    ]
    meant = column_meant(column)
    acting = group.training is False and meant in (Columns.ACTIONS, Columns.REWARDS)
    do = "put the piece into the learner pipeline; past actions and rewards are shown by PrevActionsPrevRewards"
    return ColumnError(
        f"{piece}, column {column!r}",
        expected="a column of the batch" + ("" if acting else ", or of the episodes"),
        found="none while acting, when only the newest observation is there"
        if acting
        else f"columns {sorted(set(known))}",
        do=(f"name it {meant!r}, and " if meant != column else "") + do if acting else nearest_column(column, known),
    )
