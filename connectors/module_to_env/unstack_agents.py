"""Gives each agent its part of the outputs for rows of all agents."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from epibatch.core.errors import ColumnError
from epibatch.core.padding import SequenceLayout
from epibatch.core.structs import map_struct

from .._engine.agent_table import AllAgentsPiece
from .._engine.call import PipelineCall
from .._engine.columns import Batch
from ..common.stack_agents import STACKED

__all__ = ["UnstackAgents"]


class UnstackAgents(AllAgentsPiece):
    """Splits a module's outputs `[B, A, ...]` into rows of agents: the inverse of `StackAgents`.

    Put it at the start of the module-to-env pipeline. Its call needs the `shared_data` of the env-to-module call.
    Outputs of agents that do not act are left out. Modules whose batch was not stacked are left alone.

    Counterparts: TorchRL's `Stack`.

    Args:
        input_observation_space: Dict of the modules' observation spaces.
        input_action_space: Dict of the agents' action spaces.

    Raises:
        ColumnError: outputs of another shape.
        BatchLayoutError: episodes of one agent each.
    """

    pipelines: ClassVar[tuple[str, ...]] = ("module_to_env",)
    input_layouts: ClassVar[tuple[str, ...]] = ("tensors", "arrays")

    def run_all(self, batch: Batch, call: PipelineCall) -> Batch:
        """Unstack the outputs."""
        if not call.several:
            return super().run_all(batch, call)
        for module_id, layout in call.shared_data.get(STACKED, {}).items():
            for name, column in batch.groups.get(module_id, {}).items():
                batch.groups[module_id][name] = map_struct(partial(_rows, name, layout), column)
        return batch


def _rows(name: str, layout: SequenceLayout, leaf: Any) -> Any:
    """The agents' rows out of an array or tensor `[B, A, ...]`."""
    if tuple(leaf.shape[:2]) != layout.mask.shape:
        raise ColumnError(
            f"column {name!r}",
            expected=f"one row for each env step and agent, shape {[*layout.mask.shape, '...']}",
            found=f"shape {list(leaf.shape)}",
            do="let the module return outputs for all agents of a row, in their order",
        )
    return leaf.reshape(-1, *leaf.shape[2:])[layout.destination]
