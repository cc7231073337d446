"""Gives agents that share a padded action space actions of their own."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError
from epibatch.core.spaces import EnvActions

from .._engine.agent_copies import encoded_by_agent, no_space
from .._engine.agent_table import check_several
from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from .normalize_and_clip_actions import ActionEncoders, EncodingPiece

__all__ = ["CutPaddedActions"]


class CutPaddedActions(EncodingPiece):
    """Adds `actions_for_env`, cut to each agent's own space; the module's padded actions stay in `actions`.

    It is the inverse of `PadActions`. Of Box actions the entries that the agent has are kept. A Discrete action that
    is not one of the agent's own is an error, and is never made another one: the module did not heed the mask. What
    remains is stretched and clipped as by `NormalizeAndClipActions`, which leaves these actions alone; so give this
    piece the same two settings if they are not the default ones.

    Args:
        input_observation_space: Dict of the agents' observation spaces.
        input_action_space: Dict of the agents' own action spaces.
        normalize_actions: Whether to stretch float actions from [-1, 1] to the bounds; goes before clipping.
        clip_actions: Whether to clip.

    Raises:
        ColumnError: a Discrete action that the agent does not have, or Box actions that are shorter than the agent's.
        SpaceError: no Dict of action spaces, or one without an entry for an agent.
        BatchLayoutError: episodes of one agent each.

    Examples:
        >>> from epibatch.episodes import MultiAgentEpisode
        >>> from epibatch.connectors.module_to_env import (
        ...     ModuleToAgentUnmapping, ModuleToEnvPipeline, TensorToNumpy, UnBatchToIndividualItems)
        >>> spaces = gym.spaces.Dict(a=gym.spaces.Discrete(2), b=gym.spaces.Discrete(3))
        >>> episode = MultiAgentEpisode(id_="e")
        >>> episode.add_env_reset(observations={"a": 5, "b": 6})
        >>> pieces = [TensorToNumpy(), UnBatchToIndividualItems(), ModuleToAgentUnmapping(), CutPaddedActions()]
        >>> pipeline = ModuleToEnvPipeline(None, spaces, connectors=pieces)
        >>> out = pipeline(batch={"default_policy": {"actions": np.array([1, 2])}}, episodes=[episode])
        >>> out["actions_for_env"]["e", "b", "default_policy"]
        [np.int64(2)]
    """

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Add the column."""
        check_several(self, group)
        if Columns.ACTIONS_FOR_ENV in columns or not columns:
            return columns
        actions = self.need(columns, Columns.ACTIONS, "put GetActions before it")
        if not isinstance(actions, EpisodeColumn) or actions.holds_objects:
            raise ColumnError(
                f"CutPaddedActions, column {Columns.ACTIONS!r} of module {group.module_id!r}",
                expected="padded actions of one shape",
                found=f"{type(getattr(actions, 'data', actions)).__name__}",
                do="put it after ModuleToAgentUnmapping, with the module's actions as they are",
            )
        data = encoded_by_agent(
            [episode.agent_id for episode in group.episodes],
            actions.data,
            partial(self._of_agent, self.encoders(group)),
            lambda encoder, rows, places: encoder(_cut(rows, encoder.space, places, group)),
        )
        columns[Columns.ACTIONS_FOR_ENV] = EpisodeColumn(data)
        return columns

    def _of_agent(self, encoders: ActionEncoders, agent_id: Any) -> EnvActions:
        """Return the encoder of an agent's actions; one for all equal spaces."""
        spaces = self.input_action_space
        if spaces is None:
            raise no_space(self, "a Dict of the agents' own action spaces", "None, action_spaces")
        if not isinstance(spaces, gym.spaces.Dict):
            return encoders.of_space(spaces)
        return encoders.of_agent(spaces, agent_id)


def _cut(actions: Any, space: Any, rows: npt.NDArray[np.int64], group: ChunkGroup) -> Any:
    """Rows of padded actions as rows of the agents' own space."""
    if isinstance(space, gym.spaces.Discrete):
        first = int(space.start)
        last = first + int(space.n) - 1
        misfits = np.flatnonzero((actions < first) | (actions > last))
        if len(misfits):
            raise ColumnError(
                f"CutPaddedActions, {group.describe(int(rows[misfits[0]]))}",
                expected=f"an action of {space}: {first} to {last}",
                found=f"{actions[misfits[0]]}, which only other agents of module {group.module_id!r} have",
                do="heed batch['obs']['action_mask'] of PadActions: set the logits of masked actions very low",
            )
    if not isinstance(space, gym.spaces.Box):
        return actions
    shape = actions.shape[1:] if isinstance(actions, np.ndarray) else None
    if shape is None or len(shape) != len(space.shape) or any(have < need for have, need in zip(shape, space.shape)):
        raise ColumnError(
            f"CutPaddedActions, {group.describe(int(rows[0]))}",
            expected=f"actions of shape {space.shape}, or padded ones",
            found="nested actions" if shape is None else f"shape {shape}",
            do="put PadActions into the env-to-module pipeline, whose action space modules are built for",
        )
    return actions[(slice(None), *map(slice, space.shape))]
