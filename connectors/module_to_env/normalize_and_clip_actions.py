"""Makes of the module's actions what the environment takes."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import gymnasium as gym

from epibatch.core.columns import Columns

from .._engine.agent_copies import encoded_by_agent
from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from .action_encoders import EncodingPiece

__all__ = ["NormalizeAndClipActions"]


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

    Attributes:
        leaves_actions: True while a pipeline runs that adds the column at its end.
        shares_actions: True in a pipeline where no later piece may write to the column.

    Raises:
        ColumnError: actions that are nested otherwise than the action space.
    """

    leaves_actions = False
    shares_actions = False

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Add the column."""
        if Columns.ACTIONS_FOR_ENV in columns or not columns or self.leaves_actions:
            return columns
        actions = self.need(columns, Columns.ACTIONS, "put GetActions before it")
        given = actions.data if isinstance(actions, EpisodeColumn) else []
        data = given
        if not isinstance(given, list) and self.input_action_space is not None:
            data = self._encoded(given, group)
        if data is given:
            columns[Columns.ACTIONS_FOR_ENV] = actions if self.shares_actions else copy.deepcopy(actions)
        else:
            columns[Columns.ACTIONS_FOR_ENV] = EpisodeColumn(data, actions.counts)
        return columns

    def _encoded(self, actions: Any, group: ChunkGroup) -> Any:
        space, encoders = self.input_action_space, self.encoders(group)
        if not group.several or not isinstance(space, gym.spaces.Dict):
            return encoders.of_space(space)(actions)
        agents = [part.agent_id for part in group.episodes]
        return encoded_by_agent(
            agents, actions, partial(encoders.of_agent, space), lambda encoder, rows, _: encoder(rows)
        )
