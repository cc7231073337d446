"""Chunks of the episodes of several agents, in a table for each module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, overload

import numpy as np

from .chunk_table import ChunkTable
from .single_agent_episode import SingleAgentEpisode
from .store import Ints


class ChunksByModule(Sequence[SingleAgentEpisode]):
    """Chunks of single agents' episodes: those of the first module, then those of the next one, and so on.

    A learner pipeline of several agents takes them like multi-agent episodes. It reads each module's rows by index.
    What needs all agents of an env step together cannot be made of them.

    Args:
        by_module: The chunks of each module: tables that know their agents.
        draws: If the modules' chunks were drawn together, the number of the draw of each chunk: int64 [chunks] by
            module.

    Examples:
        >>> from epibatch.episodes import MultiAgentEpisode
        >>> from epibatch.episodes.replay import MultiAgentEpisodeReplayBuffer
        >>> buffer = MultiAgentEpisodeReplayBuffer(capacity=100, seed=0)
        >>> buffer.add(MultiAgentEpisode(observations=[{"a": 0, "b": 1}, {"a": 2, "b": 3}], actions=[{"a": 4, "b": 5}],
        ...                              rewards=[{"a": 1.0, "b": 2.0}], len_lookback_buffer=0,
        ...                              agent_to_module_mapping_fn=lambda agent, episode: f"module_{agent}"))
        >>> drawn = buffer.sample(2)
        >>> [(episode.module_id, episode.agent_id) for episode in drawn]
        [('module_a', 'a'), ('module_a', 'a'), ('module_b', 'b'), ('module_b', 'b')]
    """

    def __init__(self, by_module: Mapping[Any, ChunkTable], draws: Mapping[Any, Ints] | None = None) -> None:
        self.by_module, self.draws = by_module, draws
        self._ends = np.cumsum([0, *map(len, by_module.values())])

    def __len__(self) -> int:
        return int(self._ends[-1])

    @overload
    def __getitem__(self, index: int) -> SingleAgentEpisode: ...
    @overload
    def __getitem__(self, index: slice) -> list[SingleAgentEpisode]: ...
    def __getitem__(self, index: int | slice) -> SingleAgentEpisode | list[SingleAgentEpisode]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        chunk = range(len(self))[index]
        number = int(np.searchsorted(self._ends, chunk, side="right")) - 1
        return list(self.by_module.values())[number][chunk - int(self._ends[number])]

    @property
    def at(self) -> dict[Any, Ints]:
        """The positions of each module's chunks among all: int64 [chunks]."""
        return {module: np.arange(a, b) for module, a, b in zip(self.by_module, self._ends, self._ends[1:])}

    @property
    def agents(self) -> list[Any]:
        """The agent of each chunk."""
        return list(chain.from_iterable((table.agents or ())[:] for table in self.by_module.values()))

    @property
    def ids(self) -> list[Any]:
        """The id of each chunk's multi-agent episode."""
        return list(chain.from_iterable((table.multi_agent_ids or ())[:] for table in self.by_module.values()))
