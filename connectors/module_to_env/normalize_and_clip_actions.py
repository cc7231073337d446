"""Makes of the module's actions what the environment takes."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any, ClassVar

import gymnasium as gym

from epibatch.core.columns import Columns
from epibatch.core.spaces import EnvActions

from .._engine.agent_copies import encoded_by_agent, entry_of
from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from ..columnar_piece import Piece
from ..tensor_step import TensorStep

__all__ = ["ActionEncoders", "EncodingPiece", "NormalizeAndClipActions", "forget_counted", "note_counted"]


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
        cached = self._by_agent.get(agent_id)
        if cached is None or cached[0] is not spaces.spaces.get(agent_id):
            space = entry_of(self._piece, "action space", spaces, agent_id)
            cached = self._by_agent[agent_id] = space, self.of_space(space)
        return cached[1]

    def of_space(self, space: Any) -> EnvActions:
        """Return the encoder of actions of a space."""
        for encoder in self._encoders:
            if encoder.space is space or encoder.space == space:
                return encoder
        piece = self._piece
        encoder = EnvActions(space, normalize=piece.normalize_actions, clip=piece.clip_actions, from_low=self._from_low)
        self._encoders.append(encoder)
        return encoder


class EncodingPiece(Piece):
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

    def undo(self, actions: Any, agent_id: Any = None) -> Any:
        """Return the environment's actions as the module's, of which `actions_for_env` would be these.

        Args:
            actions: One action of an agent, or rows of them.
            agent_id: The agent; None: there is only one.
        """
        space, encoders = self.input_action_space, self._encoders[1]
        if space is None:
            return actions
        if agent_id is None or not isinstance(space, gym.spaces.Dict):
            return encoders.of_space(space).undo(actions)
        return encoders.of_agent(space, agent_id).undo(actions)


class NormalizeAndClipActions(EncodingPiece):
    """Adds `actions_for_env`, in the types of the action space; the module's own actions stay in `actions`.

    Normalising takes a module's actions to lie in [-1, 1] and stretches them to the bounds of float
    Boxes, clipping what lies outside; actions of integer Boxes count from the lower bound. Clipping alone cuts
    actions to the Boxes. Actions that GetActions drew for an integer Box count from the lower bound without
    normalising too; it says so in `shared_data`, so pass one dict if you call the two by hand. Where nothing changes
    (Discrete actions), both columns share one array, unless a piece that may write to it follows.

    With neither, and a later piece that may change `actions`, the piece adds nothing: the environment gets `actions`
    as the last piece leaves them (`ModuleToEnvPipeline`).

    Counterparts: RLlib's `NormalizeAndClipActions`.

    Args:
        normalize_actions: Whether to stretch; goes before clipping.
        clip_actions: Whether to clip.

    Raises:
        ColumnError: actions that are nested otherwise than the action space.
    """

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Add the column."""
        if Columns.ACTIONS_FOR_ENV in columns or not columns or self in group.call.leaving:
            return columns
        actions: Any = columns.get(Columns.ACTIONS)
        if actions is None:
            self.need(columns, Columns.ACTIONS, "put GetActions before it")
        rows = actions.data if isinstance(actions, EpisodeColumn) else []
        data = rows
        if not isinstance(rows, list) and (space := self.input_action_space) is not None:
            data = self._encoded(rows, space, group)
        if data is rows:
            columns[Columns.ACTIONS_FOR_ENV] = actions if self in group.call.sharing else copy.deepcopy(actions)
        else:
            columns[Columns.ACTIONS_FOR_ENV] = EpisodeColumn(data, actions.counts)
        return columns

    def run_tensors(self, columns: dict[str, Any], step: TensorStep) -> dict[str, Any]:
        """Add the column."""
        space = self.input_action_space
        if Columns.ACTIONS_FOR_ENV in columns or self in step.group.call.leaving or space is None:
            return columns
        actions = self.need(columns, Columns.ACTIONS, "put GetActions before it")
        return {**columns, Columns.ACTIONS_FOR_ENV: self.encoders(step.group).of_space(space)(actions)}

    def _encoded(self, actions: Any, space: gym.Space[Any], group: ChunkGroup) -> Any:
        encoders = self.encoders(group)
        if not group.several or not isinstance(space, gym.spaces.Dict):
            return encoders.of_space(space)(actions)
        agents = [part.agent_id for part in group.episodes]
        return encoded_by_agent(
            agents, actions, partial(encoders.of_agent, space), lambda encoder, rows, _: encoder(rows)
        )
