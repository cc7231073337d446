"""Shows the module its last actions and rewards."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym

from epibatch.core.columns import Columns
from epibatch.core.errors import ConfigError

from .._engine.chunks import ChunkGroup
from .._engine.observation_rewriter import ObservationRewriter
from .._engine.step_history import StepHistory

__all__ = ["PrevActionsPrevRewards", "StepsBefore"]


class StepsBefore:
    """Settings, spaces and keys that the acting side and the learner's share.

    Args:
        piece: Name of the piece, for messages.
        n_prev_actions: How many actions.
        n_prev_rewards: How many rewards.
    """

    ORIG_OBS_KEY: ClassVar[str] = "_orig_obs"
    PREV_ACTIONS_KEY: ClassVar[str] = "prev_n_actions"
    PREV_REWARDS_KEY: ClassVar[str] = "prev_n_rewards"

    def __init__(self, piece: str, n_prev_actions: int, n_prev_rewards: int) -> None:
        self._piece = piece
        self._counts = {Columns.ACTIONS: n_prev_actions, Columns.REWARDS: n_prev_rewards}
        self._known: list[tuple[Any, dict[str, StepHistory]]] = []
        for name, count in (("n_prev_actions", n_prev_actions), ("n_prev_rewards", n_prev_rewards)):
            if type(count) is not int or count < 0:
                raise ConfigError(
                    f"{piece}.{name}",
                    expected="an int of at least 0",
                    found=repr(count),
                    do=f"pass how many to show, such as {name}=1; 0 for none",
                )
        self.lookback = max(n_prev_actions, n_prev_rewards)

    def parts(self, action_space: gym.Space[Any] | None) -> dict[str, StepHistory]:
        """What is shown beside the observation, by key."""
        for space, known in self._known:
            if space is action_space:
                return known
        keys = {Columns.ACTIONS: self.PREV_ACTIONS_KEY, Columns.REWARDS: self.PREV_REWARDS_KEY}
        parts = {
            keys[name]: StepHistory(name, count, action_space, self._piece)
            for name, count in self._counts.items()
            if count
        }
        self._known.append((action_space, parts))
        return parts

    def space(self, observation_space: Any, action_space: Any) -> gym.spaces.Dict:
        """The Dict of the observation and what is shown beside it."""
        parts = {key: part.space for key, part in self.parts(action_space).items()}
        return gym.spaces.Dict({self.ORIG_OBS_KEY: observation_space, **parts})


class PrevActionsPrevRewards(ObservationRewriter):
    """Makes of each newest observation a dict of it and the actions and rewards before it.

    `_orig_obs` is the observation, `prev_n_actions` a vector of the last `n_prev_actions` actions
    (float32, oldest first), `prev_n_rewards` one of the last `n_prev_rewards` rewards (float32). An
    action's leaves stand side by side, dicts sorted by key; Discrete and MultiDiscrete ones are
    one-hot, the others as the module gave them. Before an episode's start there are zeros.

    The dict is written back into the episodes, where the learner finds it: this needs no learner piece.
    Chunks carry as many earlier steps as are shown.

    Args:
        input_observation_space: Space of one observation, of any kind.
        input_action_space: Space of one action: Box, Discrete, MultiDiscrete, MultiBinary, or a
            Dict or Tuple of these.
        multi_agent: Whether the spaces are Dicts of several agents' spaces; a pipeline with AgentToModuleMapping knows.
        n_prev_actions: How many actions to show; 0 leaves the key out.
        n_prev_rewards: How many rewards to show; 0 leaves the key out.

    Raises:
        ConfigError: a number that is no int of at least 0.
        SpaceError: no action space, or one with parts of another kind.
        LookbackError: a chunk goes on in the middle of an episode and kept too little of it.

    Example:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> piece = PrevActionsPrevRewards(gym.spaces.Discrete(9), gym.spaces.Discrete(3), n_prev_rewards=2)
        >>> episode = SingleAgentEpisode()
        >>> episode.add_env_reset(5)
        >>> episode.add_env_step(6, action=1, reward=0.5)
        >>> batch = piece(batch={}, episodes=[episode])
        >>> {key: value.tolist() for key, value in episode.get_observations(-1).items()}
        {'_orig_obs': 6, 'prev_n_actions': [0.0, 1.0, 0.0], 'prev_n_rewards': [0.0, 0.5]}
    """

    ORIG_OBS_KEY: ClassVar[str] = StepsBefore.ORIG_OBS_KEY
    PREV_ACTIONS_KEY: ClassVar[str] = StepsBefore.PREV_ACTIONS_KEY
    PREV_REWARDS_KEY: ClassVar[str] = StepsBefore.PREV_REWARDS_KEY

    def __init__(
        self,
        input_observation_space: gym.Space[Any] | None = None,
        input_action_space: gym.Space[Any] | None = None,
        *,
        multi_agent: bool = False,
        n_prev_actions: int = 1,
        n_prev_rewards: int = 1,
    ) -> None:
        super().__init__(input_observation_space, input_action_space)
        self.n_prev_actions = n_prev_actions
        self.n_prev_rewards = n_prev_rewards
        self._steps = StepsBefore(type(self).__name__, n_prev_actions, n_prev_rewards)
        self.lookback = self._steps.lookback

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """The Dict of the observation and what is shown beside it."""
        return self._steps.space(input_observation_space, input_action_space)

    def rewrite(self, observations: Any, group: ChunkGroup) -> Any:
        """Put the observations into a dict with what came before them."""
        out = {self.ORIG_OBS_KEY: observations}
        for key, part in self._steps.parts(self.input_action_space).items():
            out[key] = part.before_newest(group)
        return out
