"""Shows the module in training the actions and rewards before each observation of plain episodes."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym

from epibatch.core.columns import Columns
from epibatch.core.errors import SpaceError

from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from .._engine.gather import gather
from ..columnar_piece import LearnerPiece
from ..env_to_module.prev_actions_prev_rewards import StepsBefore

__all__ = ["PrevActionsPrevRewardsLearner"]


class PrevActionsPrevRewardsLearner(StepsBefore, LearnerPiece):
    """Adds column `obs`: dicts of each observation and the actions and rewards before it.

    It gives a train batch the observations that `PrevActionsPrevRewards` gives the module. Use it only for
    episodes that were recorded without the acting piece: offline, or in a user's loop. If that piece acted,
    its dicts are in the episodes, and this piece is refused. The episodes stay as they are.

    Args:
        input_observation_space: Space of one observation, of any kind.
        n_prev_actions: Number of actions to show; 0 leaves the key out.
        n_prev_rewards: Number of rewards to show; 0 leaves the key out.

    Raises:
        ConfigError: a number that is no int of at least 0.
        SpaceError: observations that are such dicts already, or actions of another kind.
        LookbackError: a chunk starts in the middle of an episode and keeps too little lookback.
    """

    writes: ClassVar[tuple[str, ...]] = (Columns.OBS,)
    removes = (Columns.OBS,)
    uses_spaces: ClassVar[bool] = True
    takes_tensors: ClassVar[bool] = True

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """The Dict of the observation and what is shown beside it."""
        if isinstance(input_observation_space, gym.spaces.Dict):
            self._refuse_twice(input_observation_space.spaces)
        return super().recompute_output_observation_space(input_observation_space, input_action_space)

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Add the column."""
        observations = gather(group, Columns.OBS, plus_one=group.plus_one)
        if isinstance(observations, dict):
            self._refuse_twice(observations)
        out = {self.ORIG_OBS_KEY: observations}
        for key, part in self.shown(self.input_action_space).items():
            out[key] = part.before(group, newest=False)
        columns[Columns.OBS] = EpisodeColumn(out, group.counts)
        return columns

    def _refuse_twice(self, keys: Any) -> None:
        if self.ORIG_OBS_KEY in keys:
            raise SpaceError(
                type(self).__name__,
                expected="observations as the environment gave them",
                found=f"dicts of {', '.join(map(str, keys))}, which show earlier steps already",
                do="leave this piece out: PrevActionsPrevRewards wrote them into the episodes",
            )
