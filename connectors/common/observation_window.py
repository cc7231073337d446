"""Pieces that make column `obs` of the last few observations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from epibatch.core.columns import Columns
from epibatch.core.errors import ConfigError, SpaceError
from epibatch.core.structs import flatten

from ...episodes._storage.indexing import note_history
from .._engine.chunks import ChunkGroup
from .._engine.windows import newest_window, window_bounds
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
    writes: ClassVar[tuple[str, ...]] = (Columns.OBS,)
    replaces = (Columns.OBS,)

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
        window, held = newest_window(group, Columns.OBS, self.lookback, type(self).__name__)
        if held is None:
            held = np.full(len(group.episodes), self.lookback + 1)
        return self._frames(flatten(window)[0], 0, group, 2), held

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
            group: The chunks.
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
