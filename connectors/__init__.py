"""Ordered pieces that turn episodes into batches, and module outputs into actions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epibatch.core.lazy import lazy_exports

if TYPE_CHECKING:
    from ._engine.chunks import ChunkGroup
    from ._engine.columns import EpisodeColumn
    from ._inspect.profile import PieceCost, PipelineProfile, profile_pipelines
    from ._inspect.trace import PipelineTrace, TracedPiece
    from ._inspect.traced_columns import TracedColumn
    from .columnar_piece import ColumnarPiece
    from .connector_pipeline_v2 import ConnectorPipelineV2
    from .connector_v2 import ConnectorV2


__all__ = [
    "ChunkGroup",
    "ColumnarPiece",
    "ConnectorPipelineV2",
    "ConnectorV2",
    "EpisodeColumn",
    "PieceCost",
    "PipelineProfile",
    "PipelineTrace",
    "TracedColumn",
    "TracedPiece",
    "profile_pipelines",
]

__getattr__, __dir__ = lazy_exports(__name__, renamed={"Call": "ChunkGroup, in run(columns, group)"})
