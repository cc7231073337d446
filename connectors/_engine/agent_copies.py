"""Copies of a piece for agents of other spaces, or with states of their own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from epibatch.core.errors import SpaceError
from epibatch.core.structs import flatten, map_struct

if TYPE_CHECKING:
    from ..connector_v2 import ConnectorV2


class PerAgentCopies:
    """One copy of a piece per agent, with the agent's spaces and a state of its own.

    Args:
        template: The piece. Its spaces are Dicts of the agents' spaces.
    """

    def __init__(self, template: ConnectorV2) -> None:
        self.agent_template = template
        self._copies: dict[Any, Any] = {}
        self._spaces: tuple[Any, Any] = (None, None)

    def of(self, agent_id: Any) -> Any:
        """The agent's copy, made when it is first asked for.

        Raises:
            SpaceError: the piece's spaces have no entry for the agent.
        """
        spaces = self.agent_template.input_observation_space, self.agent_template.input_action_space
        if spaces[0] is not self._spaces[0] or spaces[1] is not self._spaces[1]:
            self._spaces = spaces
            for key, part in self._copies.items():
                _give_spaces(part, self.agent_template, key)
        part = self._copies.get(agent_id)
        if part is None:
            part = _copy_for(agent_id, self.agent_template)
            _give_spaces(part, self.agent_template, agent_id)
            part.reset_state()
            self._copies[agent_id] = part
        return part

    def items(self) -> list[tuple[Any, Any]]:
        """Agents and their copies, in the order in which they were first asked for."""
        return list(self._copies.items())

    def clear(self) -> None:
        """Forget all copies."""
        self._copies = {}


def _copy_for(key: Any, template: ConnectorV2) -> Any:
    """A copy for an agent, or a module, whose spaces are still those of the template."""
    part = copy.copy(template)
    part.spaces_by_agent, part.agent_copy_for, part.agent_template = False, key, template
    return part


def _give_spaces(part: ConnectorV2, template: ConnectorV2, key: Any) -> None:
    part.input_observation_space = entry_of(template, "observation space", template.input_observation_space, key)
    part.input_action_space = entry_of(template, "action space", template.input_action_space, key)


def entry_of(piece: Any, kind: str, space: Any, key: Any) -> Any:
    """An agent's (or module's) space out of a Dict of them; another space is that of all.

    Raises:
        SpaceError: the Dict has no entry for it.
    """
    if not isinstance(space, gym.spaces.Dict):
        return space
    if key not in space.spaces:
        raise SpaceError(
            f"{type(piece).__name__}, {kind} of agent {key!r}",
            expected=f"an entry among those of {list(space.spaces)}",
            found="none",
            do="give the environment's observation_spaces and action_spaces an entry for every possible agent",
        )
    return space.spaces[key]


def no_space(piece: Any, expected: str, arguments: str) -> SpaceError:
    """The error of a piece that was not told a space that it needs."""
    name = type(piece).__name__
    do = f"pass it to the pipeline, or to the piece: {name}({arguments})"
    return SpaceError(name, expected=expected, found="none", do=do)


def output_spaces(piece: ConnectorV2) -> tuple[Any, Any]:
    """Return the output spaces of a piece for Dicts of agents' (or modules') spaces, entry by entry."""
    observations, actions = piece.input_observation_space, piece.input_action_space
    keys = dict.fromkeys(
        key for space in (observations, actions) if isinstance(space, gym.spaces.Dict) for key in space.spaces
    )
    parts = {key: _copy_for(key, piece) for key in keys}
    for key, part in parts.items():
        part.input_observation_space, part.input_action_space = (
            space.spaces.get(key) if isinstance(space, gym.spaces.Dict) else space for space in (observations, actions)
        )
    return _together(parts, "observation_space", observations), _together(parts, "action_space", actions)


def _together(parts: dict[Any, Any], kind: str, space: Any) -> Any:
    if not isinstance(space, gym.spaces.Dict):
        return space
    spaces = {key: getattr(parts[key], kind) for key in space.spaces}
    if None in spaces.values():  # one that is not known any more
        return None
    return space if all(entry is space.spaces[key] for key, entry in spaces.items()) else gym.spaces.Dict(spaces)


def encoded_by_agent(
    agents: Sequence[Any], rows: Any, encoder_of: Callable[[Any], Any], encode: Callable[[Any, Any, Any], Any]
) -> Any:
    """Encode the rows of several agents. Rows with the same encoder are encoded together.

    Args:
        agents: The agent of each row.
        rows: A structure of arrays [N, ...], or a list of N structures.
        encoder_of: Function `(agent) -> encoder`.
        encode: Function `(encoder, rows, their positions) -> rows`.

    Returns:
        A structure of arrays; a list of rows if the results differ in nesting, shape or type.
    """
    of_agent = {agent: encoder_of(agent) for agent in dict.fromkeys(agents)}
    encoders = list({id(encoder): encoder for encoder in of_agent.values()}.values())
    if isinstance(rows, list):
        pairs = [(of_agent[agent], np.array([i])) for i, agent in enumerate(agents)]
        parts = [encode(encoder, map_struct(lambda x: np.asarray(x)[None], rows[at[0]]), at) for encoder, at in pairs]
    elif len(encoders) == 1:
        return encode(encoders[0], rows, np.arange(len(agents)))
    else:
        pairs = [(encoder, np.flatnonzero([of_agent[agent] is encoder for agent in agents])) for encoder in encoders]
        parts = [encode(encoder, map_struct(lambda leaf, at=at: leaf[at], rows), at) for encoder, at in pairs]
    flat = [flatten(part) for part in parts]
    order = np.argsort(np.concatenate([at for _, at in pairs]))
    if len({(form, *((leaf.shape[1:], leaf.dtype) for leaf in leaves)) for leaves, form in flat}) == 1:
        return map_struct(lambda *leaves: np.concatenate(leaves)[order], *parts)
    items = [map_struct(lambda leaf, i=i: leaf[i], part) for part, (_, at) in zip(parts, pairs) for i in range(len(at))]
    return [items[i] for i in order]
