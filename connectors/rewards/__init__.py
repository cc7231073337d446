"""Pieces that change rewards, or add up what comes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epibatch.core.lazy import lazy_exports

if TYPE_CHECKING:
    from .count_based_reward import CountBasedReward
    from .elementwise import BinarizeReward, RewardClipping, RewardScaling, RewardSign
    from .kl_reward import KLReward
    from .linearise_rewards import LineariseRewards
    from .normalize_reward import NormalizeReward
    from .reward_sum import RewardSum
    from .target_return import TargetReturn


__all__ = [
    "BinarizeReward",
    "CountBasedReward",
    "KLReward",
    "LineariseRewards",
    "NormalizeReward",
    "RewardClipping",
    "RewardScaling",
    "RewardSign",
    "RewardSum",
    "TargetReturn",
]

__getattr__, __dir__ = lazy_exports(__name__)
