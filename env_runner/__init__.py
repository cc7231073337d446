"""Makes episodes: vector environments, stepping, fragments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epibatch.core.lazy import lazy_exports

if TYPE_CHECKING:
    from .episode_metrics import EpisodeMetrics
    from .single_agent_env_runner import SingleAgentEnvRunner
    from .vector_env import make_vector_env


__all__ = ["EpisodeMetrics", "SingleAgentEnvRunner", "make_vector_env"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "EpisodeMetrics": ".episode_metrics",
        "SingleAgentEnvRunner": ".single_agent_env_runner",
        "make_vector_env": ".vector_env",
    },
)
