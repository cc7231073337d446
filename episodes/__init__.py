"""What happened: episodes and the column storage behind them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .infinite_lookback_buffer import InfiniteLookbackBuffer
    from .infos_buffer import InfosBuffer
    from .multi_agent_episode import MultiAgentEpisode
    from .single_agent_episode import SingleAgentEpisode
    from .vector_episodes import VectorEpisodes
    from .vector_recorder import VectorRecorder

_MODULES = {
    "InfiniteLookbackBuffer": "infinite_lookback_buffer",
    "InfosBuffer": "infos_buffer",
    "MultiAgentEpisode": "multi_agent_episode",
    "SingleAgentEpisode": "single_agent_episode",
    "VectorEpisodes": "vector_episodes",
    "VectorRecorder": "vector_recorder",
}

__all__ = [
    "InfiniteLookbackBuffer",
    "InfosBuffer",
    "MultiAgentEpisode",
    "SingleAgentEpisode",
    "VectorEpisodes",
    "VectorRecorder",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
