"""Columns that say where in its episode a row is."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from epibatch.core.columns import Columns

from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from ..columnar_piece import Piece


class _StepColumn(Piece):
    """Adds a column that follows from the step each row is of."""

    pipelines: ClassVar[tuple[str, ...]] = ("env_to_module", "learner")
    input_layouts: ClassVar[tuple[str, ...]] = ("episodes",)
    needs_episodes: ClassVar[bool] = True

    @abstractmethod
    def _of(self, steps: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """The column's rows, from the steps of the episode that they are of."""

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Add the column."""
        started = group.reader.starts
        if not group.of_steps:
            columns[self.writes[0]] = EpisodeColumn(self._of(started + group.lengths))
            return columns
        counts = group.counts
        steps = np.arange(int(counts.sum()), dtype=np.int64)
        steps += np.repeat(started - (np.cumsum(counts) - counts), counts)
        columns[self.writes[0]] = EpisodeColumn(self._of(steps), counts, item_per_row=True)
        return columns


class MarkFirstSteps(_StepColumn):
    """Adds column `is_first`: whether a row is of its episode's first step.

    The first step is the one after a reset. A chunk that continues another has none. A recurrent network that stores
    its own state can reset it where `is_first` is True. With several agents it is each agent's own first step.

    Counterparts: TorchRL's `InitTracker`.

    Examples:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> started, running = SingleAgentEpisode(observations=[1]), SingleAgentEpisode(observations=[1])
        >>> running.add_env_step(2, 0, 0.0)
        >>> from epibatch.connectors.env_to_module import BatchIndividualItems, EnvToModulePipeline
        >>> pipeline = EnvToModulePipeline(connectors=[MarkFirstSteps(), BatchIndividualItems()])
        >>> pipeline(episodes=[started, running])["is_first"].tolist()
        [True, False]
    """

    writes: ClassVar[tuple[str, ...]] = ("is_first",)

    def _of(self, steps: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        first: npt.NDArray[np.bool_] = steps == 0
        return first


class CountSteps(_StepColumn):
    """Adds column `t`: how many steps the episode had before a row's, from 0 on (int64).

    Chunks go on counting where the one before them ended. With several agents it is each agent's own steps that count.
    To end episodes after a number of steps, set `max_episode_steps` where the environment is made, or put Gymnasium's
    `TimeLimit` around it: the last step is then `truncated`.

    Counterparts: TorchRL's `StepCounter`.

    Examples:
        >>> from epibatch.connectors.learner import BatchIndividualItems, LearnerConnectorPipeline
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> chunk = SingleAgentEpisode(observations=[1, 2, 3], actions=[0, 0], rewards=[0.0, 0.0], t_started=7,
        ...     len_lookback_buffer=0)
        >>> pipeline = LearnerConnectorPipeline(connectors=[CountSteps(), BatchIndividualItems()])
        >>> pipeline(episodes=[chunk])["t"].tolist()
        [7, 8]
    """

    writes: ClassVar[tuple[str, ...]] = (Columns.T,)

    def _of(self, steps: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        return steps
