"""Rewards for coming nearer to a goal."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError

from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from .._engine.gather import column_or_gather, gather
from ..columnar_piece import LearnerPiece
from .frozen_module import Encoder, EncoderPiece


class GoalDistanceRewards(EncoderPiece, LearnerPiece):
    """Makes `rewards` how much nearer each step came to a goal: the distance before it less the distance after it.

    The distance is that of the network's outputs for observation and goal (Ma et al. 2022, "VIP: Towards Universal
    Visual Reward and Representation via Value-Implicit Pre-Training"), or without a network that of the observations
    themselves. Over a whole episode the rewards add up to the way made towards the goal. Episodes keep their own
    rewards, and results report those.

    Counterparts: TorchRL's `VIPRewardTransform`.

    Args:
        goal: An observation, as array or nested lists.
        module: An nn.Module that takes [rows, ...] and gives one tensor [rows, ...]; or `package.module:name` of a
            class or function that makes one. None: observations are compared as they are.
        keywords: What to call that class or function with.
        progress: False: each reward is the distance after its step, negated, in place of the difference.
        added: Whether the episodes' rewards are added.
        batch_size: How many observations to encode at a time.
        device: Where the network runs, such as "cuda".

    Raises:
        ConfigError: `module` makes no nn.Module, or `batch_size` is no positive number.
        ColumnError: observations that are nested, or of another shape than the goal.

    Examples:
        >>> from epibatch.connectors.learner import BatchIndividualItems, LearnerConnectorPipeline
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> rows = {"observations": [np.array([x]) for x in (0.0, 1.0, 3.0)], "actions": [0, 0], "rewards": [0.0, 0.0]}
        >>> pipeline = LearnerConnectorPipeline(connectors=[GoalDistanceRewards(goal=[3.0]), BatchIndividualItems()])
        >>> pipeline(episodes=[SingleAgentEpisode(**rows, len_lookback_buffer=0)])["rewards"].tolist()
        [1.0, 2.0]
    """

    writes: ClassVar[tuple[str, ...]] = (Columns.REWARDS,)

    goal: Any
    module: Any = None
    keywords: dict[str, Any] = dataclasses.field(default_factory=dict)
    progress: bool = True
    added: bool = False
    batch_size: Annotated[int, Ge(1)] = 256
    device: str = "cpu"

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.module is not None:
            self._encoder = Encoder(name, self.module, self.keywords, self.batch_size, self.device)

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Make the column."""
        distances = self._distances(gather(group, Columns.OBS, plus_one=True))
        rewards = np.zeros_like(distances)
        rewards[:-1] = (distances[:-1] if self.progress else 0) - distances[1:]
        steps = np.ones(len(rewards), np.bool_)
        steps[np.cumsum(group.lengths + 1) - 1] = False
        if group.plus_one:
            rewards[~steps] = 0
        else:
            rewards = rewards[steps]
        if self.added:
            rewards = rewards + column_or_gather(columns, group, Columns.REWARDS, type(self).__name__).data
        columns[Columns.REWARDS] = EpisodeColumn(rewards, group.counts)
        return columns

    def _distances(self, observations: Any) -> Any:
        """Return the distance of each observation to the goal: float32, or the type of observations or embeddings."""
        goal = np.asarray(self.goal)
        if not isinstance(observations, np.ndarray) or observations.shape[1:] != goal.shape:
            raise ColumnError(
                "GoalDistanceRewards",
                expected=f"observations of the goal's shape, {goal.shape}",
                found=f"shape {observations.shape[1:]}" if isinstance(observations, np.ndarray) else "nested ones",
                do="give one observation as goal; of nested ones, let an earlier piece select a part",
            )
        goals = goal.astype(observations.dtype)[None]
        if self._encoder is not None:
            observations, goals = self._encoder(observations), self._encoder(goals)
        if observations.dtype.kind != "f":
            observations, goals = observations.astype(np.float32), goals.astype(np.float32)
        return np.linalg.norm((observations - goals).reshape(len(observations), -1), axis=1)
