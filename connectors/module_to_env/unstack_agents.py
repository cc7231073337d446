"""Gives each agent its part of the outputs for rows of all agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from .._engine.agent_order import check_several
from .._engine.call import Call
from .._engine.stacked_rows import StackedRows, stacked_rows_of
from ..columnar_piece import ColumnarPiece

if TYPE_CHECKING:
    from .._engine.agent_batch import AgentBatch
    from .._engine.agent_call import AgentCall

__all__ = ["UnstackAgents"]


class UnstackAgents(ColumnarPiece):
    """Makes rows of agents of a module's outputs `[B, A, ...]`: the way back of `StackAgents`.

    It stands at the start of the module-to-env pipeline, whose call gets the `shared_data` of the env-to-module call.
    Outputs of agents that do not act are left out. Modules whose batch was not stacked are left alone.

    Args:
        input_observation_space: Dict of the modules' observation spaces.
        input_action_space: Dict of the agents' action spaces.

    Raises:
        ColumnError: outputs of another shape.
        BatchLayoutError: episodes of one agent each.
    """

    pipelines: ClassVar[tuple[str, ...]] = ("module_to_env",)
    takes: ClassVar[tuple[str, ...]] = ("tensors", "arrays")
    reads: ClassVar[tuple[str, ...]] = ()

    def run(self, batch: dict[str, Any], call: Call) -> dict[str, Any]:
        """Refuse episodes of one agent."""
        check_several(self, call)
        return batch

    def run_modules(self, batch: AgentBatch, call: AgentCall) -> AgentBatch:
        """Unstack the outputs."""
        for module_id, columns in batch.groups.items():
            stacked = call.shared_data.get(stacked_rows_of(module_id))
            if isinstance(stacked, StackedRows):
                batch.groups[module_id] = {name: stacked.unstack(name, own) for name, own in columns.items()}
        return batch
