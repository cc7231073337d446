"""Encoders from modules' actions to environments' actions, for agents with different spaces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium as gym

from epibatch.core.columns import Columns
from epibatch.core.spaces import EnvActions

from .._engine.agent_copies import entry_of
from ..columnar_piece import ColumnarPiece

if TYPE_CHECKING:
    from .._engine.chunks import ChunkGroup

__all__ = ["ActionEncoders", "EncodingPiece", "forget_counted", "note_counted"]


def note_counted(group: ChunkGroup) -> None:
    """Note that the actions of a call were drawn from choices that count from the lower bound of an integer Box."""
    group.shared_data.setdefault(_COUNTED, set()).add(group.module_id)


def forget_counted(group: ChunkGroup) -> None:
    """Take back what `note_counted` noted in an earlier step, as a module has given its own actions now."""
    if counted := group.shared_data.get(_COUNTED):
        counted.discard(group.module_id)


_COUNTED = "modules_whose_actions_count_from_low"


class ActionEncoders:
    """A map from agents to encoders, with one `EnvActions` for all equal spaces.

    Args:
        piece: The piece that uses them. Its `normalize_actions` and `clip_actions` say what is done.
        from_low: Whether integer Boxes' actions count from the lower bound without normalising too.
    """

    def __init__(self, piece: Any, *, from_low: bool = False) -> None:
        self._piece, self._from_low = piece, from_low
        self._encoders: list[EnvActions] = []
        self._by_agent: dict[Any, tuple[Any, EnvActions]] = {}

    def of_agent(self, spaces: gym.spaces.Dict, agent_id: Any) -> EnvActions:
        """Return the encoder of an agent's actions.

        Raises:
            SpaceError: the Dict has no entry for the agent.
        """
        known = self._by_agent.get(agent_id)
        if known is None or known[0] is not spaces.spaces.get(agent_id):
            own = entry_of(self._piece, "action space", spaces, agent_id)
            known = self._by_agent[agent_id] = own, self.of_space(own)
        return known[1]

    def of_space(self, space: Any) -> EnvActions:
        """Return the encoder of actions of a space."""
        for encoder in self._encoders:
            if encoder.space is space:
                return encoder
        for encoder in self._encoders:
            if encoder.space == space:
                return encoder
        piece = self._piece
        encoder = EnvActions(space, normalize=piece.normalize_actions, clip=piece.clip_actions, from_low=self._from_low)
        self._encoders.append(encoder)
        return encoder


class EncodingPiece(ColumnarPiece):
    """A piece that adds `actions_for_env`, encoded as the environment's spaces say."""

    pipelines: ClassVar[tuple[str, ...]] = ("module_to_env",)
    input_layouts: ClassVar[tuple[str, ...]] = ("episodes",)
    reads: ClassVar[tuple[str, ...]] = (Columns.ACTIONS,)
    writes: ClassVar[tuple[str, ...]] = (Columns.ACTIONS_FOR_ENV,)
    normalize_actions: bool = True
    clip_actions: bool = False

    def __post_init__(self) -> None:
        """Make what encodes actions that a module gave, and drawn ones."""
        self._encoders = ActionEncoders(self), ActionEncoders(self, from_low=True)

    def encoders(self, group: ChunkGroup) -> ActionEncoders:
        """Return the encoder of a group's actions, from a module or drawn at random."""
        counted = not self.normalize_actions and group.module_id in group.shared_data.get(_COUNTED, ())
        return self._encoders[counted]
