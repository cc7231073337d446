"""Pieces that make column `obs` of the last few observations."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from annotated_types import Interval

from epibatch.core.columns import Columns
from epibatch.core.errors import SpaceError
from epibatch.core.structs import flatten

from ...episodes._storage.indexing import note_history
from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from .._engine.windows import newest_window, window_bounds
from ..columnar_piece import TwoSidedPiece

__all__ = [
    "ChunkFrames",
    "ObservationWindow",
    "FrameCount",
    "fill_before_start",
    "pool_frames",
    "pooled_newest",
    "stack_frames",
]

_MANY_PIXELS = 2048  # from here on two NumPy calls per frame cost less than passing over all frames again and again


def stack_frames(out: npt.NDArray[Any], frames: npt.NDArray[Any], before: int) -> None:
    """Write the stack of every frame, oldest first, zeros where there was none.

    Args:
        out: Shape [T, ..., K]: stack t ends with frame `before + t`.
        frames: Shape [before + T, ..., 1], of the same type.
        before: Frames before the first stack's own, fewer than K; those that are missing are zeros.

    Example:
        >>> out = np.empty((3, 1, 2), np.uint8)
        >>> stack_frames(out, np.array([[[1]], [[2]], [[3]]], np.uint8), 0)
        >>> out[:, 0].tolist()
        [[0, 1], [1, 2], [2, 3]]
    """
    count, width = len(out), out.shape[-1]
    if not count:
        return
    bits = 8 * out.dtype.itemsize
    word = np.dtype(f"u{out.dtype.itemsize * width}") if bits * width in (16, 32, 64) else None
    pixels = out[0].size // width
    by_word = word is not None and width > 1 and pixels >= _MANY_PIXELS and out.flags.c_contiguous
    if not by_word or word is None or sys.byteorder != "little" or out.dtype.kind not in "biuf":
        _stack_by_place(out, frames, before)
        return
    _stack_by_word(out.reshape(count, pixels, width), word, bits, frames, before)


def pool_frames(out: npt.NDArray[Any], rows: npt.NDArray[Any], before: int, size: int) -> None:
    """Write the maximum of each frame and those before it, as far as there are any.

    Args:
        out: Shape [T, ...]: entry t is about frame `before + t`.
        rows: The frames, shape [before + T, ...].
        before: Frames before the first one's own.
        size: Number of frames in one, including its own.

    Example:
        >>> out = np.empty((3, 1))
        >>> pool_frames(out, np.array([[5.0], [1.0], [2.0], [0.0]]), 1, 2)
        >>> out[:, 0].tolist()
        [5.0, 2.0, 2.0]
    """
    so_far = rows[before:]
    if size == 1:
        out[...] = so_far
    for back in range(1, size):
        first = min(max(0, back - before), len(out))
        if first and back == 1:
            out[:first] = so_far[:first]
        np.maximum(so_far[first:], rows[before - back + first : len(rows) - back], out=out[first:])
        so_far = out


def pooled_newest(window: npt.NDArray[Any], counts: npt.NDArray[np.int64], size: int) -> npt.NDArray[Any]:
    """The newest frames of every environment, each the maximum of itself and those before it.

    Args:
        window: Shape [K + size - 1, N, ...], oldest first, zeros where there was none; it is written to.
        counts: How many frames each environment has, int64 [N].
        size: How many frames make one.

    Returns:
        Shape [K, N, ...], in memory [N, K, ...], zeros where there was none.
    """
    total, kept = len(window), len(window) - size + 1
    fill_before_start(window, counts)
    frames = window.swapaxes(0, 1)
    out = frames[:, size - 1 :].copy()
    for back in range(1, size):
        np.maximum(out, frames[:, size - 1 - back : total - back], out=out)
    short = np.flatnonzero(counts < kept)
    if len(short):
        env, place = np.nonzero(np.arange(kept) < (kept - counts[short])[:, None])
        out[short[env], place] = 0
    return out.swapaxes(0, 1)


def fill_before_start(window: npt.NDArray[Any], counts: npt.NDArray[np.int64]) -> None:
    """Repeat the first frame where there was none before it.

    Args:
        window: Shape [K, N, ...], oldest first.
        counts: How many frames each environment has, int64 [N].
    """
    short = np.flatnonzero(counts < len(window))
    if len(short):
        places = np.maximum(np.arange(len(window))[:, None], len(window) - counts[short])
        window[:, short] = window[places, short]


def _stack_by_place(out: npt.NDArray[Any], frames: npt.NDArray[Any], before: int) -> None:
    """One pass over all frames for each place in the stack."""
    count, width = len(out), out.shape[-1]
    for place in range(width):
        first = before + place - width + 1  # the frame at this place of the first stack
        missing = min(max(0, -first), count)
        out[:missing, ..., place] = 0
        out[missing:, ..., place] = frames[first + missing : first + count, ..., 0]


def _stack_by_word(
    out: npt.NDArray[Any], word: np.dtype[Any], bits: int, frames: npt.NDArray[Any], before: int
) -> None:
    """A pixel's stack is one machine word: shift the stack before by one frame, and put the newest into the top.

    One pass, in which the stack before is still in the cache.
    """
    words = out.view(word)[..., 0]
    stack: npt.NDArray[Any] = np.zeros(words.shape[1:], word)
    newest = stack.view(out.dtype).reshape(out.shape[1:])[:, -1]
    for frame in frames[:before]:
        np.right_shift(stack, bits, out=stack)
        newest[:] = frame.reshape(-1)
    for t, frame in enumerate(frames[before : before + len(out)]):
        np.right_shift(stack, bits, out=words[t])
        out[t, :, -1] = frame.reshape(-1)
        stack = words[t]


FrameCount = Annotated[int, Interval(ge=1, le=2**16)]
"""A number of frames; more do not fit into memory."""


class ChunkFrames(NamedTuple):
    """A chunk's frames, and some of those before it.

    Args:
        rows: Shape [before + count, ...], where they lie; not to be written to.
        before: How many come before the chunk; fewer than asked for only where the episode had no more.
        place: Where the chunk's rows are among those of all chunks.
    """

    rows: npt.NDArray[Any]
    before: int
    place: slice


class ObservationWindow(TwoSidedPiece):
    """Looks back at observations, on both sides; `lookback` says how far.

    Subclasses set `lookback` and write `of_all_steps` and `newest`.

    Args:
        input_observation_space: A Box.
    """

    writes: ClassVar[tuple[str, ...]] = (Columns.OBS,)
    removes = (Columns.OBS,)
    needs_episodes: ClassVar[bool] = True

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Add the column."""
        if self.as_learner_connector:
            columns[Columns.OBS] = EpisodeColumn(self.of_all_steps(group), group.counts)
        else:
            columns[Columns.OBS] = EpisodeColumn(self.newest(group))
        return columns

    @abstractmethod
    def of_all_steps(self, group: ChunkGroup) -> Any:
        """Return a row for each step, chunk after chunk."""

    @abstractmethod
    def newest(self, group: ChunkGroup) -> Any:
        """Return a row for the newest observation of each episode."""

    def frames_of_chunks(self, group: ChunkGroup) -> Iterator[ChunkFrames]:
        """Each chunk's frames, in the order of the call.

        Raises:
            ColumnError: frames of several shapes.
            LookbackError: a chunk kept too little of the episode before it.
        """
        start, shifts, lookbacks = 0, (-self.lookback, 0), group.reader.lookbacks
        bounds = window_bounds(group, Columns.OBS, shifts, 0, group.counts, type(self).__name__)
        rows = group.reader.rows(Columns.OBS, *bounds)
        rows.check()
        facts = zip(group.counts.tolist(), lookbacks.tolist(), group.reader.starts.tolist())
        for i, (count, lookback, t_started) in enumerate(facts):
            note_history(lookback - self.lookback, lookback, t_started)
            frames = self._frames(rows.of_chunk(i), i, group)
            yield ChunkFrames(frames, len(frames) - count, slice(start, start + count))
            start += count

    def newest_frames(self, group: ChunkGroup) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """The newest observations of every episode.

        Returns:
            A new array of shape [lookback + 1, N, ...], in memory [N, lookback + 1, ...], oldest first, zeros where
            there was none yet; and how many each episode has (int64, [N]).

        Raises:
            ColumnError: frames of several shapes.
            LookbackError: a chunk kept too little of the episode before it.
        """
        window, counts = newest_window(group, Columns.OBS, self.lookback, type(self).__name__)
        if counts is None:
            counts = np.full(len(group.episodes), self.lookback + 1)
        return self._frames(flatten(window)[0], 0, group, 2), counts

    def _frames(self, leaves: list[Any], chunk: int, group: ChunkGroup, lead: int = 1) -> npt.NDArray[Any]:
        """The one array of a column of frames."""
        if len(leaves) == 1:
            self.check_frame(leaves[0].shape[lead:], chunk, group)
            frames: npt.NDArray[Any] = leaves[0]
            return frames
        raise SpaceError(
            f"{type(self).__name__}, {group.describe(chunk)}",
            expected="observations of one array each",
            found=f"{len(leaves)} arrays of shapes {[leaf.shape[lead:] for leaf in leaves]}",
            do="flatten them, or select one part, with an earlier piece that rewrites observations",
        )

    def check_frame(self, shape: tuple[int, ...], chunk: int, group: ChunkGroup) -> None:
        """Refuse frames of a shape that the piece cannot use; any can be, by default.

        Args:
            shape: Of one frame.
            chunk: Position of the chunk, for the message.
            group: The chunks.
        """
