"""Makes episodes: vector environments, stepping, fragments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epibatch.core.lazy import lazy_exports

if TYPE_CHECKING:
    from .env_runner import EnvRunner
    from .episode_metrics import EpisodeMetrics
    from .multi_agent_env import MultiAgentEnv, make_multi_agent
    from .multi_agent_env_runner import MultiAgentEnvRunner
    from .multi_agent_makers import make_vector_multi_agent_env
    from .pettingzoo_env import ParallelPettingZooEnv, PettingZooEnv
    from .reset_wrappers import EpisodicLife, NoopStarts
    from .single_agent_env_runner import SingleAgentEnvRunner
    from .step_wrappers import ActionChunks, FrameSkip
    from .vector_env import make_vector_env
    from .vector_multi_agent_env import VectorMultiAgentEnv


__all__ = [
    "ActionChunks",
    "EnvRunner",
    "EpisodeMetrics",
    "EpisodicLife",
    "FrameSkip",
    "MultiAgentEnv",
    "MultiAgentEnvRunner",
    "NoopStarts",
    "ParallelPettingZooEnv",
    "PettingZooEnv",
    "SingleAgentEnvRunner",
    "VectorMultiAgentEnv",
    "make_multi_agent",
    "make_vector_env",
    "make_vector_multi_agent_env",
]

__getattr__, __dir__ = lazy_exports(__name__)
