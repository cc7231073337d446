"""Tells the module what return is still wanted of it."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np

from epibatch.core.errors import ConfigError

from .._engine.chunks import ChunkGroup
from .._engine.observation_rewriter import ObservationRewriter
from ..authoring.parameters import ParameterPiece
from .reward_sum import returns_so_far

__all__ = ["TargetReturn"]


class TargetReturn(ParameterPiece, ObservationRewriter):
    """Makes of each newest observation a dict of it and the return that is still wanted of the episode.

    `obs` is the observation, `target_return` a float32 vector of one number: the target, less the rewards that the
    episode got so far ("reduce"), or the target itself all along ("constant"). So acts what was trained on returns to
    come, as decision transformers are (Chen et al. 2021). Each of several agents has a target of its own, of the same
    height, reduced by its own rewards.

    The dict is written back into the episodes, where the learner finds the very numbers that the module acted on: this
    needs no learner piece. What an episode got before a chunk is known without a lookback. To train on episodes
    that were recorded otherwise, `compute_returns_to_go` gives what turned out to be the return to come.

    Counterparts: TorchRL's `TargetReturn`.

    Args:
        target: The return that is wanted of a whole episode.
        mode: "reduce" or "constant".

    Raises:
        ConfigError: a target that is not finite.
        ColumnError: whoever acts from outside did not say what a reward was.
        LookbackError: an episode made of data that starts in the middle, and holds too little of what was before.

    Example:
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
        wanted = np.full(len(group.episodes), self.target, np.float64)
        if self.mode == "reduce":
            wanted -= returns_so_far(group, type(self).__name__)
        return {self.OBS_KEY: observations, self.TARGET_KEY: wanted[:, None].astype(np.float32)}
