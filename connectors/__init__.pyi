# `make generated` writes the pieces that this package defines; other names are kept.

from ._engine.chunks import ChunkGroup as ChunkGroup
from ._engine.columns import EpisodeColumn as EpisodeColumn
from ._inspect.profile import (
    PieceCost as PieceCost,
    PipelineProfile as PipelineProfile,
    profile_pipelines as profile_pipelines,
)
from ._inspect.trace import PipelineTrace as PipelineTrace, TracedColumn as TracedColumn, TracedPiece as TracedPiece
from .actions.action_mask import ActionMask as ActionMask
from .actions.box_actions import ClipActions as ClipActions, RescaleActions as RescaleActions
from .actions.discretize_actions import DiscretizeActions as DiscretizeActions
from .actions.episode_noise import EpisodeNoise as EpisodeNoise
from .actions.epsilon_greedy import EpsilonGreedy as EpsilonGreedy
from .actions.project_discrete_actions import ProjectDiscreteActions as ProjectDiscreteActions
from .authoring.column_transform import Undo as Undo
from .columnar_piece import Piece as Piece
from .columns.batch_axes import BatchAxes as BatchAxes
from .columns.cast_columns import CastColumns as CastColumns
from .columns.check_finite import CheckFinite as CheckFinite
from .columns.hash_columns import HashColumns as HashColumns
from .columns.joined_columns import ConcatenateColumns as ConcatenateColumns, SplitColumn as SplitColumn
from .columns.named_columns import (
    DropColumns as DropColumns,
    RenameColumns as RenameColumns,
    SelectColumns as SelectColumns,
)
from .columns.remove_empty_parts import RemoveEmptyParts as RemoveEmptyParts
from .columns.shapes import (
    PermuteColumns as PermuteColumns,
    ReshapeColumns as ReshapeColumns,
    SqueezeColumns as SqueezeColumns,
    UnsqueezeColumns as UnsqueezeColumns,
)
from .common.add_observations_from_episodes_to_batch import (
    AddObservationsFromEpisodesToBatch as AddObservationsFromEpisodesToBatch,
)
from .common.add_other_agents_from_episodes_to_batch import (
    AddOtherAgentsFromEpisodesToBatch as AddOtherAgentsFromEpisodesToBatch,
)
from .common.add_states_from_episodes_to_batch import AddStatesFromEpisodesToBatch as AddStatesFromEpisodesToBatch
from .common.add_time_dim_to_batch_and_zero_pad import AddTimeDimToBatchAndZeroPad as AddTimeDimToBatchAndZeroPad
from .common.agent_to_module_mapping import AgentToModuleMapping as AgentToModuleMapping
from .common.batch_individual_items import BatchIndividualItems as BatchIndividualItems
from .common.flatten_observations import FlattenObservations as FlattenObservations
from .common.frame_stacking import FrameStacking as FrameStacking
from .common.numpy_to_tensor import NumpyToTensor as NumpyToTensor
from .common.stack_agents import StackAgents as StackAgents
from .common.tensor_to_numpy import TensorToNumpy as TensorToNumpy
from .connector_pipeline_v2 import ConnectorPipelineV2 as ConnectorPipelineV2
from .connector_v2 import ConnectorV2 as ConnectorV2
from .env_to_module.agent_indicator import AgentIndicator as AgentIndicator
from .env_to_module.mean_std_filter import MeanStdFilter as MeanStdFilter
from .env_to_module.pad_actions import PadActions as PadActions
from .env_to_module.pad_observations import PadObservations as PadObservations
from .env_to_module.prev_actions_prev_rewards import PrevActionsPrevRewards as PrevActionsPrevRewards
from .env_to_module.write_observations_to_episodes import WriteObservationsToEpisodes as WriteObservationsToEpisodes
from .images.crops import CenterCrop as CenterCrop, Crop as Crop
from .images.grayscale import Grayscale as Grayscale
from .images.random_crop import RandomCrop as RandomCrop
from .images.resize import Resize as Resize
from .images.to_chw_float import ToCHWFloat as ToCHWFloat
from .images.video_recorder import VideoRecorder as VideoRecorder
from .learner.add_columns_from_episodes_to_train_batch import (
    AddColumnsFromEpisodesToBatch as AddColumnsFromEpisodesToBatch,
    AddColumnsFromEpisodesToTrainBatch as AddColumnsFromEpisodesToTrainBatch,
)
from .learner.add_infos_from_episodes_to_train_batch import (
    AddInfosFromEpisodesToTrainBatch as AddInfosFromEpisodesToTrainBatch,
)
from .learner.add_next_observations_from_episodes_to_train_batch import (
    AddNextObservationsFromEpisodesToTrainBatch as AddNextObservationsFromEpisodesToTrainBatch,
)
from .learner.add_one_ts_to_episodes_and_truncate import AddOneTsToEpisodesAndTruncate as AddOneTsToEpisodesAndTruncate
from .learner.compute_returns_to_go import ComputeReturnsToGo as ComputeReturnsToGo
from .learner.general_advantage_estimation import GeneralAdvantageEstimation as GeneralAdvantageEstimation
from .learner.never_terminate import NeverTerminate as NeverTerminate
from .learner.prev_actions_prev_rewards_learner import PrevActionsPrevRewardsLearner as PrevActionsPrevRewardsLearner
from .learner.symmetric_augmentation import SymmetricAugmentation as SymmetricAugmentation
from .learner.vtrace import VTrace as VTrace
from .module_to_env.cut_padded_actions import CutPaddedActions as CutPaddedActions
from .module_to_env.get_actions import GetActions as GetActions
from .module_to_env.listify_data_for_vector_env import ListifyDataForVectorEnv as ListifyDataForVectorEnv
from .module_to_env.module_to_agent_unmapping import ModuleToAgentUnmapping as ModuleToAgentUnmapping
from .module_to_env.normalize_and_clip_actions import NormalizeAndClipActions as NormalizeAndClipActions
from .module_to_env.remove_single_ts_time_rank_from_batch import (
    RemoveSingleTsTimeRankFromBatch as RemoveSingleTsTimeRankFromBatch,
)
from .module_to_env.unbatch_to_individual_items import UnBatchToIndividualItems as UnBatchToIndividualItems
from .module_to_env.unstack_agents import UnstackAgents as UnstackAgents
from .observations.affine import Affine as Affine
from .observations.clip import Clip as Clip
from .observations.flatten_axes import FlattenAxes as FlattenAxes
from .observations.frozen_module import FrozenModule as FrozenModule
from .observations.goal_distance_rewards import GoalDistanceRewards as GoalDistanceRewards
from .observations.pad_ragged_rows import PadRaggedRows as PadRaggedRows
from .observations.step_columns import CountSteps as CountSteps, MarkFirstSteps as MarkFirstSteps
from .observations.time_max_pool import TimeMaxPool as TimeMaxPool
from .replay.hindsight_goals import HindsightGoals as HindsightGoals
from .replay.n_step_returns import NStepReturns as NStepReturns
from .rewards.count_based_reward import CountBasedReward as CountBasedReward
from .rewards.elementwise import (
    BinarizeReward as BinarizeReward,
    RewardClipping as RewardClipping,
    RewardScaling as RewardScaling,
    RewardSign as RewardSign,
)
from .rewards.kl_reward import KLReward as KLReward
from .rewards.linearise_rewards import LineariseRewards as LineariseRewards
from .rewards.normalize_reward import NormalizeReward as NormalizeReward
from .rewards.random_network_distillation import RandomNetworkDistillation as RandomNetworkDistillation
from .rewards.reward_sum import RewardSum as RewardSum
from .rewards.target_return import TargetReturn as TargetReturn
from .sequences.burn_in import BurnIn as BurnIn
from .sequences.jagged_sequences import JaggedSequences as JaggedSequences
from .sequences.pack_sequences import PackSequences as PackSequences
from .sequences.random_subsequences import RandomSubsequences as RandomSubsequences
from .tensor_step import TensorStep as TensorStep
from .views.trajectory_views import TrajectoryViews as TrajectoryViews
