"""Pieces that make column `obs` of the last few observations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, ConfigError, LookbackError, SpaceError
from epibatch.core.structs import flatten

from ...episodes._storage.indexing import note_history
from .._engine.chunks import ChunkGroup
from ..columnar_piece import ColumnarPiece

__all__ = ["ChunkFrames", "ObservationWindow", "positive"]

_MOST_FRAMES = 2**16


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


class ObservationWindow(ColumnarPiece):
    """Looks back at observations, on both sides; `lookback` says how far.

    Subclasses set `lookback` and write `run`.

    Args:
        input_observation_space: A Box.
        input_action_space: Space of one action.
    """

    pipelines: ClassVar[tuple[str, ...]] = ("env_to_module", "learner")
    takes: ClassVar[tuple[str, ...]] = ("episodes",)
    reads: ClassVar[tuple[str, ...]] = ()
    writes: ClassVar[tuple[str, ...]] = (Columns.OBS,)
    replaces = (Columns.OBS,)

    def frames_of_chunks(self, group: ChunkGroup) -> Iterator[ChunkFrames]:
        """Each chunk's frames, in the order of the call.

        Raises:
            LookbackError: a chunk kept too little of the episode before it.
        """
        start = 0
        histories = group.histories().T.tolist()
        for i, (count, (t_started, lookback)) in enumerate(zip(group.counts.tolist(), histories)):
            self._check(lookback, t_started, t_started, i, group)
            note_history(lookback - self.lookback, lookback, t_started)
            before = min(lookback, self.lookback)
            if group.vector is not None:
                leaves = group.vector.observation_rows(i, before, count)
            else:
                leaves = group.episodes[i].observations.rows(-before, count)
            yield ChunkFrames(self._frames(leaves, i, group), before, slice(start, start + count))
            start += count

    def newest_frames(self, group: ChunkGroup) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """The newest observations of every episode.

        Returns:
            A new array of shape [lookback + 1, N, ...], in memory [N, lookback + 1, ...], oldest first, zeros where
            there was none yet; and how many each episode has (int64, [N]).

        Raises:
            LookbackError: a chunk kept too little of the episode before it.
        """
        wanted = self.lookback + 1
        if group.recording is not None:
            window, rows = group.recording.latest_window(wanted)
            for i in np.flatnonzero(rows < wanted).tolist():
                self._check_newest(group.episodes[i], int(rows[i]) - 1, i, group)
            return self._frames(flatten(window)[0], 0, group, 2), rows
        out: Any = None
        held = np.empty(len(group.episodes), np.int64)
        for i, episode in enumerate(group.episodes):
            buffer = episode.observations
            length = buffer.len_incl_lookback() - buffer.lookback
            first = length - wanted
            if first < 0:
                first = self._first_held(episode, first, i, group)
            leaves = buffer.rows(first, length)
            known = out is not None and len(leaves) == 1 and leaves[0].shape[1:] == out.shape[2:]
            frames = leaves[0] if known else self._frames(leaves, i, group)
            if out is None:
                out = np.empty((len(group.episodes), wanted, *frames.shape[1:]), frames.dtype)
            elif not known or frames.dtype != out.dtype:
                out = out.astype(self.common_type(out.shape[2:], out.dtype, frames, i, group), copy=False)
            count = held[i] = len(frames)
            if count < wanted:
                out[i, : wanted - count] = 0
            out[i, wanted - count :] = frames
        return out.swapaxes(0, 1), held

    def common_type(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], frames: npt.NDArray[Any], chunk: int, group: ChunkGroup
    ) -> np.dtype[Any]:
        """A type for a chunk's frames and those of the chunks before it.

        Args:
            shape: Of the frames before.
            dtype: Of the frames before.
            frames: Shape [rows, ...].
            chunk: Position of the chunk, for the message.
            group: The running call.

        Raises:
            ColumnError: frames of another shape.
        """
        if frames.shape[1:] == shape:
            return np.result_type(dtype, frames.dtype)
        raise ColumnError(
            type(self).__name__,
            expected=f"frames of shape {shape}, as in {group.describe(0)}",
            found=f"{frames.shape[1:]} in {group.describe(chunk)}",
            do="batch only episodes of one space, or bring them to one shape with a piece in front",
        )

    def box(self, space: gym.Space[Any] | None) -> gym.spaces.Box:
        """The observation space, if it is a Box.

        Raises:
            SpaceError: it is another.
        """
        if isinstance(space, gym.spaces.Box):
            return space
        raise SpaceError(
            type(self).__name__,
            expected="observations in a Box, one array each",
            found=repr(space),
            do="flatten them, or select one part, with a piece in front that rewrites observations",
        )

    def _first_held(self, episode: Any, first: int, chunk: int, group: ChunkGroup) -> int:
        """The first frame of a window that reaches into the lookback, or back beyond it where nothing was before."""
        buffer = episode.observations
        if first < -buffer.lookback:
            self._check_newest(episode, buffer.len_incl_lookback() - 1, chunk, group)
        note_history(first + buffer.lookback, buffer.lookback, buffer.t_started)
        return max(first, -int(buffer.lookback))

    def _check_newest(self, episode: Any, available: int, chunk: int, group: ChunkGroup) -> None:
        self._check(available, episode.t_started + len(episode), episode.t_started, chunk, group)

    def _check(self, available: int, steps: int, t_started: int, chunk: int, group: ChunkGroup) -> None:
        """Refuse to fill in for frames that exist: `steps` lie before the first window's own, `available` are held."""
        if available < self.lookback and steps > available:
            raise LookbackError(
                f"{type(self).__name__}, {group.describe(chunk)} that starts at t={t_started}",
                expected=f"a lookback of {self.lookback} steps",
                found=f"{available} steps (zeros would hide frames that exist)",
                do=f"cut episodes with len_lookback_buffer={self.lookback}",
            )

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
            do="flatten them, or select one part, with a piece in front that rewrites observations",
        )

    def check_frame(self, shape: tuple[int, ...], chunk: int, group: ChunkGroup) -> None:
        """Refuse frames of a shape that the piece cannot use; any can be, by default.

        Args:
            shape: Of one frame.
            chunk: Position of the chunk, for the message.
            group: The running call.
        """


def positive(piece: str, name: str, value: Any, do: str) -> int:
    """`value`, if it is an int of at least 1, and no more than memory holds.

    Raises:
        ConfigError: it is not.
    """
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST_FRAMES:
        return value
    expected = f"an int of at least 1, up to {_MOST_FRAMES}"
    raise ConfigError(f"{piece}.{name}", expected=expected, found=repr(value), do=do)
