"""Tells the module what return is still wanted of it."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np

from epibatch.core.errors import ConfigError

from .._engine.chunks import ChunkGroup
from ..authoring.fields import ParameterPiece
from ..columnar_piece import ObservationRewriter
from .reward_sum import returns_so_far


class TargetReturn(ParameterPiece, ObservationRewriter):
    """Replaces each newest observation by a dict of it and the return that is still to be reached.

    `obs` is the observation, `target_return` a float32 vector of one number: the target minus the rewards of
    the episode so far ("reduce"), or always the target itself ("constant"). Use it to act with a model that was trained
    on returns to go, such as a decision transformer (Chen et al. 2021). With several agents each has the same target,
    reduced by its own rewards.

    The dict is written back to the episodes. The learner reads the numbers that the module acted on from there, so no
    learner piece is needed. The return before a chunk is known without a lookback. To train on episodes that were
    recorded without this piece, `compute_returns_to_go` gives the actual returns to go.

    Counterparts: TorchRL's `TargetReturn`.

    Args:
        target: The return that a whole episode should reach.
        mode: "reduce" or "constant".

    Raises:
        ConfigError: a target that is not finite.
        ColumnError: the caller of a `Policy` did not give a reward.
        LookbackError: an episode made of data starts in the middle and holds too little lookback.

    Examples:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> episode = SingleAgentEpisode()
        >>> episode.add_env_reset(5)
        >>> episode.add_env_step(6, action=1, reward=0.5)
        >>> batch = TargetReturn(gym.spaces.Discrete(9), target=10.0)(batch={}, episodes=[episode])
        >>> {key: value.tolist() for key, value in episode.get_observations(-1).items()}
        {'obs': 6, 'target_return': [9.5]}
    """

    OBS_KEY: ClassVar[str] = "obs"
    TARGET_KEY: ClassVar[str] = "target_return"
    target: float
    mode: Literal["reduce", "constant"] = "reduce"

    def __post_init__(self) -> None:
        """Check the target."""
        if not math.isfinite(self.target):
            raise ConfigError(
                "TargetReturn.target",
                expected="a finite number",
                found=repr(self.target),
                do="pass the return that is wanted of an episode, such as target=200.0",
            )

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """The Dict of the observation and the target."""
        target = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
        return gym.spaces.Dict({self.OBS_KEY: input_observation_space, self.TARGET_KEY: target})

    def rewrite(self, observations: Any, group: ChunkGroup) -> Any:
        """Put the observations into a dict with what is still wanted."""
        remaining = np.full(len(group.episodes), self.target, np.float64)
        if self.mode == "reduce":
            remaining -= returns_so_far(group, type(self).__name__)
        return {self.OBS_KEY: observations, self.TARGET_KEY: remaining[:, None].astype(np.float32)}
