"""Tells a module that acts for several agents which of them it acts for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from epibatch.core.errors import SpaceError

from .._engine.agent_table import agents_of, check_agent_ids, check_several, places_of
from .._engine.chunks import ChunkGroup
from ..columnar_piece import ObservationRewriter

__all__ = ["AgentIndicator"]


class AgentIndicator(ObservationRewriter):
    """Adds a one-hot of the agent, among all that can be there, to each observation.

    The one-hot is appended to observations that are vectors, in their type; or it stands beside an observation of any
    kind: `{"agent": one-hot, "obs": observation}`. What comes out is written back into the episodes, so that the
        learner
    sees it. The order is that of the observation spaces' Dict (an environment's possible agents), or of `agent_ids`; it
    must be the same wherever the module is used. After agent_indicator_v0 of SuperSuit (Terry et al. 2020, "Multi-agent
    deep reinforcement learning with parameter sharing").

    Args:
        input_observation_space: Dict of the agents' observation spaces; Boxes with one axis unless `in_dict`.
        input_action_space: Dict of the agents' action spaces.
        agent_ids: All agents that can be there, in the order of the one-hot's entries; default: those of the Dict.
        in_dict: Whether the one-hot stands beside the observation.

    Raises:
        ConfigError: `agent_ids` is no list of agents that differ.
        SpaceError: observations that are no vectors, without `in_dict`; or nothing says which agents there are.
        UnknownNameError: an agent that is not among them.
        BatchLayoutError: episodes of one agent each.

    Examples:
        >>> from epibatch.episodes import MultiAgentEpisode
        >>> episode = MultiAgentEpisode()
        >>> episode.add_env_reset(observations={"b": np.float32([0.5, 2.0]), "a": np.float32([4.0, 3.0])})
        >>> batch = AgentIndicator(agent_ids=["a", "b", "c"])(batch={}, episodes=[episode])
        >>> {agent: own.tolist() for agent, own in episode.get_observations(-1).items()}
        {'b': [0.5, 2.0, 0.0, 1.0, 0.0], 'a': [4.0, 3.0, 1.0, 0.0, 0.0]}
    """

    multi_agent: bool = False
    agent_ids: Sequence[Any] | None = None
    in_dict: bool = False

    def __post_init__(self) -> None:
        """Check the agents."""
        self._agent_ids = check_agent_ids(self, self.agent_ids)

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """The Box with an entry more for each agent, or a Dict of the one-hot and the observation."""
        count = len(agents_of(self, self._agent_ids))
        space = input_observation_space
        if self.in_dict:
            return gym.spaces.Dict(agent=gym.spaces.Box(0.0, 1.0, (count,), np.float32), obs=space)
        if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
            raise self._no_vector(space)
        low = np.concatenate([space.low, np.zeros(count, space.dtype)])
        return gym.spaces.Box(low, np.concatenate([space.high, np.ones(count, space.dtype)]), dtype=low.dtype.type)

    def rewrite(self, observations: Any, group: ChunkGroup) -> Any:
        """Append the one-hots, or put them beside the observations."""
        check_several(self, group)
        agents = agents_of(self, self._agent_ids)
        places = places_of(self, agents, [episode.agent_id for episode in group.episodes])
        vectors = isinstance(observations, np.ndarray) and observations.ndim == 2
        if not self.in_dict and not vectors:
            raise self._no_vector(f"rows {group.episodes[0].get_observations(-1)!r}")
        codes = np.zeros((len(places), len(agents)), np.float32 if self.in_dict else observations.dtype)
        codes[np.arange(len(places)), places] = 1
        return {"agent": codes, "obs": observations} if self.in_dict else np.concatenate([observations, codes], axis=1)

    def _no_vector(self, found: Any) -> SpaceError:
        return SpaceError(
            f"AgentIndicator, observations of agent {self.agent_copy_for!r}",
            expected="vectors, a Box with one axis, to append the one-hot to",
            found=str(found),
            do="pass in_dict=True, which takes any observation, or put FlattenObservations before it",
        )
