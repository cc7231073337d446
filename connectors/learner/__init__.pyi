# `make generated` writes the pieces that this package defines; other names are kept.

from ..common import (
    AddObservationsFromEpisodesToBatch as AddObservationsFromEpisodesToBatch,
    AddStatesFromEpisodesToBatch as AddStatesFromEpisodesToBatch,
    AddTimeDimToBatchAndZeroPad as AddTimeDimToBatchAndZeroPad,
    AgentToModuleMapping as AgentToModuleMapping,
    BatchIndividualItems as BatchIndividualItems,
    NumpyToTensor as NumpyToTensor,
)
from .add_columns_from_episodes_to_train_batch import (
    AddColumnsFromEpisodesToBatch as AddColumnsFromEpisodesToBatch,
    AddColumnsFromEpisodesToTrainBatch as AddColumnsFromEpisodesToTrainBatch,
)
from .add_infos_from_episodes_to_train_batch import AddInfosFromEpisodesToTrainBatch as AddInfosFromEpisodesToTrainBatch
from .add_next_observations_from_episodes_to_train_batch import (
    AddNextObservationsFromEpisodesToTrainBatch as AddNextObservationsFromEpisodesToTrainBatch,
)
from .add_one_ts_to_episodes_and_truncate import AddOneTsToEpisodesAndTruncate as AddOneTsToEpisodesAndTruncate
from .compute_returns_to_go import ComputeReturnsToGo as ComputeReturnsToGo
from .frame_stacking import FrameStackingLearner as FrameStackingLearner
from .general_advantage_estimation import GeneralAdvantageEstimation as GeneralAdvantageEstimation
from .learner_connector_pipeline import (
    LearnerConnectorPipeline as LearnerConnectorPipeline,
    default_pipeline as default_pipeline,
)
from .never_terminate import NeverTerminate as NeverTerminate
from .prev_actions_prev_rewards_learner import PrevActionsPrevRewardsLearner as PrevActionsPrevRewardsLearner
from .symmetric_augmentation import SymmetricAugmentation as SymmetricAugmentation
from .vtrace import VTrace as VTrace
