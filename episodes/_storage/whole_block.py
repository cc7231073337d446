"""Episodes that all show one block, looked at once for a whole pipeline call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..vector_episodes import VectorEpisodes
from .chunk import Chunk

__all__ = ["WholeBlock", "whole_block"]


class WholeBlock(VectorEpisodes):
    """Episodes whose columns are those of their block, as long as nobody changes what they show."""

    @property
    def columnar(self) -> bool:
        """True: that was found before."""
        return True

    def lengths(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Number of steps of each chunk: int64, shape [len(self)]."""
        return self._facts().lengths.copy()

    def _ends(self, row: int, name: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
        owners = [chunk if view is None else view for chunk, view in zip(self.chunks, self.views)]
        names = ("terminated", "is_terminated") if row == 0 else ("truncated", "is_truncated")
        return np.array([getattr(owner, names[type(owner) is not Chunk]) for owner in owners], np.bool_)


def whole_block(episodes: Sequence[Any]) -> VectorEpisodes | None:
    """The episodes as a sequence over the block whose rows they show.

    Args:
        episodes: A VectorEpisodes, or a list of episodes, all of which may be views of one block.

    Returns:
        None if they are something else, or if somebody replaced, added or lengthened a column.

    Example:
        >>> from epibatch.episodes import VectorRecorder
        >>> recorder = VectorRecorder(2)
        >>> recorder.reset(np.zeros(2))
        >>> ended = recorder.step(np.zeros(2), np.ones(2), np.zeros(2, bool), np.zeros(2, bool), np.ones(2))
        >>> whole_block(list(recorder.harvest(0))).gather("obs").tolist()
        [0.0, 0.0]
    """
    if isinstance(episodes, VectorEpisodes):
        if not episodes.columnar:
            return None
        if episodes.recording or not episodes.block.views:
            return episodes
        return WholeBlock(episodes.block, episodes.chunks, [chunk.shown for chunk in episodes.chunks])
    chunks = _chunks_of(episodes) if type(episodes) is list and episodes else None
    return None if chunks is None else WholeBlock(chunks[0].block, chunks, episodes)


def _chunks_of(episodes: list[Any]) -> list[Chunk] | None:
    """The finished chunks of one block that these are the views of; None if they are not."""
    chunks: list[Chunk] = []
    try:
        block = episodes[0].rewards._source.chunk.block
        for episode in episodes:
            chunk = episode.rewards._source.chunk
            if chunk.block is not block or chunk.stop is None or chunk.shown is not episode or chunk.replaced:
                return None
            chunks.append(chunk)
    except AttributeError:  # rows of its own, or no episode of ours
        return None
    return chunks
