"""Whole columns out of the episodes of a call."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from epibatch.core.columns import Columns, canonical_column, nearest_column
from epibatch.core.errors import ColumnError
from epibatch.core.structs import map_struct

from ...episodes.rows import Rows
from ...episodes.store import Ints
from ..views.held_rows import made_column
from .chunks import ChunkGroup
from .columns import EpisodeColumn


def gather(group: ChunkGroup, name: str, *, plus_one: bool = False, last: Any = None) -> Any:
    """One column of all chunks, chunk after chunk.

    Args:
        group: The chunks.
        name: `obs`, `actions`, `rewards` or the key of a model output.
        plus_one: Give each chunk one row more: the last observation, or the last step again.
        last: With `plus_one`, the value of that row instead of the last step again.

    Returns:
        Arrays of shape [sum of lengths (+ number of chunks), ...]; copies, never views of an episode.
    """
    rows = _rows(group, name, plus_one, last)
    rows.check()
    return rows.joined()


def gather_column(group: ChunkGroup, name: str, *, last: Any = None) -> EpisodeColumn:
    """One column of all chunks, with a bootstrap row each if the call has them.

    Its rows are looked up now and copied when they are needed, so that they go straight into the layout that is wanted.

    Args:
        group: The chunks.
        name: `obs`, `actions`, `rewards` or the key of a model output.
        last: Value of the bootstrap rows; default: the last observation, or the last step again.
    """
    return _column(_rows(group, name, group.plus_one, last), group)


def _rows(group: ChunkGroup, name: str, plus_one: bool, last: Any) -> Rows:
    """The column's rows where they lie."""
    exists = plus_one and (name == Columns.OBS or group.with_bootstrap_step is not None)
    rows = group.reader.rows(name, 0, group.lengths + 1 if exists else None)
    return rows.with_bootstraps(last) if plus_one and not exists else rows


def _column(rows: Rows, group: ChunkGroup) -> EpisodeColumn:
    return EpisodeColumn(rows if rows.check() else rows.joined(), group.counts)


def observations_unjoined(group: ChunkGroup, *, newest: bool) -> tuple[Any, Ints | None]:
    """Return the observations of all chunks as lists, since they may differ in shape, and the number of each chunk's.

    Args:
        group: The chunks.
        newest: Whether to return the newest ones only: one each (None).
    """
    if newest:
        return group.reader.newest_unjoined(Columns.OBS), None
    return _rows(group, Columns.OBS, group.plus_one, None).unjoined(), group.counts


def next_observations(group: ChunkGroup) -> EpisodeColumn:
    """Return the observation after each step; a bootstrap row has the last observation again.

    Where a piece of the pipeline makes `obs` in its own way, as frame stacking does, it makes these too.
    """
    if group.call.observations_by is None:
        rows = group.reader.rows(Columns.OBS, 1, group.lengths + 1)
        return _column(rows.with_bootstraps() if group.plus_one else rows, group)
    chunks, steps = rows_of(group)
    return EpisodeColumn(observations_at(group, chunks, np.minimum(steps + 1, group.lengths[chunks])), group.counts)


def rows_of(group: ChunkGroup) -> tuple[Ints, Ints]:
    """Return the chunk of each row of a train batch, and its step there: int64 [rows] each."""
    counts = group.counts
    chunks = np.repeat(np.arange(len(counts)), counts)
    return chunks, np.arange(len(chunks)) - (np.cumsum(counts) - counts)[chunks]


def observations_at(group: ChunkGroup, chunks: Ints, steps: Ints) -> Any:
    """Return the observations at steps of chunks, as the pipeline makes them: arrays of shape [R, ...].

    Args:
        group: The chunks.
        chunks: Their positions: int64 [R].
        steps: A step of each, up to its length, or one that is ahead of it: int64 [R].
    """
    piece, table = group.call.observations_by, group.reader.table
    if piece is None:
        return group.reader.at(Columns.OBS, chunks, steps)
    made = copy.copy(group)
    in_order = table.owns or not (table.skips_steps or table.ahead.any())
    if not in_order:
        made.use(table.observations_at(chunks, steps))
    made.add_bootstrap_rows()
    observations = group.piece_for(piece).run({}, made)[Columns.OBS].data
    if not in_order:
        return observations
    sizes = group.lengths + 1  # every observation, one chunk after the other
    rows = (np.cumsum(sizes) - sizes)[chunks] + steps
    return map_struct(lambda leaf: leaf[rows], observations)


def end_flags(group: ChunkGroup, *, truncate: bool = False) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return terminateds and truncateds of a train batch: bool, [2, rows]; only a chunk's last step can be True.

    Args:
        group: The chunks.
        truncate: Whether chunks that were not terminated count as truncated.
    """
    counts, ends = group.counts, group.reader.ends
    if truncate:
        ends = np.array([ends[0], ends[1] | ~ends[0]])
    flags = np.zeros((2, int(counts.sum())), np.bool_)
    last = counts.cumsum() - (1 + group.plus_one)
    if group.lengths.all():
        flags[:, last] = ends
    else:
        steps = group.lengths > 0
        flags[:, last[steps]] = ends[:, steps]
    return flags


_OF_EPISODES = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)
_FLAGS = (Columns.TERMINATEDS, Columns.TRUNCATEDS)


def column_or_gather(batch: dict[str, Any], group: ChunkGroup, column: str, piece: str) -> Any:
    """Return a column of the batch; if it has none yet, the rows of the episodes.

    In training these are all steps of all chunks, and a bootstrap row each if the pipeline has such rows: the last
    observation, a reward of 0, flags that are False, the last step again. When acting they are the newest observations.

    Args:
        batch: Columns.
        group: The chunks.
        column: `obs`, `new_obs`, `actions`, `rewards`, `terminateds`, `truncateds`, the key of a model output, `t`,
            `infos/speed` for an entry of the infos, or a name such as `env_index`; any that the batch has.
        piece: Name of the piece, for messages.

    Raises:
        ColumnError: neither has such a column; or the batch has not, and rows of episodes would come too late for it.
    """
    if column in batch:
        return batch[column]
    if group.batched:
        names = list(map(str, batch))
        raise ColumnError(
            f"{piece}, column {column!r}",
            expected="a column of the batch, which BatchIndividualItems has made arrays of",
            found=f"columns {sorted(names)}",
            do=f"{nearest_column(column, names)}; or put {piece} before BatchIndividualItems",
        )
    if group.of_steps and column == Columns.NEXT_OBS:
        return next_observations(group)
    if group.of_steps and column in _OF_EPISODES:
        return gather_column(group, column, last=0.0 if column == Columns.REWARDS else None)
    if group.of_steps and column in _FLAGS:
        flags = end_flags(group, truncate=group.plus_one)
        return EpisodeColumn(flags[_FLAGS.index(column)], group.counts, item_per_row=True)
    if column == Columns.OBS:
        return EpisodeColumn(group.reader.newest(Columns.OBS)[0])
    if column == Columns.ACTIONS_FOR_ENV and Columns.ACTIONS in batch:
        return batch[Columns.ACTIONS]
    outputs = group.reader.outputs if group.of_steps else []
    if column in outputs:
        return gather_column(group, column)
    made = made_column(group, column, f"{piece}, column {column!r}")
    if made is not None:
        return made
    raise _missing(batch, group, column, piece, outputs)


def _missing(batch: dict[str, Any], group: ChunkGroup, column: str, piece: str, outputs: list[str]) -> ColumnError:
    names = [
        *map(str, batch),
        *((*_OF_EPISODES, *_FLAGS, Columns.NEXT_OBS) if group.of_steps else [Columns.OBS]),
        *outputs,
    ]
    name = canonical_column(column)
    acting = not group.of_steps and name in (Columns.ACTIONS, Columns.REWARDS)
    do = "put the piece into the learner pipeline; past actions and rewards are shown by PrevActionsPrevRewards"
    return ColumnError(
        f"{piece}, column {column!r}",
        expected="a column of the batch" + ("" if acting else ", or of the episodes"),
        found="none while acting, when only the newest observation is there"
        if acting
        else f"columns {sorted(set(names))}",
        do=(f"name it {name!r}, and " if name != column else "") + do if acting else nearest_column(column, names),
    )
