"""Ordered pieces that turn episodes into batches, and module outputs into actions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epibatch.core.lazy import lazy_exports

if TYPE_CHECKING:
    from .call import Call
    from .columnar_piece import ColumnarPiece
    from .connector_pipeline_v2 import ConnectorPipelineV2
    from .connector_v2 import ConnectorV2
    from .episode_column import EpisodeColumn
    from .piece_profile import PieceCost, PipelineProfile, profile_pipelines
    from .piece_trace import PipelineTrace, TracedPiece
    from .traced_columns import TracedColumn
    from .two_sides import check_two_sides


__all__ = [
    "Call",
    "ColumnarPiece",
    "ConnectorPipelineV2",
    "ConnectorV2",
    "EpisodeColumn",
    "PieceCost",
    "PipelineProfile",
    "PipelineTrace",
    "TracedColumn",
    "TracedPiece",
    "check_two_sides",
    "profile_pipelines",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Call": ".call",
        "ColumnarPiece": ".columnar_piece",
        "ConnectorPipelineV2": ".connector_pipeline_v2",
        "ConnectorV2": ".connector_v2",
        "EpisodeColumn": ".episode_column",
        "PieceCost": ".piece_profile",
        "PipelineProfile": ".piece_profile",
        "PipelineTrace": ".piece_trace",
        "TracedColumn": ".traced_columns",
        "TracedPiece": ".piece_trace",
        "check_two_sides": ".two_sides",
        "profile_pipelines": ".piece_profile",
    },
)
