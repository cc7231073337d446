"""RLlib's buffer with a record of a piece's reads into lookback, for our pipelines."""

from __future__ import annotations

from typing import Any

from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer

from epibatch.episodes._storage.indexing import note_history, position_of, positions_of

__all__ = ["WatchedBuffer"]


class WatchedBuffer(InfiniteLookbackBuffer):  # type: ignore[misc]
    """A column of an episode that one of RLlib's pieces gets in a pipeline of ours.

    The pipeline records every read into lookback, as for our own pieces, so that chunks are cut with as much lookback
    as the piece needs.

    Args:
        data: Its rows.
        lookback: Number of rows before the chunk's start.
        space: Their space.

    Attributes:
        t_started: The step of the whole episode at which the chunk starts.

    Example:
        >>> from epibatch.episodes._storage.indexing import HistoryWatch, watch_history
        >>> buffer = WatchedBuffer([1, 2, 3], lookback=2)
        >>> with watch_history(HistoryWatch()) as watch:
        ...     rows = buffer.get(slice(-2, None))
        >>> watch.depth
        1
    """

    t_started = 0

    def get(self, indices: Any = None, *, neg_index_as_lookback: bool = False, fill: Any = None, **kwargs: Any) -> Any:
        """Return rows, as RLlib's buffer does.

        Raises:
            LookbackError: rows of the episode that this chunk does not contain.
        """
        total = self.len_incl_lookback()
        first = self.lookback
        if isinstance(indices, (slice, list)):
            positions = positions_of(indices, self.lookback, total, neg_index_as_lookback, fill is not None)
            first = int(min(positions)) if len(positions) else first
        elif indices is not None:
            first = position_of(indices, self.lookback, total, neg_index_as_lookback)
        note_history(first, self.lookback, self.t_started)
        return super().get(indices, neg_index_as_lookback=neg_index_as_lookback, fill=fill, **kwargs)
