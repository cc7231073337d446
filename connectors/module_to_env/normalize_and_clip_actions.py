"""Makes of the module's actions what the environment takes."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.structs import flatten, map_struct

from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from ..columnar_piece import ColumnarPiece
from .action_encoders import ActionEncoders, encoders_of

__all__ = ["NormalizeAndClipActions"]


class NormalizeAndClipActions(ColumnarPiece):
    """Adds `actions_for_env`, in the types of the action space; the module's own actions stay in `actions`.

    Normalising takes a module's actions to lie in [-1, 1] and stretches them to the bounds of float
    Boxes, clipping what lies outside; actions of integer Boxes count from the lower bound. Clipping alone cuts
    actions to the Boxes. Actions that GetActions drew for an integer Box count from the lower bound without
    normalising too; it says so in `shared_data`, so pass one dict if you call the two by hand. Where nothing changes
    (Discrete actions), both columns share one array.

    With neither, and a later piece that may change `actions`, the piece adds nothing: the environment gets `actions`
    as the last piece leaves them (`ModuleToEnvPipeline`).

    Args:
        input_observation_space: Space of one observation.
        input_action_space: Space of one action.
        normalize_actions: Whether to stretch; goes before clipping.
        clip_actions: Whether to clip.

    Attributes:
        leaves_actions: True while a pipeline runs that adds the column at its end.

    Raises:
        ColumnError: actions that are nested otherwise than the action space.
    """

    pipelines: ClassVar[tuple[str, ...]] = ("module_to_env",)
    takes: ClassVar[tuple[str, ...]] = ("episodes",)
    reads: ClassVar[tuple[str, ...]] = (Columns.ACTIONS,)
    writes: ClassVar[tuple[str, ...]] = (Columns.ACTIONS_FOR_ENV,)

    def __init__(
        self,
        input_observation_space: gym.Space[Any] | None = None,
        input_action_space: gym.Space[Any] | None = None,
        *,
        normalize_actions: bool = True,
        clip_actions: bool = False,
    ) -> None:
        super().__init__(input_observation_space, input_action_space)
        self.normalize_actions = normalize_actions
        self.clip_actions = clip_actions
        self.leaves_actions = False
        self.encoders = ActionEncoders(self), ActionEncoders(self, from_low=True)

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Add the column."""
        if Columns.ACTIONS_FOR_ENV in columns or not columns or self.leaves_actions:
            return columns
        actions = self.need(columns, Columns.ACTIONS, "put GetActions in front")
        given = actions.data if isinstance(actions, EpisodeColumn) else []
        if isinstance(given, list) or self.input_action_space is None:
            columns[Columns.ACTIONS_FOR_ENV] = actions
            return columns
        data = self._encoded(given, group)
        columns[Columns.ACTIONS_FOR_ENV] = actions if data is given else EpisodeColumn(data, actions.counts)
        return columns

    def _encoded(self, actions: Any, group: ChunkGroup) -> Any:
        space, encoders = self.input_action_space, encoders_of(self, group)
        if not group.several or not isinstance(space, gym.spaces.Dict):
            return encoders.of_space(space)(actions)
        agents = [part.agent_id for part in group.episodes]
        of_agent = {agent_id: encoders.of_agent(space, agent_id) for agent_id in dict.fromkeys(agents)}
        if len(set(map(id, of_agent.values()))) == 1:
            return of_agent[agents[0]](actions)
        own = [of_agent[agent_id] for agent_id in agents]
        parts, order = [], []  # agents of one module whose bounds differ
        for encoder in dict.fromkeys(own):
            rows = np.flatnonzero([one is encoder for one in own])
            parts.append(encoder(map_struct(lambda leaf, rows=rows: leaf[rows], actions)))
            order.append(rows)
        back = np.argsort(np.concatenate(order))
        if len({tuple(leaf.dtype for leaf in flatten(part)[0]) for part in parts}) > 1:  # one array has one type
            items = [
                map_struct(lambda leaf, i=i: leaf[i], part) for part, at in zip(parts, order) for i in range(len(at))
            ]
            return [items[i] for i in back]
        return map_struct(lambda *leaves: np.concatenate(leaves)[back], *parts)
