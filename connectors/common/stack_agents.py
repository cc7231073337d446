"""Gives a module all agents of an env step in one row."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from epibatch.core.columns import Columns
from epibatch.core.errors import BatchLayoutError, ColumnError, ConfigError
from epibatch.core.padding import SequenceLayout, pad, placed_layout
from epibatch.core.spaces import map_space
from epibatch.core.structs import flatten, flatten_like, map_struct

from .._engine.agent_table import AgentTable, AllAgentsPiece, check_agent_ids, places_of
from .._engine.call import PipelineCall
from .._engine.chunks import ChunkGroup
from .._engine.columns import Batch
from ..authoring.row_spaces import bounds_of, box_of, choices_of

__all__ = ["STACKED", "StackAgents"]

STACKED = "_stacked_agents"
"""In shared_data: module id -> layout `[B, A]` of its agents' rows, for `UnstackAgents`."""


class StackAgents(AllAgentsPiece):
    """Makes one row of all agents' rows at an env step: columns become `[B, A, ...]`, with A agents in a fixed order.

    Put it after BatchIndividualItems, in the env-to-module pipeline and in the learner pipeline. The module returns
    outputs `[B, A, ...]`. `UnstackAgents` at the start of the module-to-env pipeline gives each agent its part of them.

    A row is an env step at which an agent of the module has a row, episode by episode. `agent_mask` [B, A] is True for
    the agents that observed at this step; the others are zeros in every column. Joint observations are complete in both
    pipelines. They include agents that observed but have no row of their own: agents that have ended, that another
    module decides for, or with a step that ends in another chunk. Other columns have zeros for them. In training
    `loss_mask` [B, A] is True only for rows of agents that carry loss.

    The module's observation space is that of such a row, `(A, ...)` with zeros in it; its action space is one agent's,
    as UnstackAgents returns it. After this piece GeneralAdvantageEstimation takes values [B, A] and works by agent.
    Recurrent modules cannot be stacked: they have sequences of each agent's own steps, without common env steps.

    Counterparts: TorchRL's `Stack`.

    Args:
        input_observation_space: Dict of the modules' observation spaces.
        input_action_space: Dict of the modules' action spaces.
        agent_ids: The agents of a row, in their order. They must include all agents of the module.
        module_ids: The modules with stacked batches; default: all.

    Raises:
        ConfigError: no `agent_ids`, or no list of agents that differ.
        UnknownNameError: an agent of the module that is not among them.
        BatchLayoutError: a recurrent module, an episode that is in the call twice, or episodes of one agent each.
        ColumnError: the observation of an agent without a row differs in shape from the rows. A piece that changes
            observations only in the batch, such as FrameStacking, causes this.

    Examples:
        >>> from epibatch.connectors.common import (
        ...     AddObservationsFromEpisodesToBatch, AgentToModuleMapping, BatchIndividualItems)
        >>> from epibatch.connectors.env_to_module import EnvToModulePipeline
        >>> from epibatch.episodes import MultiAgentEpisode
        >>> episode = MultiAgentEpisode()
        >>> episode.add_env_reset(observations={"c": [3.0], "a": [1.0]})
        >>> pieces = [AddObservationsFromEpisodesToBatch(), AgentToModuleMapping(), BatchIndividualItems()]
        >>> pipeline = EnvToModulePipeline(connectors=[*pieces, StackAgents(agent_ids=["a", "b", "c"])])
        >>> batch = pipeline(episodes=[episode])["default_policy"]
        >>> batch["obs"].tolist(), batch["agent_mask"].tolist()
        ([[[1.0], [0.0], [3.0]]], [[True, False, True]])
    """

    pipelines: ClassVar[tuple[str, ...]] = ("env_to_module", "learner")
    input_layouts: ClassVar[tuple[str, ...]] = ("arrays",)
    reads: ClassVar[tuple[str, ...]] = (Columns.OBS,)
    writes: ClassVar[tuple[str, ...]] = ("agent_mask",)
    uses_spaces: ClassVar[bool] = True
    agent_ids: Sequence[Any] | None = None
    module_ids: Sequence[Any] | None = None
    as_learner_connector: bool = False

    def __post_init__(self) -> None:
        """Check the agents."""
        if self.agent_ids is None:
            raise ConfigError(
                "StackAgents.agent_ids",
                expected="the agents that are in a row",
                found="none",
                do="name them in the order in which the module is to see them",
            )
        self._agent_ids = check_agent_ids(self, self.agent_ids) or []

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """The space of all agents' observations in one row; actions stay those of one agent."""
        if (
            self.module_ids is not None
            and self.agent_copy_for is not None
            and self.agent_copy_for not in self.module_ids
        ):
            return input_observation_space
        return map_space(partial(_stacked_space, len(self._agent_ids)), input_observation_space)

    def run_all(self, batch: Batch, call: PipelineCall) -> Batch:
        """Stack the batches."""
        if not call.several:
            return super().run_all(batch, call)
        module_ids = [name for name in call.groups if self.module_ids is None or name in self.module_ids]
        if not module_ids:
            return batch
        table = AgentTable(call, self._agent_ids, self, newest=not self.as_learner_connector, only=True)
        for module_id in module_ids:
            group = call.groups[module_id]
            if group.stateful:
                raise BatchLayoutError(
                    f"StackAgents, module {module_id!r}",
                    expected="a module without state, whose rows are env steps",
                    found="a recurrent one, whose rows are sequences of an agent's own steps",
                    do="leave it out of module_ids, or show it the others with AddOtherAgentsFromEpisodesToBatch",
                )
            batch.groups[module_id] = self._stacked(batch.groups[module_id], group, table)
        return batch

    def _stacked(self, columns: dict[str, Any], group: ChunkGroup, table: AgentTable) -> dict[str, Any]:
        places = places_of(self, self._agent_ids, [episode.agent_id for episode in group.episodes])
        counts = group.counts if self.as_learner_connector else np.ones_like(places)
        row_places = np.repeat(places, counts)
        env_rows, has_rows = table.env_rows(group), np.zeros(len(table.rows), np.bool_)
        has_rows[env_rows] = True
        steps, at = np.flatnonzero(has_rows), (np.cumsum(has_rows) - 1)[env_rows]
        layout = placed_layout(counts, at * len(self._agent_ids) + row_places, (len(steps), len(self._agent_ids)))
        group.sequences = group.shared_data.setdefault(STACKED, {})[group.module_id] = layout
        numbers = table.rows[steps]
        out = {name: _laid_out(name, column, layout) for name, column in columns.items()}
        rest = numbers.reshape(-1) >= 0
        rest[layout.destination] = False
        if int((numbers >= 0).sum()) - int(rest.sum()) != len(row_places):
            raise BatchLayoutError(
                f"StackAgents, module {group.module_id!r}",
                expected="each episode once",
                found="one that is in the call twice, so that two rows have one place",
                do="leave one of them out",
            )
        cells = np.flatnonzero(rest)
        if len(cells):
            self._fill(out[Columns.OBS], table.observations(numbers.reshape(-1)[cells]), cells, group)
        out["agent_mask"] = numbers >= 0
        if self.as_learner_connector and Columns.LOSS_MASK not in out:
            out[Columns.LOSS_MASK] = layout.mask.copy()
        return out

    def _fill(self, obs: Any, rows: Any, cells: npt.NDArray[np.int64], group: ChunkGroup) -> None:
        """Write observations of agents without rows of their own."""
        leaves, form = flatten(obs)
        parts = flatten_like(form, rows)
        for leaf, part in zip(leaves, parts):
            if leaf.shape[2:] != part.shape[1:]:
                raise ColumnError(
                    f"StackAgents, column 'obs' of module {group.module_id!r}",
                    expected=f"observations as the episodes have them, of shape {part.shape[1:]}",
                    found=f"{leaf.shape[2:]}; an agent that observed without a row of its own cannot be filled in",
                    do="change observations in the episodes, by pieces in the env-to-module pipeline",
                )
            leaf.reshape(-1, *leaf.shape[2:])[cells] = part


def _laid_out(name: str, column: Any, layout: SequenceLayout) -> Any:
    """A column of rows as `[B, A, ...]`, zeros where no row is; lists have None there."""
    leaves = [column] if isinstance(column, list) else flatten(column)[0]
    lengths = [len(leaf) for leaf in leaves if len(leaf) != layout.num_rows]
    if lengths:
        raise ColumnError(
            f"column {name!r}",
            expected=f"{layout.num_rows} rows, one for each of its agents' rows",
            found=f"{lengths[0]} rows",
            do="let the piece that adds it give each agent as many rows as the other columns have",
        )
    if isinstance(column, list):
        items, at = [*column, None], np.where(layout.mask.ravel(), layout.source, -1).reshape(layout.mask.shape)
        return [[items[i] for i in row] for row in at.tolist()]
    return map_struct(lambda leaf: pad(leaf, layout), column)


def _stacked_space(agents: int, space: Any) -> gym.Space[Any]:
    """The space of rows `[A, ...]` of several agents, zeros where there is none."""
    if isinstance(space, gym.spaces.MultiBinary):
        return gym.spaces.MultiBinary((agents, *space.shape))
    if not isinstance(space, (gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiDiscrete)):
        return gym.spaces.Tuple([space] * agents)
    low, high = (np.stack([bound] * agents) for bound in bounds_of(space, "StackAgents"))
    low, high = np.minimum(low, 0).astype(low.dtype), np.maximum(high, 0).astype(high.dtype)
    return box_of(low, high) if isinstance(space, gym.spaces.Box) else choices_of(low, high)
