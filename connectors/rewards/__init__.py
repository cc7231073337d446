"""Pieces that change rewards, or add up what comes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epibatch.core.lazy import lazy_exports

if TYPE_CHECKING:
    from .elementwise import BinarizeReward, RewardClipping, RewardScaling, RewardSign
    from .linearise_rewards import LineariseRewards
    from .reward_sum import RewardSum
    from .target_return import TargetReturn


__all__ = [
    "BinarizeReward",
    "LineariseRewards",
    "RewardClipping",
    "RewardScaling",
    "RewardSign",
    "RewardSum",
    "TargetReturn",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "BinarizeReward": ".elementwise",
        "LineariseRewards": ".linearise_rewards",
        "RewardClipping": ".elementwise",
        "RewardScaling": ".elementwise",
        "RewardSign": ".elementwise",
        "RewardSum": ".reward_sum",
        "TargetReturn": ".target_return",
    },
)
