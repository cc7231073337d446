"""Rows of a column, some steps away from the rows of a batch, that lie in the episodes until they are batched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from epibatch.core.columns import Columns
from epibatch.core.errors import LookbackError

from .chunks import ChunkGroup

_AT_OBSERVATIONS = (Columns.OBS, Columns.INFOS, Columns.T)

Indices = npt.NDArray[np.int64]


def check_lookback(group: ChunkGroup, column: str, needed: int | Indices, where: str) -> None:
    """Make sure that steps before a chunk that it does not keep do not exist either, so that fill values are right.

    Args:
        group: The chunks.
        column: Name of the column that is read, for the message.
        needed: How many steps before its start are read: of every chunk, or of each (int64 [chunks]).
        where: The piece, for the message.

    Raises:
        LookbackError: an episode had such steps, and its chunk lost them when it was cut.
    """
    starts, lookbacks = group.reader.starts, group.reader.lookbacks
    chunks = np.flatnonzero((lookbacks < needed) & (lookbacks < starts))
    if len(chunks):
        chunk = int(chunks[0])
        steps, start = int(np.broadcast_to(needed, starts.shape)[chunk]), int(starts[chunk])
        several = group.episodes[chunk].multi_agent_episode_id is not None
        cut = f"agent_steps={steps}" if several else f"len_lookback_buffer={steps}, or RolloutStorage(lookback={steps})"
        raise LookbackError(
            f"{where}, {group.describe(chunk)} that starts at t={start}",
            expected=f"a lookback of {min(steps, start)} steps",
            found=f"{lookbacks[chunk]} steps (filling in would hide {column} that exist)",
            do=f"cut episodes with {cut}",
        )


def window_bounds(
    group: ChunkGroup, column: str, shifts: Sequence[int], starts: Indices | int, counts: Indices, where: str
) -> tuple[Indices, Indices]:
    """Return which rows of each chunk the windows of its batch rows need, as far as the chunk holds them.

    Args:
        group: The chunks.
        column: Name of the column.
        shifts: Steps from a row of the batch to the values of its window; at least one.
        starts: Place of each chunk's first row in the batch, counted from the chunk's start.
        counts: Rows of each chunk in the batch.
        where: The piece, for the message.

    Returns:
        The first such row of each chunk, and the one after the last: int64 [chunks] each.

    Raises:
        LookbackError: a chunk has lost rows that existed.
    """
    lows, ends = starts + np.full_like(counts, min(shifts)), group.lengths + (column in _AT_OBSERVATIONS)
    check_lookback(group, column, np.where(counts > 0, -lows, 0), where)
    firsts = np.minimum(np.maximum(lows, -group.reader.lookbacks), ends)
    stops = np.maximum(firsts, np.minimum(starts + counts + max(shifts), ends))
    return firsts, np.where(counts > 0, stops, firsts)


def newest_window(
    group: ChunkGroup, column: str, lookback: int, where: str, part: Callable[[Any], Any] | None = None
) -> tuple[Any, Indices | None]:
    """Read the newest rows of each chunk.

    Args:
        group: The chunks.
        column: Name of the column.
        lookback: How many steps before the newest observation; the window of observations has this one as well.
        where: The piece, for the message.
        part: Returns what is needed of a structure that is nested as the column; None: all.

    Returns:
        As `EpisodeReader.latest`.

    Raises:
        ColumnError: rows of several shapes or nestings.
        LookbackError: a chunk has lost rows that existed.
    """
    window, sizes = group.reader.latest(column, lookback + (column == Columns.OBS), part)
    if sizes is not None:
        check_lookback(group, column, lookback - group.lengths, where)
    return window, sizes
