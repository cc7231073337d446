"""Config builders and the Algorithm that ties runner and learner together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epibatch.core.lazy import lazy_exports

if TYPE_CHECKING:
    from .algorithm import Algorithm
    from .algorithm_config import AlgorithmConfig
    from .policy import Policy, PolicyState
    from .ppo import PPO, PPOConfig

__all__ = ["PPO", "Algorithm", "AlgorithmConfig", "PPOConfig", "Policy", "PolicyState"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Algorithm": ".algorithm",
        "AlgorithmConfig": ".algorithm_config",
        "PPO": ".ppo",
        "PPOConfig": ".ppo",
        "Policy": ".policy",
        "PolicyState": ".policy",
    },
)
