# `make generated` writes the pieces that this package defines; other names are kept.

from .count_based_reward import CountBasedReward as CountBasedReward
from .elementwise import (
    BinarizeReward as BinarizeReward,
    RewardClipping as RewardClipping,
    RewardScaling as RewardScaling,
    RewardSign as RewardSign,
)
from .kl_reward import KLReward as KLReward
from .linearise_rewards import LineariseRewards as LineariseRewards
from .normalize_reward import NormalizeReward as NormalizeReward
from .random_network_distillation import RandomNetworkDistillation as RandomNetworkDistillation
from .reward_sum import RewardSum as RewardSum
from .target_return import TargetReturn as TargetReturn
