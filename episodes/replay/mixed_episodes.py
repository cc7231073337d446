"""Parts of episodes that were drawn from several replay buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..chunk_table import ChunkTable
from ..store import Ints
from .sampled_episodes import LazyIds

_COLUMNS = ("first", "lengths", "stride", "lookbacks", "ahead", "starts", "terminateds", "truncateds", "lack_final_obs")


class MixedEpisodes(ChunkTable):
    """Draws of several buffers as one.

    Args:
        parts: The draws.
        owners: For each chunk the position of the draw from which it is, the chunks of each in their order: int64 [C].
        sources: The buffers that the draws come from.

    Attributes:
        parts: As given, like `owners` and `sources`.
    """

    def __init__(self, parts: Sequence[ChunkTable], owners: Ints, sources: Sequence[Any] = ()) -> None:
        sizes, num_stores = np.array(list(map(len, parts))), np.array([len(part.stores) for part in parts])
        order = np.argsort(np.argsort(owners, kind="stable"))  # the number of each chunk, counted part after part
        self.parts: Sequence[Any] = parts
        self.owners, self.sources = owners, sources
        self._numbers = order - (np.cumsum(sizes) - sizes)[owners]
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in parts])[order] for name in _COLUMNS
        }
        super().__init__(
            [store for part in parts for store in part.stores],
            store=np.concatenate([part.store for part in parts])[order] + (np.cumsum(num_stores) - num_stores)[owners],
            ids=LazyIds(len(order), lambda i: parts[owners[i]].ids[self._numbers[i]]),
            **columns,
        )
        self.device = parts[0].device
        self.skips_steps = any(part.skips_steps for part in parts)
        names = dict.fromkeys(name for part in parts for name in part.per_chunk)
        self.per_chunk = {
            name: np.concatenate([part.per_chunk.get(name, np.ones(len(part), np.float32)) for part in parts])[order]
            for name in names
        }  # only weights can be lacking: those of a draw that prefers nothing are 1

    def observations_at(self, chunks: Ints, steps: Ints) -> ChunkTable:
        """Chunks without steps, each with an observation and all that the buffer holds before it; see `ChunkTable`."""
        owners, numbers = self.owners[chunks], self._numbers[chunks]
        rows = (owners == k for k in range(len(self.parts)))
        return MixedEpisodes([p.observations_at(numbers[at], steps[at]) for p, at in zip(self.parts, rows)], owners)
