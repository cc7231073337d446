"""From whole episodes to a train batch."""

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
    from .add_columns_from_episodes_to_train_batch import (
        AddColumnsFromEpisodesToBatch,
        AddColumnsFromEpisodesToTrainBatch,
    )
    from .add_one_ts_to_episodes_and_truncate import AddOneTsToEpisodesAndTruncate
    from .frame_stacking import FrameStackingLearner
    from .general_advantage_estimation import GeneralAdvantageEstimation
    from .learner_connector_pipeline import LearnerConnectorPipeline

_COMMON = (
    "AddObservationsFromEpisodesToBatch",
    "AddStatesFromEpisodesToBatch",
    "AddTimeDimToBatchAndZeroPad",
    "BatchIndividualItems",
    "NumpyToTensor",
)

_MODULES = {
    "AddColumnsFromEpisodesToBatch": "add_columns_from_episodes_to_train_batch",
    "AddColumnsFromEpisodesToTrainBatch": "add_columns_from_episodes_to_train_batch",
    "AddOneTsToEpisodesAndTruncate": "add_one_ts_to_episodes_and_truncate",
    "FrameStackingLearner": "frame_stacking",
    "GeneralAdvantageEstimation": "general_advantage_estimation",
    "LearnerConnectorPipeline": "learner_connector_pipeline",
}

__all__ = [
    "AddObservationsFromEpisodesToBatch",
    "AddStatesFromEpisodesToBatch",
    "AddTimeDimToBatchAndZeroPad",
    "BatchIndividualItems",
    "NumpyToTensor",
    "AddColumnsFromEpisodesToBatch",
    "AddColumnsFromEpisodesToTrainBatch",
    "AddOneTsToEpisodesAndTruncate",
    "FrameStackingLearner",
    "GeneralAdvantageEstimation",
    "LearnerConnectorPipeline",
]


def __getattr__(name: str) -> Any:
    if name in _COMMON:
        return getattr(import_module("epibatch.connectors.common"), name)
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
