"""The pipeline between a module and an environment."""

from __future__ import annotations

from typing import ClassVar

from ..connector_pipeline_v2 import ConnectorPipelineV2

__all__ = ["ModuleToEnvPipeline"]


class ModuleToEnvPipeline(ConnectorPipelineV2):
    """Makes actions for an environment from a module's output."""

    start_layout: ClassVar[str] = "tensors"
    start_columns: ClassVar[tuple[str, ...] | None] = None
    training: ClassVar[bool | None] = False
