"""RLlib's classes, loaded at first use."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from epibatch.core.imports import import_extra

_PURPOSE = "exchanging episodes and pieces with RLlib"


class Library(NamedTuple):
    """The classes of RLlib that the conversion uses.

    Args:
        SingleAgentEpisode: Its episode.
        MultiAgentEpisode: Its episode of several agents.
        InfiniteLookbackBuffer: The buffer of a column of its episodes.
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
    """Load RLlib, and register our `MultiRLModule` with its pieces' isinstance checks.

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
    """Register our classes with RLlib's abstract classes of the same methods, as its pieces use isinstance."""
    from epibatch.core.rl_module.rl_module import MultiRLModule, RLModule, ValueFunctionAPI

    _load("core.rl_module.rl_module").RLModule.register(RLModule)
    _load("core.rl_module.multi_rl_module").MultiRLModule.register(MultiRLModule)
    _load("core.rl_module.apis.value_function_api").ValueFunctionAPI.register(ValueFunctionAPI)
