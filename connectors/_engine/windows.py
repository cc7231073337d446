"""Rows of a column, some steps away from the rows of a batch, that lie in the episodes until they are batched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from epibatch.core.errors import LookbackError

from ...episodes.rows import Rows
from .chunks import ChunkGroup

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
        cut = (
            f"len_lookback_buffer={steps}, or RolloutStorage(lookback={steps}); draw with sample(..., lookback={steps})"
        )
        cut = f"agent_steps={steps}" if several else cut
        raise LookbackError(
            f"{where}, {group.describe(chunk)} that starts at t={start}",
            expected=f"a lookback of {min(steps, start)} steps",
            found=f"{lookbacks[chunk]} steps (filling in would hide {column} that exist)",
            do=f"cut episodes with {cut}",
        )


def check_window(group: ChunkGroup, column: str, low: int, counts: Indices | None, where: str) -> None:
    """Make sure that a window's steps before a chunk that it does not keep do not exist either.

    Args:
        group: The chunks.
        column: Name of the column that is read, for the message.
        low: Steps from a row of the batch to the first value of its window.
        counts: Rows of each chunk in the batch: int64 [chunks]; None: one each, the newest.
        where: The piece, for the message.

    Raises:
        LookbackError: see `check_lookback`.
    """
    needed = -low - group.lengths if counts is None else np.where(counts > 0, -low, 0)
    check_lookback(group, column, needed, where)


def window(
    group: ChunkGroup,
    column: str,
    shifts: Sequence[int],
    where: str,
    *,
    newest: bool,
    part: Callable[[Any], Any] | None = None,
) -> tuple[Rows, tuple[Indices | int, Indices | None, bool]]:
    """Return the rows that the windows of a batch's rows need, as far as the chunks hold them.

    Args:
        group: The chunks.
        column: Name of the column.
        shifts: Steps from a row of the batch to the values of its window; at least one.
        where: The piece, for the message.
        newest: True if the batch has a row for the newest observation of each chunk, False if it has all steps.
        part: Returns what is needed of a structure that is nested as the column; None: all.

    Returns:
        The rows, and about the batch's rows what `Windows` asks for.

    Raises:
        LookbackError: a chunk has lost rows that existed.
    """
    counts, low = None if newest else group.counts, min(shifts)
    rows, starts, complete = group.reader.window(column, low, max(shifts), counts, part)
    if not complete:
        check_window(group, column, low, counts, where)
    return rows, (starts, counts, complete)
