"""Episodes that were recorded together, as a sequence over one time-major block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from ._storage.block import Block
from ._storage.chunk import Chunk
from .single_agent_episode import SingleAgentEpisode


class _Delivery:
    """Lives as long as any sequence that shows the same delivery."""

    __slots__ = ("__weakref__",)


class VectorEpisodes(Sequence[SingleAgentEpisode]):
    """A sequence of episodes whose rows live in one block of shape [T, N, ...].

    Its items are persistent `SingleAgentEpisode` objects that show the block's rows. Each object is made on first
    access. Built-in pieces read whole columns instead.

    Args:
        block: The block of the rows.
        chunks: One per episode or chunk of one.
        views: Episode objects that exist already; None for those that were not accessed yet.
        recording: Whether these are the N episodes that a recorder is adding to.

    Attributes:
        low_rows: The first row of each running chunk in the block, its lookback included; only while recording.
        newest_start: The highest of them.
        delivery: Shared by the sequences made with `first`. A weak reference to it shows when all of them are gone.
    """

    def __init__(
        self, block: Block, chunks: Sequence[Chunk], views: Sequence[Any] | None = None, recording: bool = False
    ) -> None:
        self.block = block
        self.recording = recording
        self.chunks = list(chunks)
        self.views: list[SingleAgentEpisode | None] = list(views) if views is not None else [None] * len(self.chunks)
        self.delivery = _Delivery()
        self.low_rows = np.array([self._low(chunk) for chunk in self.chunks] if recording else [], np.int64)
        self.newest_start = int(self.low_rows.max(initial=0))

    def __len__(self) -> int:
        return len(self.chunks)

    @overload
    def __getitem__(self, index: int) -> SingleAgentEpisode: ...
    @overload
    def __getitem__(self, index: slice) -> list[SingleAgentEpisode]: ...
    def __getitem__(self, index: int | slice) -> SingleAgentEpisode | list[SingleAgentEpisode]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        view = self.views[index]
        if view is None:
            view = self.views[index] = self.chunks[index].view()
        return view

    def views_of_all(self) -> list[SingleAgentEpisode]:
        """A list of all episode objects: what `list()` gives, at no cost per episode once all were made."""
        return list(self) if None in self.views else self.views.copy()  # type: ignore[return-value]

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)

    def __repr__(self) -> str:
        return f"VectorEpisodes({len(self)} chunks, {int(self.lengths().sum())} steps)"

    def first(self, count: int) -> VectorEpisodes:
        """The first `count` of these episodes."""
        part = VectorEpisodes(self.block, self.chunks[:count], self.views[:count])
        part.delivery = self.delivery
        return part

    # -- facts about all chunks --------------------------------------------------------------------

    @property
    def ids(self) -> list[str]:
        """The episodes' names."""
        return [chunk.name for chunk in self.chunks]

    def envs(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The number of each chunk's environment: int64, shape [len(self)]."""
        return np.array([chunk.env for chunk in self.chunks], np.int64)

    def lengths(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Number of steps of each chunk: int64, shape [len(self)]."""
        return np.array(list(map(len, self.chunks)), np.int64)

    def terminateds(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """The flags of chunks whose episode was terminated at their end: bool, shape [len(self)]."""
        return np.array([chunk.ends[0] for chunk in self.chunks], np.bool_)

    def truncateds(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """The flags of chunks whose episode was truncated at their end: bool, shape [len(self)]."""
        return np.array([chunk.ends[1] for chunk in self.chunks], np.bool_)

    def running_returns(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The return of each running episode up to the newest step, NaN if it is not known: float64 [N].

        The return of vectors is the sum of all their entries.
        """
        block, chunks = self.block, self.chunks
        returns = np.array([chunk.return_before for chunk in chunks], np.float64)
        starts = np.array([chunk.start if chunk.block is block else block.row for chunk in chunks], np.int64)
        if block.rewards.leaves and block.row:
            first = int(starts.min(initial=block.row))
            rows = block.rewards.leaves[0][first : block.row]
            if rows.ndim > 2:
                rows = rows.sum(tuple(range(2, rows.ndim)), dtype=np.float64)
            if (starts == first).all():
                returns += rows.sum(0, dtype=np.float64)
            else:
                in_episode = np.arange(first, block.row)[:, None] >= starts
                returns += np.where(in_episode, rows, 0.0).sum(0)
        for env, chunk in enumerate(chunks):
            if chunk.block is not block and chunk.block.rewards.leaves:  # it ended with the block before
                rewards = chunk.block.rewards.leaves[0][chunk.start : chunk.end, chunk.env]
                returns[env] += rewards.sum(dtype=np.float64)
        return returns

    def replace(self, env: int, chunk: Chunk) -> None:
        """Go on with another chunk of an environment (for the recorder)."""
        self.chunks[env], self.views[env], self.low_rows[env] = chunk, None, chunk.low
        self.newest_start = max(self.newest_start, chunk.low)

    def _low(self, chunk: Chunk) -> int:
        """The chunk's first row in this block, which may hold the end of a chunk of the block before."""
        return chunk.low if chunk.block is self.block else max(0, chunk.low - chunk.end + self.block.row)
