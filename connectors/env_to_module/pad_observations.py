"""Brings agents' observations to one space."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym

from .._engine.agent_table import check_several
from .._engine.call import PipelineCall
from .._engine.chunks import ChunkGroup
from .._engine.columns import Batch
from .padded_spaces import PaddingPiece, common_space, padding

__all__ = ["PadObservations"]


class PadObservations(PaddingPiece):
    """Pads observations of agents with different spaces to one common space, so that they can share a module.

    Boxes and MultiBinary vectors are padded with zeros at the end of each axis, up to the longest agent's. Discrete
    observations keep their values, and the space becomes the smallest one that has all of them. Dicts with the same
    keys and Tuples are padded part by part; equal parts stay. The results are written back to the episodes, so that
    the learner sees them. After pad_observations_v0 of SuperSuit (Terry et al. 2020, "Multi-agent deep
    reinforcement learning with parameter sharing").

    Args:
        input_observation_space: Dict of the agents' observation spaces.
        input_action_space: Dict of the agents' action spaces.
        agent_ids: The agents that are to have one space; others are left alone. Default: all.

    Raises:
        ConfigError: `agent_ids` is no list of agents that differ.
        UnknownNameError: `agent_ids` names one without an observation space.
        SpaceError: the spaces have no common one, such as Boxes with one axis and with two; or observations do not
            match their space.
        BatchLayoutError: episodes of one agent each.

    Examples:
        >>> from epibatch.episodes import MultiAgentEpisode
        >>> spaces = gym.spaces.Dict(a=gym.spaces.Box(0, 1, (1,)), b=gym.spaces.Box(0, 9, (3,)))
        >>> episode = MultiAgentEpisode(observation_space=spaces)
        >>> episode.add_env_reset(observations={"a": [0.5], "b": [7.0, 8.0, 9.0]})
        >>> piece = PadObservations(spaces, multi_agent=True)
        >>> batch = piece(batch={}, episodes=[episode])
        >>> episode.get_observations(-1)["a"].tolist(), piece.observation_space["a"].shape
        ([0.5, 0.0, 0.0], (3,))
    """

    _padding: tuple[Any, Callable[[Any], Any]] | None = None

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """The common space of all agents that are padded."""
        if self.left_alone:
            return input_observation_space
        spaces = self.agent_template.input_observation_space
        if not isinstance(spaces, gym.spaces.Dict):  # one space of all agents
            return input_observation_space
        return common_space(self.meant(spaces), "PadObservations, observation spaces")

    def run_all(self, batch: Batch, call: PipelineCall) -> Batch:
        """Rewrite the newest observations of the agents, agent by agent if only some are meant."""
        if self._agent_ids is None:
            return super().run_all(batch, call)
        return self.run_agents(batch, call)

    def rewrite(self, observations: Any, group: ChunkGroup) -> Any:
        """Pad rows of observations."""
        check_several(self, group)
        space, common = self.input_observation_space, self.observation_space
        if space is None or common is None:
            raise self.no_spaces("observation", "none")
        if self._padding is None or self._padding[0] is not common:
            self._padding = common, padding(space, common, f"PadObservations, agent {self.agent_copy_for!r}")
        return self._padding[1](observations)
