"""What pieces are called in RLlib and in TorchRL."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["COUNTERPARTS", "Counterparts", "named_elsewhere"]


class Counterparts(NamedTuple):
    """Classes that do about the same as a piece.

    Args:
        rllib: In RLlib 2.60.
        torchrl: In TorchRL.
    """

    rllib: tuple[str, ...] = ()
    torchrl: tuple[str, ...] = ()


COUNTERPARTS: dict[str, Counterparts] = {
    "action_mask": Counterparts((), ("ActionMask",)),
    "add_columns_from_episodes_to_train_batch": Counterparts(("AddColumnsFromEpisodesToTrainBatch",), ()),
    "add_infos_from_episodes_to_train_batch": Counterparts(("AddInfosFromEpisodesToTrainBatch",), ()),
    "add_next_observations_from_episodes_to_train_batch": Counterparts(
        ("AddNextObservationsFromEpisodesToTrainBatch",), ()
    ),
    "add_observations_from_episodes_to_batch": Counterparts(("AddObservationsFromEpisodesToBatch",), ()),
    "add_one_ts_to_episodes_and_truncate": Counterparts(("AddOneTsToEpisodesAndTruncate",), ()),
    "add_states_from_episodes_to_batch": Counterparts(
        ("AddStatesFromEpisodesToBatch",),
        (
            "TensorDictPrimer",
            "InitTracker",
        ),
    ),
    "add_time_dim_to_batch_and_zero_pad": Counterparts(("AddTimeDimToBatchAndZeroPad",), ()),
    "affine": Counterparts((), ("ObservationNorm",)),
    "agent_to_module_mapping": Counterparts(("AgentToModuleMapping",), ()),
    "batch_individual_items": Counterparts(("BatchIndividualItems",), ()),
    "binarize_reward": Counterparts((), ("BinarizeReward",)),
    "burn_in": Counterparts((), ("BurnInTransform",)),
    "cast_columns": Counterparts(
        (),
        (
            "DTypeCastTransform",
            "DoubleToFloat",
        ),
    ),
    "center_crop": Counterparts((), ("CenterCrop",)),
    "check_finite": Counterparts((), ("FiniteTensorDictCheck",)),
    "clip": Counterparts((), ("ClipTransform",)),
    "clip_actions": Counterparts((), ("ClipTransform",)),
    "compute_returns_to_go": Counterparts(("ComputeReturnsToGo",), ("Reward2GoTransform",)),
    "concatenate_columns": Counterparts((), ("CatTensors",)),
    "count_steps": Counterparts((), ("StepCounter",)),
    "crop": Counterparts((), ("Crop",)),
    "discretize_actions": Counterparts((), ("ActionDiscretizer",)),
    "drop_columns": Counterparts((), ("ExcludeTransform",)),
    "episode_noise": Counterparts((), ("gSDENoise",)),
    "flatten_axes": Counterparts((), ("FlattenObservation",)),
    "flatten_observations": Counterparts(
        ("FlattenObservations",),
        (
            "FlattenObservation",
            "CatTensors",
        ),
    ),
    "frame_stacking": Counterparts(("FrameStacking",), ("CatFrames",)),
    "frozen_module": Counterparts(
        (),
        (
            "R3MTransform",
            "VC1Transform",
            "VIPTransform",
        ),
    ),
    "general_advantage_estimation": Counterparts(("GeneralAdvantageEstimation",), ()),
    "get_actions": Counterparts(("GetActions",), ()),
    "goal_distance_rewards": Counterparts((), ("VIPRewardTransform",)),
    "grayscale": Counterparts((), ("GrayScale",)),
    "hash_columns": Counterparts((), ("Hash",)),
    "kl_reward": Counterparts((), ("KLRewardTransform",)),
    "linearise_rewards": Counterparts((), ("LineariseRewards",)),
    "listify_data_for_vector_env": Counterparts(("ListifyDataForVectorEnv",), ()),
    "mark_first_steps": Counterparts((), ("InitTracker",)),
    "mean_std_filter": Counterparts(
        ("MeanStdFilter",),
        (
            "VecNorm",
            "VecNormV2",
            "ObservationNorm",
        ),
    ),
    "module_to_agent_unmapping": Counterparts(("ModuleToAgentUnmapping",), ()),
    "normalize_and_clip_actions": Counterparts(("NormalizeAndClipActions",), ()),
    "normalize_reward": Counterparts(
        (),
        (
            "RewardScaling",
            "VecNorm",
            "VecNormV2",
        ),
    ),
    "numpy_to_tensor": Counterparts(("NumpyToTensor",), ("DeviceCastTransform",)),
    "pad_actions": Counterparts((), ("ActionMask",)),
    "permute_columns": Counterparts((), ("PermuteTransform",)),
    "prev_actions_prev_rewards": Counterparts(("PrevActionsPrevRewards",), ()),
    "project_discrete_actions": Counterparts((), ("DiscreteActionProjection",)),
    "random_subsequences": Counterparts((), ("RandomCropTensorDict",)),
    "remove_empty_parts": Counterparts((), ("RemoveEmptySpecs",)),
    "remove_single_ts_time_rank_from_batch": Counterparts(("RemoveSingleTsTimeRankFromBatch",), ()),
    "rename_columns": Counterparts((), ("RenameTransform",)),
    "reshape_columns": Counterparts((), ("BatchSizeTransform",)),
    "resize": Counterparts((), ("Resize",)),
    "reward_clipping": Counterparts((), ("RewardClipping",)),
    "reward_scaling": Counterparts((), ("RewardScaling",)),
    "reward_sign": Counterparts((), ("SignTransform",)),
    "reward_sum": Counterparts((), ("RewardSum",)),
    "select_columns": Counterparts((), ("SelectTransform",)),
    "squeeze_columns": Counterparts((), ("SqueezeTransform",)),
    "stack_agents": Counterparts((), ("Stack",)),
    "target_return": Counterparts((), ("TargetReturn",)),
    "tensor_to_numpy": Counterparts(("TensorToNumpy",), ("DeviceCastTransform",)),
    "time_max_pool": Counterparts((), ("TimeMaxPool",)),
    "to_chw_float": Counterparts((), ("ToTensorImage",)),
    "unbatch_to_individual_items": Counterparts(("UnBatchToIndividualItems",), ()),
    "undo": Counterparts((), ("Transform",)),
    "unsqueeze_columns": Counterparts((), ("UnsqueezeTransform",)),
    "unstack_agents": Counterparts((), ("Stack",)),
    "write_observations_to_episodes": Counterparts(("WriteObservationsToEpisodes",), ()),
}
"""Registered name of a piece -> its counterparts."""


def named_elsewhere(name: str) -> tuple[str, list[str]]:
    """The pieces that a class of another library is here.

    Args:
        name: Of the class, in any case.

    Returns:
        A sentence that says so, and the pieces' registered names; ("", []) for a name that neither library has.

    Example:
        >>> named_elsewhere("CatFrames")
        ("TorchRL's CatFrames is frame_stacking here", ['frame_stacking'])
    """
    for library, place in (("RLlib", 0), ("TorchRL", 1)):
        found = {
            piece: own for piece, all_ in COUNTERPARTS.items() for own in all_[place] if own.lower() == name.lower()
        }
        if found:
            spelled = next(iter(found.values()))
            return f"{library}'s {spelled} is {' or '.join(found)} here", list(found)
    return "", []
