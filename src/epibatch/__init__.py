"""Episodes into batches: connector pipelines, episodes, runners and learners for reinforcement learning.

Names load when they are first used, so `import epibatch` loads neither torch nor the parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epibatch.core.lazy import lazy_exports
from epibatch.core.version import __version__

if TYPE_CHECKING:
    from epibatch.algorithms.algorithm import Algorithm
    from epibatch.algorithms.policy import Policy
    from epibatch.algorithms.ppo import PPOConfig
    from epibatch.connectors import ConnectorPipelineV2, ConnectorV2
    from epibatch.core.columns import Columns
    from epibatch.core.registry import register
    from epibatch.episodes import SingleAgentEpisode, VectorEpisodes

__all__ = [
    "Algorithm",
    "Columns",
    "ConnectorPipelineV2",
    "ConnectorV2",
    "PPOConfig",
    "Policy",
    "SingleAgentEpisode",
    "VectorEpisodes",
    "__version__",
    "register",
]

__getattr__, __dir__ = lazy_exports(__name__)
