"""What makes environments' actions of modules' actions, for agents with spaces of their own."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from epibatch.core.action_scaling import EnvActions

from ..agent_parts import entry_of

__all__ = ["ActionEncoders"]


class ActionEncoders:
    """One `EnvActions` for all spaces that are equal, and which one an agent's is.

    Args:
        piece: Whose they are; its `normalize_actions` and `clip_actions` say what is done.
    """

    def __init__(self, piece: Any) -> None:
        self._piece = piece
        self._encoders: list[EnvActions] = []
        self._by_agent: dict[Any, tuple[Any, EnvActions]] = {}

    def of_agent(self, spaces: gym.spaces.Dict, agent_id: Any) -> EnvActions:
        """What encodes an agent's actions.

        Raises:
            SpaceError: the Dict has no entry for the agent.
        """
        known = self._by_agent.get(agent_id)
        if known is None or known[0] is not spaces.spaces.get(agent_id):
            own = entry_of(self._piece, "action space", spaces, agent_id)
            known = self._by_agent[agent_id] = own, self.of_space(own)
        return known[1]

    def of_space(self, space: Any) -> EnvActions:
        """What encodes actions of a space."""
        for encoder in self._encoders:
            if encoder.space is space:
                return encoder
        for encoder in self._encoders:
            if encoder.space == space:
                return encoder
        piece = self._piece
        encoder = EnvActions(space, normalize=piece.normalize_actions, clip=piece.clip_actions)
        self._encoders.append(encoder)
        return encoder
