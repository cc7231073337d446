"""Makes episodes: vector environments, stepping, fragments."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .episode_metrics import EpisodeMetrics
    from .single_agent_env_runner import SingleAgentEnvRunner
    from .vector_env import make_vector_env

_MODULES = {
    "EpisodeMetrics": "episode_metrics",
    "SingleAgentEnvRunner": "single_agent_env_runner",
    "make_vector_env": "vector_env",
}

__all__ = ["EpisodeMetrics", "SingleAgentEnvRunner", "make_vector_env"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
