"""Parts of episodes that were drawn from a replay buffer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, overload

import numpy as np

from epibatch.core.columns import Columns

from ..chunk_table import ChunkTable
from ..store import Ints, StoreColumn
from .held_steps import HeldSteps


class LazyIds(Sequence[Any]):
    """The ids of a draw's episodes, or other names of them, found when they are asked for.

    Args:
        count: Their number.
        find: Gives the id of a chunk: function of its position.
    """

    def __init__(self, count: int, find: Callable[[int], Any]) -> None:
        self._positions, self._find = range(count), find

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        at = self._positions[index]
        return self._find(at) if isinstance(at, int) else list(map(self._find, at))


class DrawnColumns:
    """The columns of lanes that a draw shows: a store at the same places.

    Args:
        lanes: The lanes.
        hidden: Names of columns that are not shown.
    """

    def __init__(self, lanes: HeldSteps, hidden: Collection[str]) -> None:
        self._lanes, self._hidden = lanes, hidden
        self.rows_at = lanes.rows_at

    @property
    def outputs(self) -> Collection[str]:
        """The names of the model outputs."""
        return [name for name in self._lanes.outputs if name not in self._hidden]

    def stored(self, name: str) -> StoreColumn | None:
        """Return a column, by places; None if there is none of that name."""
        return None if name in self._hidden else self._lanes.stored(name)


class SampledEpisodes(ChunkTable):
    """A draw from a replay buffer: a pipeline takes it like a list of episodes, and reads its rows by index.

    Each chunk knows all that the buffer holds of its episode: what came before is its lookback, what comes after is
    ahead of it. An item is a new `SingleAgentEpisode` with copies of the chunk's rows.

    The rows stay those that were drawn until the buffer overwrites them. So run the pipeline before you add more.

    Args:
        lanes: The buffer's rows.
        places: The place of each chunk's first step: int64 [C].
        length: Steps of each chunk, fewer where the episode has no more: an int or int64 [C].
        hidden: Names of columns that are not shown; infos are not, unless this is empty.
        burn_in: Steps before these that each chunk has too, as far as the lanes hold them with their lookback. Where
            the episode ends too soon, such chunks begin earlier.
        lookback: Steps before each chunk, or since its episode's start, that the lanes have to hold.

    Attributes:
        drawn: The places, as given.
        per_chunk: `weights` of the rows' losses, float32 [C], if the draw preferred some.
    """

    def __init__(
        self,
        lanes: HeldSteps,
        places: Ints,
        length: Ints | int = 1,
        hidden: Collection[str] = (Columns.INFOS,),
        burn_in: int = 0,
        lookback: int = 0,
    ) -> None:
        life = lanes.lives_of(places)
        first, stop, starts = places, np.minimum(places + length, life.last), life.t
        if burn_in:
            earliest = life.first + lookback * (life.t > places - life.first)
            learned = np.maximum(np.minimum(places, life.last - length), earliest)
            first, stop = np.maximum(learned - burn_in, earliest), np.minimum(learned + length, life.last)
            starts = starts + (first - places)
        super().__init__(
            [DrawnColumns(lanes, hidden)],
            first,
            stop - first,
            lookbacks=first - life.first,
            ahead=life.last - stop,
            starts=starts,
            terminateds=life.terminated,
            truncateds=life.truncated,
            ids=LazyIds(len(places), lambda i: lanes.names_of(places[i : i + 1])[0].id_),
        )
        self.drawn, self.device = places, lanes.device
        self.agents = LazyIds(len(places), lambda i: lanes.names_of(places[i : i + 1])[0].agent_id)
        self.multi_agent_ids = LazyIds(
            len(places), lambda i: lanes.names_of(places[i : i + 1])[0].multi_agent_episode_id
        )
