"""RLlib's classes, loaded when they are first asked for."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from epibatch.core.extras import import_extra

__all__ = ["Library", "rllib"]

_PURPOSE = "exchanging episodes and pieces with RLlib"


class Library(NamedTuple):
    """The classes of RLlib that are exchanged with.

    Args:
        SingleAgentEpisode: Its episode.
        MultiAgentEpisode: Its episode of several agents.
        InfiniteLookbackBuffer: The buffer behind a column of its episodes.
        ConnectorV2: Its piece.
        BatchedNdArray: Its tag of arrays that hold several rows.
    """

    SingleAgentEpisode: Any
    MultiAgentEpisode: Any
    InfiniteLookbackBuffer: Any
    ConnectorV2: Any
    BatchedNdArray: Any


@lru_cache(maxsize=1)
def rllib() -> Library:
    """Load RLlib; from then on its pieces take our modules of modules for such.

    Raises:
        MissingExtraError: RLlib is not installed; the message has the command.
    """
    found = Library(
        _load("env.single_agent_episode").SingleAgentEpisode,
        _load("env.multi_agent_episode").MultiAgentEpisode,
        _load("env.utils.infinite_lookback_buffer").InfiniteLookbackBuffer,
        _load("connectors.connector_v2").ConnectorV2,
        _load("utils.spaces.space_utils").BatchedNdArray,
    )
    _introduce_modules()
    return found


def _load(name: str) -> Any:
    return import_extra(f"ray.rllib.{name}", "rllib", _PURPOSE)


def _introduce_modules() -> None:
    """Tell RLlib's abstract classes of ours that have the same methods: its pieces ask with isinstance."""
    from epibatch.core.rl_module.rl_module import MultiRLModule, RLModule
    from epibatch.core.rl_module.value_function_api import ValueFunctionAPI

    _load("core.rl_module.rl_module").RLModule.register(RLModule)
    _load("core.rl_module.multi_rl_module").MultiRLModule.register(MultiRLModule)
    _load("core.rl_module.apis.value_function_api").ValueFunctionAPI.register(ValueFunctionAPI)
