"""Config builders and the Algorithm that ties runner and learner together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epibatch.core.lazy import lazy_exports

if TYPE_CHECKING:
    from .algorithm import Algorithm
    from .algorithm_config import AlgorithmConfig
    from .loggers import Logger
    from .policy import Policy, PolicyState
    from .ppo import PPO, PPOConfig
    from .run_folder import RunFolder
    from .training_run import TrainingRun

__all__ = [
    "PPO",
    "Algorithm",
    "AlgorithmConfig",
    "Logger",
    "PPOConfig",
    "Policy",
    "PolicyState",
    "RunFolder",
    "TrainingRun",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Algorithm": ".algorithm",
        "AlgorithmConfig": ".algorithm_config",
        "Logger": ".loggers",
        "PPO": ".ppo",
        "PPOConfig": ".ppo",
        "Policy": ".policy",
        "PolicyState": ".policy",
        "RunFolder": ".run_folder",
        "TrainingRun": ".training_run",
    },
)
