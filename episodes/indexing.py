"""Index rules of episode buffers: from a request to absolute row positions.

A buffer holds `total` rows of which the first `lookback` lie before its chunk starts. A request
is an int, a slice, or a list of ints. Non-negative indices count from the chunk's start. Negative
ones count from the end, or from the chunk's start backwards if `neg_index_as_lookback`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass
from operator import index as as_index
from typing import Any, TypeAlias

import numpy as np

from epibatch.core.errors import EpisodeIndexError, EpisodeStateError, LookbackError

Indices: TypeAlias = "int | slice | Sequence[int] | None"
Positions: TypeAlias = "range | np.ndarray[Any, np.dtype[np.int64]]"

SEVERAL = (slice, list, tuple, np.ndarray, range, type(None))  # types of the requests that give stacked rows


@dataclass
class HistoryWatch:
    """A record of the history that a plain piece reads from episodes, and whether the piece may write to them.

    Args:
        depth: Most steps before a chunk's start that were asked for so far.
        calls: The number of completed runs of the watched pipeline.
        writable: Whether the piece that runs may write to episodes.
        acting: Whether its pipeline comes to the same episodes again after every step.
    """

    depth: int = 0
    calls: int = 0
    writable: bool = True
    acting: bool = False

    def note(self, depth: int, available: int, t_started: int) -> None:
        """Take note of a read `depth` steps before the chunk; refuse one that would be filled in silence."""
        self.depth = max(self.depth, depth)
        if depth > available and t_started > available:
            raise LookbackError(
                f"reading {depth} steps before a chunk that starts at t={t_started}",
                expected=f"a lookback of at least {min(depth, t_started)} steps",
                found=f"a lookback of {available} steps (filling would hide steps that exist)",
                do=f"cut chunks with that lookback: `lookback = {depth}` on the piece, or episode_lookback_horizon",
            )


WATCH: ContextVar[HistoryWatch | None] = ContextVar("epibatch_history_watch", default=None)


class watch_history:  # a class: a generator's context manager takes four times as long
    """Make `watch` see every read into lookback while the context is open."""

    __slots__ = ("_token", "_watch")

    _token: Token[HistoryWatch | None]

    def __init__(self, watch: HistoryWatch) -> None:
        self._watch = watch

    def __enter__(self) -> HistoryWatch:
        self._token = WATCH.set(self._watch)
        return self._watch

    def __exit__(self, *_: object) -> None:
        WATCH.reset(self._token)


def check_writable() -> None:
    """Refuse a write while a piece runs that declared its needs but not that it writes.

    Raises:
        EpisodeStateError: such a piece is running.
    """
    if not may_write():
        raise EpisodeStateError(
            "writing to an episode",
            expected="a piece that leaves episodes as they are: it declares `reads`, but not that it writes",
            found="a setter",
            do="set `mutates_episodes = True` on the piece, or write to the batch instead",
        )


def may_write() -> bool:
    """True if the piece that runs, if any, may write to episodes."""
    watch = WATCH.get()
    return watch is None or watch.writable


def check_newest(indices: Indices, lookback: int, total: int, neg_index_as_lookback: bool) -> None:
    """Refuse to overwrite rewards of steps that an acting pipeline was shown before: each step would do it again.

    It is for pieces of such pipelines, that is where the watch says `acting`.

    Raises:
        EpisodeStateError: more than the last row is asked for.
    """
    selection: Any = indices if isinstance(indices, SEVERAL) else [indices]
    positions = positions_of(selection, lookback, total, neg_index_as_lookback, False)
    passed = sorted({int(position) for position in positions if position < total - 1})
    if passed:
        raise EpisodeStateError(
            "overwriting rewards while acting",
            expected="the newest step's alone: the piece comes to the same episode again after every step",
            found=f"{len(passed)} earlier steps, from t={passed[0] - lookback} of the chunk on",
            do="put the piece into the learner pipeline (learner_connector=, or `learner:` in a file), which sees "
            "each step once; or write at_indices=-1",
        )


def note_history(first: int, lookback: int, t_started: int) -> None:
    """Tell the running watch, if any, that row `first` (absolute) of a chunk is read."""
    if first < lookback:
        watch = WATCH.get()
        if watch is not None:
            watch.note(lookback - first, lookback, t_started)


def position_of(index: Any, lookback: int, total: int, neg_index_as_lookback: bool) -> int:
    """The absolute position an int index asks for; it may lie outside [0, total)."""
    try:
        i = as_index(index)
    except TypeError:
        raise EpisodeIndexError(
            "index", expected="an int, a slice or a list of ints", found=repr(index), do="convert it"
        ) from None
    if i >= 0 or neg_index_as_lookback:
        return lookback + i
    return total + i


def positions_of(
    indices: slice | Sequence[int] | None, lookback: int, total: int, neg_index_as_lookback: bool, filled: bool
) -> Positions:
    """The absolute positions a slice or list asks for.

    Args:
        indices: The request; None asks for all rows after the lookback.
        lookback: Rows before the chunk's start.
        total: All rows, lookback included.
        neg_index_as_lookback: Whether negative indices count backwards from the chunk's start.
        filled: Whether positions outside [0, total) are kept, to be filled; otherwise a slice is
            shortened to the rows that exist.

    Returns:
        A range for slices, an int64 array for lists.
    """
    if indices is None:
        return range(lookback, total)
    if isinstance(indices, slice):
        return _slice_positions(indices, lookback, total, neg_index_as_lookback, filled)
    return np.fromiter(
        (position_of(i, lookback, total, neg_index_as_lookback) for i in indices), np.int64, len(indices)
    )


def _slice_positions(s: slice, lookback: int, total: int, neg_index_as_lookback: bool, filled: bool) -> range:
    step = 1 if s.step is None else as_index(s.step)
    if step == 0:
        raise EpisodeIndexError("slice", expected="a step other than 0", found=repr(s), do="use step 1")
    defaults = (lookback, total) if step > 0 else (total - 1, lookback - 1)
    start, stop = (
        default if bound is None else position_of(bound, lookback, total, neg_index_as_lookback)
        for bound, default in zip((s.start, s.stop), defaults)
    )
    if filled:
        return range(start, stop, step)
    if step > 0:
        return range(max(start, 0), min(stop, total), step)
    return range(min(start, total - 1), max(stop, -1), step)
