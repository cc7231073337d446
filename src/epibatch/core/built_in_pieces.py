"""The pieces that come with epibatch: registered name and where the class is; nothing is imported to list them."""

from __future__ import annotations

__all__ = ["ALIASES", "BUILT_IN_PIECES"]

_ACTIONS = "epibatch.connectors.actions"
_AUTHORING = "epibatch.connectors.authoring"
_COLUMNS = "epibatch.connectors.columns"
_COMMON = "epibatch.connectors.common"
_LEARNER = "epibatch.connectors.learner"
_REWARDS = "epibatch.connectors.rewards"
_SEQUENCES = "epibatch.connectors.sequences"
_OBSERVATIONS = "epibatch.connectors.observations"
_IMAGES = "epibatch.connectors.images"
_TO_ENV = "epibatch.connectors.module_to_env"
_TO_MODULE = "epibatch.connectors.env_to_module"

BUILT_IN_PIECES: dict[str, str] = {
    "action_mask": f"{_ACTIONS}.action_mask:ActionMask",
    "add_columns_from_episodes_to_train_batch": (
        f"{_LEARNER}.add_columns_from_episodes_to_train_batch:AddColumnsFromEpisodesToTrainBatch"
    ),
    "add_infos_from_episodes_to_train_batch": (
        f"{_LEARNER}.add_infos_from_episodes_to_train_batch:AddInfosFromEpisodesToTrainBatch"
    ),
    "add_next_observations_from_episodes_to_train_batch": (
        f"{_LEARNER}.add_next_observations_from_episodes_to_train_batch:AddNextObservationsFromEpisodesToTrainBatch"
    ),
    "add_observations_from_episodes_to_batch": (
        f"{_COMMON}.add_observations_from_episodes_to_batch:AddObservationsFromEpisodesToBatch"
    ),
    "add_one_ts_to_episodes_and_truncate": (
        f"{_LEARNER}.add_one_ts_to_episodes_and_truncate:AddOneTsToEpisodesAndTruncate"
    ),
    "add_other_agents_from_episodes_to_batch": (
        f"{_COMMON}.add_other_agents_from_episodes_to_batch:AddOtherAgentsFromEpisodesToBatch"
    ),
    "add_states_from_episodes_to_batch": f"{_COMMON}.add_states_from_episodes_to_batch:AddStatesFromEpisodesToBatch",
    "add_time_dim_to_batch_and_zero_pad": f"{_COMMON}.add_time_dim_to_batch_and_zero_pad:AddTimeDimToBatchAndZeroPad",
    "affine": f"{_OBSERVATIONS}.affine:Affine",
    "agent_indicator": f"{_TO_MODULE}.agent_indicator:AgentIndicator",
    "agent_to_module_mapping": f"{_COMMON}.agent_to_module_mapping:AgentToModuleMapping",
    "batch_individual_items": f"{_COMMON}.batch_individual_items:BatchIndividualItems",
    "binarize_reward": f"{_REWARDS}.elementwise:BinarizeReward",
    "burn_in": f"{_SEQUENCES}.burn_in:BurnIn",
    "cast_columns": f"{_COLUMNS}.cast_columns:CastColumns",
    "center_crop": f"{_IMAGES}.crops:CenterCrop",
    "check_finite": f"{_COLUMNS}.check_finite:CheckFinite",
    "clip": f"{_OBSERVATIONS}.clip:Clip",
    "clip_actions": f"{_ACTIONS}.box_actions:ClipActions",
    "compute_returns_to_go": f"{_LEARNER}.compute_returns_to_go:ComputeReturnsToGo",
    "concatenate_columns": f"{_COLUMNS}.joined_columns:ConcatenateColumns",
    "count_based_reward": f"{_REWARDS}.count_based_reward:CountBasedReward",
    "count_steps": f"{_OBSERVATIONS}.step_columns:CountSteps",
    "crop": f"{_IMAGES}.crops:Crop",
    "cut_padded_actions": f"{_TO_ENV}.cut_padded_actions:CutPaddedActions",
    "discretize_actions": f"{_ACTIONS}.discretize_actions:DiscretizeActions",
    "drop_columns": f"{_COLUMNS}.named_columns:DropColumns",
    "episode_noise": f"{_ACTIONS}.episode_noise:EpisodeNoise",
    "flatten_axes": f"{_OBSERVATIONS}.flatten_axes:FlattenAxes",
    "flatten_observations": f"{_COMMON}.flatten_observations:FlattenObservations",
    "frame_stacking": f"{_COMMON}.frame_stacking:FrameStacking",
    "frozen_module": f"{_OBSERVATIONS}.frozen_module:FrozenModule",
    "general_advantage_estimation": f"{_LEARNER}.general_advantage_estimation:GeneralAdvantageEstimation",
    "get_actions": f"{_TO_ENV}.get_actions:GetActions",
    "goal_distance_rewards": f"{_OBSERVATIONS}.goal_distance_rewards:GoalDistanceRewards",
    "grayscale": f"{_IMAGES}.grayscale:Grayscale",
    "hash_columns": f"{_COLUMNS}.hash_columns:HashColumns",
    "jagged_sequences": f"{_SEQUENCES}.jagged_sequences:JaggedSequences",
    "kl_reward": f"{_REWARDS}.kl_reward:KLReward",
    "linearise_rewards": f"{_REWARDS}.linearise_rewards:LineariseRewards",
    "listify_data_for_vector_env": f"{_TO_ENV}.listify_data_for_vector_env:ListifyDataForVectorEnv",
    "mark_first_steps": f"{_OBSERVATIONS}.step_columns:MarkFirstSteps",
    "mean_std_filter": f"{_TO_MODULE}.mean_std_filter:MeanStdFilter",
    "module_to_agent_unmapping": f"{_TO_ENV}.module_to_agent_unmapping:ModuleToAgentUnmapping",
    "normalize_and_clip_actions": f"{_TO_ENV}.normalize_and_clip_actions:NormalizeAndClipActions",
    "normalize_reward": f"{_REWARDS}.normalize_reward:NormalizeReward",
    "numpy_to_tensor": f"{_COMMON}.numpy_to_tensor:NumpyToTensor",
    "pack_sequences": f"{_SEQUENCES}.pack_sequences:PackSequences",
    "pad_actions": f"{_TO_MODULE}.pad_actions:PadActions",
    "pad_observations": f"{_TO_MODULE}.pad_observations:PadObservations",
    "permute_columns": f"{_COLUMNS}.shapes:PermuteColumns",
    "prev_actions_prev_rewards": f"{_TO_MODULE}.prev_actions_prev_rewards:PrevActionsPrevRewards",
    "prev_actions_prev_rewards_learner": f"{_LEARNER}.prev_actions_prev_rewards_learner:PrevActionsPrevRewardsLearner",
    "project_discrete_actions": f"{_ACTIONS}.project_discrete_actions:ProjectDiscreteActions",
    "random_crop": f"{_IMAGES}.random_crop:RandomCrop",
    "random_subsequences": f"{_SEQUENCES}.random_subsequences:RandomSubsequences",
    "remove_empty_parts": f"{_COLUMNS}.remove_empty_parts:RemoveEmptyParts",
    "remove_single_ts_time_rank_from_batch": (
        f"{_TO_ENV}.remove_single_ts_time_rank_from_batch:RemoveSingleTsTimeRankFromBatch"
    ),
    "rename_columns": f"{_COLUMNS}.named_columns:RenameColumns",
    "rescale_actions": f"{_ACTIONS}.box_actions:RescaleActions",
    "reshape_columns": f"{_COLUMNS}.shapes:ReshapeColumns",
    "resize": f"{_IMAGES}.resize:Resize",
    "reward_clipping": f"{_REWARDS}.elementwise:RewardClipping",
    "reward_scaling": f"{_REWARDS}.elementwise:RewardScaling",
    "reward_sign": f"{_REWARDS}.elementwise:RewardSign",
    "reward_sum": f"{_REWARDS}.reward_sum:RewardSum",
    "select_columns": f"{_COLUMNS}.named_columns:SelectColumns",
    "split_column": f"{_COLUMNS}.joined_columns:SplitColumn",
    "squeeze_columns": f"{_COLUMNS}.shapes:SqueezeColumns",
    "stack_agents": f"{_COMMON}.stack_agents:StackAgents",
    "target_return": f"{_REWARDS}.target_return:TargetReturn",
    "tensor_to_numpy": f"{_COMMON}.tensor_to_numpy:TensorToNumpy",
    "time_max_pool": f"{_OBSERVATIONS}.time_max_pool:TimeMaxPool",
    "to_chw_float": f"{_IMAGES}.to_chw_float:ToCHWFloat",
    "trajectory_views": "epibatch.connectors.views.trajectory_views:TrajectoryViews",
    "unbatch_to_individual_items": f"{_TO_ENV}.unbatch_to_individual_items:UnBatchToIndividualItems",
    "undo": f"{_AUTHORING}.column_transform:Undo",
    "unsqueeze_columns": f"{_COLUMNS}.shapes:UnsqueezeColumns",
    "unstack_agents": f"{_TO_ENV}.unstack_agents:UnstackAgents",
    "write_observations_to_episodes": f"{_TO_MODULE}.write_observations_to_episodes:WriteObservationsToEpisodes",
}
"""Registered name -> `module path:Class` of every piece that comes with epibatch."""

ALIASES: dict[str, str] = {"add_columns_from_episodes_to_batch": "add_columns_from_episodes_to_train_batch"}
"""A second name of a built-in piece -> its registered name."""
