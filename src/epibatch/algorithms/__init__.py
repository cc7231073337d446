"""Config builders and the Algorithm that ties runner and learner together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epibatch.core.lazy import lazy_exports

if TYPE_CHECKING:
    from .agent_mapping import AgentMapping
    from .algorithm import Algorithm
    from .algorithm_config import AlgorithmConfig
    from .loggers import Logger
    from .multi_agent_policy import MultiAgentPolicy, MultiAgentPolicyState
    from .policy import Policy, PolicyState
    from .policy_spec import PolicySpec
    from .ppo import PPO, PPOConfig
    from .run_folder import RunFolder
    from .training_run import TrainingRun

__all__ = [
    "PPO",
    "AgentMapping",
    "Algorithm",
    "AlgorithmConfig",
    "Logger",
    "MultiAgentPolicy",
    "MultiAgentPolicyState",
    "PPOConfig",
    "Policy",
    "PolicySpec",
    "PolicyState",
    "RunFolder",
    "TrainingRun",
]

__getattr__, __dir__ = lazy_exports(__name__)
