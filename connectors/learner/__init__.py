"""From whole episodes to a train batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epibatch.core.lazy import lazy_exports

if TYPE_CHECKING:
    from ..common import (
        AddObservationsFromEpisodesToBatch,
        AddStatesFromEpisodesToBatch,
        AddTimeDimToBatchAndZeroPad,
        AgentToModuleMapping,
        BatchIndividualItems,
        NumpyToTensor,
    )
    from .add_columns_from_episodes_to_train_batch import (
        AddColumnsFromEpisodesToBatch,
        AddColumnsFromEpisodesToTrainBatch,
    )
    from .add_infos_from_episodes_to_train_batch import AddInfosFromEpisodesToTrainBatch
    from .add_next_observations_from_episodes_to_train_batch import AddNextObservationsFromEpisodesToTrainBatch
    from .add_one_ts_to_episodes_and_truncate import AddOneTsToEpisodesAndTruncate
    from .compute_returns_to_go import ComputeReturnsToGo
    from .frame_stacking import FrameStackingLearner
    from .general_advantage_estimation import GeneralAdvantageEstimation
    from .learner_connector_pipeline import LearnerConnectorPipeline, default_pipeline
    from .prev_actions_prev_rewards_learner import PrevActionsPrevRewardsLearner


__all__ = [
    "AddObservationsFromEpisodesToBatch",
    "AddStatesFromEpisodesToBatch",
    "AddTimeDimToBatchAndZeroPad",
    "AgentToModuleMapping",
    "BatchIndividualItems",
    "NumpyToTensor",
    "AddColumnsFromEpisodesToBatch",
    "AddColumnsFromEpisodesToTrainBatch",
    "AddInfosFromEpisodesToTrainBatch",
    "AddNextObservationsFromEpisodesToTrainBatch",
    "AddOneTsToEpisodesAndTruncate",
    "ComputeReturnsToGo",
    "FrameStackingLearner",
    "GeneralAdvantageEstimation",
    "LearnerConnectorPipeline",
    "PrevActionsPrevRewardsLearner",
    "default_pipeline",
]

__getattr__, __dir__ = lazy_exports(__name__)
