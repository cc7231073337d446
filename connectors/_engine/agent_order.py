"""The fixed order of agents that pieces about several of them go by."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from epibatch.core.errors import BatchLayoutError, ConfigError, SpaceError, UnknownNameError

if TYPE_CHECKING:
    from ..connector_v2 import ConnectorV2
    from .chunks import ChunkGroup

__all__ = ["agents_of", "check_agent_ids", "check_several", "places_of"]


def check_agent_ids(piece: ConnectorV2, agent_ids: Sequence[Any] | None) -> list[Any] | None:
    """The agents that a piece was given, as a list.

    Raises:
        ConfigError: no list of agents that differ.
    """
    if agent_ids is None:
        return None
    if isinstance(agent_ids, (list, tuple)) and agent_ids and len(dict.fromkeys(agent_ids)) == len(agent_ids):
        return list(agent_ids)
    raise ConfigError(
        f"{type(piece).__name__}.agent_ids",
        expected="a list of agents, each once",
        found=repr(agent_ids),
        do="name all agents that can be there, in the order that is to be kept",
    )


def agents_of(piece: Any, agent_ids: list[Any] | None) -> list[Any]:
    """All agents that can be there, in their order.

    Args:
        piece: Whose spaces are Dicts by agent; or an agent's copy of such a piece.
        agent_ids: What the piece was told; default: the entries of its observation space.

    Raises:
        SpaceError: neither says which agents there are.
    """
    if agent_ids is not None:
        return agent_ids
    space = (piece.whole or piece).input_observation_space
    if isinstance(space, gym.spaces.Dict):
        return list(space.spaces)
    raise SpaceError(
        type(piece).__name__,
        expected="the agents that can be there",
        found=f"observation space {space}, which is not by agent",
        do="pass agent_ids=[...], or give the pipeline a Dict of all agents' observation spaces",
    )


def places_of(piece: Any, agents: Sequence[Any], found: Sequence[Any]) -> npt.NDArray[np.int64]:
    """The place of each agent among all.

    Raises:
        UnknownNameError: an agent that is not among them.
    """
    places = {agent: i for i, agent in enumerate(agents)}
    try:
        return np.array([places[agent] for agent in found], np.int64)
    except KeyError as error:
        stranger = error.args[0]
        raise UnknownNameError(
            type(piece).__name__,
            expected=f"the agents {', '.join(map(repr, agents))}",
            found=repr(stranger),
            do=f"{_meant(stranger, agents)}name it in agent_ids, or in the environment's possible agents",
        ) from None


def _meant(stranger: Any, agents: Sequence[Any]) -> str:
    """Which agent was meant, with the quotes that tell a string from an int."""
    named = {str(agent): agent for agent in agents}
    kinds = {type(agent).__name__ for agent in agents}
    if str(stranger) in named and len(kinds) == 1:
        return f"write {named[str(stranger)]!r}: ids are of type {kinds.pop()} here, not {type(stranger).__name__}; or "
    close = get_close_matches(str(stranger), named, n=1)
    return f"did you mean {named[close[0]]!r}? Or " if close else ""


def check_several(piece: Any, group: ChunkGroup) -> None:
    """Refuse episodes of one agent each.

    Raises:
        BatchLayoutError: they are.
    """
    if not group.several:
        raise BatchLayoutError(
            type(piece).__name__,
            expected="multi-agent episodes",
            found=f"{len(group.episodes)} episodes of one agent each",
            do="leave this piece out: there are no other agents",
        )
