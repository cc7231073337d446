"""Gives each agent its row of its module's outputs."""

from __future__ import annotations

from typing import Any, ClassVar

from .._engine.agent_table import AgentMapper, check_several
from .._engine.call import PipelineCall
from .._engine.chunks import ChunkGroup
from .._engine.columns import Batch

__all__ = ["ModuleToAgentUnmapping"]


class ModuleToAgentUnmapping(AgentMapper):
    """Turns columns by module into columns by agent: the inverse of `AgentToModuleMapping`.

    Counterparts: RLlib's `ModuleToAgentUnmapping`.

    Args:
        input_observation_space: Dict of the modules' observation spaces.
        input_action_space: Dict of the agents' action spaces.

    Raises:
        BatchLayoutError: episodes of one agent each.
    """

    pipelines: ClassVar[tuple[str, ...]] = ("module_to_env",)
    input_layouts: ClassVar[tuple[str, ...]] = ("episodes",)

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Refuse episodes of one agent."""
        check_several(self, group, "leave this piece out: their columns are by episode already")
        return columns

    def run_all(self, batch: Batch, call: PipelineCall) -> Batch:
        """From now on show the batch by agent."""
        if call.several:
            call.mapped = False
            return batch
        return super().run_all(batch, call)
