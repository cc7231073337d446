"""From the newest observations to a module's input."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..common import (
        AddObservationsFromEpisodesToBatch,
        AddStatesFromEpisodesToBatch,
        AddTimeDimToBatchAndZeroPad,
        BatchIndividualItems,
        NumpyToTensor,
    )
    from .env_to_module_pipeline import EnvToModulePipeline
    from .frame_stacking import FrameStackingEnvToModule

_COMMON = (
    "AddObservationsFromEpisodesToBatch",
    "AddStatesFromEpisodesToBatch",
    "AddTimeDimToBatchAndZeroPad",
    "BatchIndividualItems",
    "NumpyToTensor",
)

_MODULES = {
    "EnvToModulePipeline": "env_to_module_pipeline",
    "FrameStackingEnvToModule": "frame_stacking",
}

__all__ = [
    "AddObservationsFromEpisodesToBatch",
    "AddStatesFromEpisodesToBatch",
    "AddTimeDimToBatchAndZeroPad",
    "BatchIndividualItems",
    "NumpyToTensor",
    "EnvToModulePipeline",
    "FrameStackingEnvToModule",
]


def __getattr__(name: str) -> Any:
    if name in _COMMON:
        return getattr(import_module("epibatch.connectors.common"), name)
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
