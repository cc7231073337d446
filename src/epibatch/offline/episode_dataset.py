"""A data set: recorded episodes that are read where they lie."""

from __future__ import annotations

from typing import Any, overload

import numpy as np
import numpy.typing as npt

from epibatch.core.columns import Columns

from ..episodes import SingleAgentEpisode
from ..episodes.chunk_table import ChunkTable
from ..episodes.replay.sampled_episodes import LazyIds
from ..episodes.store import Ints
from .episode_rows import EpisodeRows

_NAMES = ("agent_id", "module_id", "multi_agent_episode_id")


class EpisodeDataset(ChunkTable):
    """Episodes of one agent with fixed content: a sequence of them, which pipelines read by index.

    Nothing is copied that is not asked for: rows stay in their files, or arrays, and an item is a new episode object
    with copies of its rows. `filter`, `split` and `shard` return data sets over the same rows.

    `read_episodes` makes data sets.

    Args:
        rows: The rows of all episodes.
        chosen: The numbers of the episodes that the data set has, in their order there: int64 [E]; None: all.

    Attributes:
        observation_space: Space of the observations as recorded; None: not known.
        action_space: Space of the actions as recorded; None: not known.
        env: Name of the environment; None: not known.

    Example:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> from epibatch.offline import read_episodes
        >>> data = read_episodes([SingleAgentEpisode(observations=[0, 1, 2], actions=[5, 6], rewards=[1.0, 2.0],
        ...                                          terminated=True, len_lookback_buffer=0)])
        >>> len(data), data.num_steps, data.returns.tolist(), data[0].get_actions().tolist()
        (1, 2, [3.0], [5, 6])
    """

    def __init__(self, rows: EpisodeRows, chosen: Ints | None = None) -> None:
        self._rows = rows
        self._chosen = np.arange(len(rows.facts.first)) if chosen is None else chosen
        self.observation_space, self.action_space, self.env = rows.observation_space, rows.action_space, rows.env
        facts = rows.facts if chosen is None else rows.facts.of(chosen)
        super().__init__(
            [rows.store],
            facts.first + facts.lookback,
            facts.steps,
            lookbacks=facts.lookback,
            starts=facts.t_started,
            terminateds=facts.terminated > 0,
            truncateds=facts.truncated > 0,
            lack_final_obs=facts.lacks_final_obs > 0,
            ids=LazyIds(len(self._chosen), lambda i: self._about(i)["id"]),
        )

    def __reduce__(self) -> Any:
        return EpisodeDataset, (self._rows, self._chosen)

    def _about(self, chunk: int) -> dict[str, Any]:
        return self._rows.about(int(self._chosen[chunk]))

    @overload
    def __getitem__(self, index: int) -> SingleAgentEpisode: ...
    @overload
    def __getitem__(self, index: slice) -> list[SingleAgentEpisode]: ...
    def __getitem__(self, index: int | slice) -> SingleAgentEpisode | list[SingleAgentEpisode]:
        if isinstance(index, slice):
            return super().__getitem__(index)
        episode = super().__getitem__(index)
        episode.observation_space, episode.action_space = self.observation_space, self.action_space
        episode.custom_data.update(self._about(range(len(self))[index])["custom_data"])
        return episode

    def _agent_of(self, chunk: int) -> dict[str, Any]:
        about = self._about(chunk)
        return {name: about.get(name) for name in _NAMES}

    def _rows_of(self, chunk: int, name: str, low: int, count: int) -> Any:
        if name != Columns.INFOS:
            return super()._rows_of(chunk, name, low, count)
        infos = self._about(chunk)["infos"]
        if infos is None:
            return None
        rows = np.empty(len(infos), np.object_)
        rows[:] = infos
        return rows

    @property
    def num_steps(self) -> int:
        """The number of steps of all episodes."""
        return int(self.lengths.sum())

    @property
    def returns(self) -> npt.NDArray[np.float64]:
        """The sum of the rewards of each episode: float64 [E]."""
        return self._rows.returns()[self._chosen]
