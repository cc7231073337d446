"""Ordered pieces that turn episodes into batches, and module outputs into actions."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .call import Call
    from .columnar_piece import ColumnarPiece
    from .connector_pipeline_v2 import ConnectorPipelineV2
    from .connector_v2 import ConnectorV2
    from .episode_column import EpisodeColumn

_MODULES = {
    "Call": "call",
    "ColumnarPiece": "columnar_piece",
    "ConnectorPipelineV2": "connector_pipeline_v2",
    "ConnectorV2": "connector_v2",
    "EpisodeColumn": "episode_column",
}

__all__ = [
    "Call",
    "ColumnarPiece",
    "ConnectorPipelineV2",
    "ConnectorV2",
    "EpisodeColumn",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
