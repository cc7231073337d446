"""What happened: episodes and the column storage behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epibatch.core.lazy import lazy_exports

if TYPE_CHECKING:
    from ._storage.infos_buffer import InfosBuffer
    from .infinite_lookback_buffer import InfiniteLookbackBuffer
    from .multi_agent_episode import MultiAgentEpisode
    from .reader import EpisodeReader, reader_of
    from .single_agent_episode import SingleAgentEpisode
    from .vector_episodes import VectorEpisodes
    from .vector_recorder import VectorRecorder


__all__ = [
    "EpisodeReader",
    "InfiniteLookbackBuffer",
    "InfosBuffer",
    "MultiAgentEpisode",
    "SingleAgentEpisode",
    "VectorEpisodes",
    "VectorRecorder",
    "reader_of",
]

__getattr__, __dir__ = lazy_exports(__name__)
