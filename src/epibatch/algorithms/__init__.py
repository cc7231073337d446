"""Config builders and the Algorithm that ties runner and learner together."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .algorithm import Algorithm
    from .algorithm_config import AlgorithmConfig
    from .ppo import PPO, PPOConfig

__all__ = ["PPO", "Algorithm", "AlgorithmConfig", "PPOConfig"]

_MODULES = {"Algorithm": ".algorithm", "AlgorithmConfig": ".algorithm_config", "PPO": ".ppo", "PPOConfig": ".ppo"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
