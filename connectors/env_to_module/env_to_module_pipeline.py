"""The pipeline between an environment and a module."""

from __future__ import annotations

from typing import ClassVar

from ..connector_pipeline_v2 import ConnectorPipelineV2

__all__ = ["EnvToModulePipeline"]


class EnvToModulePipeline(ConnectorPipelineV2):
    """Makes a module's input from the newest observations of running episodes."""

    training: ClassVar[bool | None] = False
