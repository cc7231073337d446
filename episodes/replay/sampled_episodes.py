"""Parts of episodes that were drawn from a replay buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np

from ..chunk_table import ChunkTable
from ..store import Ints
from .lanes import Lanes


class _Ids(Sequence[str]):
    """The ids of the episodes at some places, found when they are asked for."""

    def __init__(self, lanes: Lanes, places: Ints) -> None:
        self._lanes, self._places = lanes, places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        ids = self._lanes.ids_of(np.atleast_1d(self._places[index]))
        return ids if isinstance(index, slice) else ids[0]


class SampledEpisodes(ChunkTable):
    """A draw from a replay buffer: a pipeline takes it like a list of episodes, and reads its rows by index.

    Each chunk knows all that the buffer holds of its episode: what came before is its lookback, what comes after is
    ahead of it. An item is a new `SingleAgentEpisode` with copies of the chunk's rows.

    The rows stay those that were drawn until the buffer overwrites them. So run the pipeline before you add more.

    Args:
        lanes: The buffer's rows.
        places: The place of each chunk's first step: int64 [C].
        length: Steps of each chunk, fewer where the episode has no more: an int or int64 [C].

    Attributes:
        drawn: The places, as given.
        per_chunk: `weights` of the rows' losses, float32 [C], if the draw preferred some.
    """

    def __init__(self, lanes: Lanes, places: Ints, length: Ints | int = 1) -> None:
        life = lanes.lives_of(places)
        left = life.last - places
        lengths = np.minimum(left, length)
        ahead = left - lengths
        super().__init__(
            [lanes],
            places,
            lengths,
            lookbacks=places - np.maximum(life.first, lanes.oldest(places)),
            ahead=ahead,
            starts=lanes.steps_of(places),
            terminateds=life.terminated,
            truncateds=life.truncated,
            ids=_Ids(lanes, places),
        )
        self.drawn = places
