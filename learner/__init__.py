"""Eats batches: minibatches, losses, advantages and the learner."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .learner import Learner
    from .loss import Loss, LossFunction, NonFiniteLossError
    from .minibatches import Minibatches
    from .ppo_loss import PPOLoss, PPOSettings
    from .settings import LearnerSettings

_HOMES = {
    "Learner": "learner",
    "LearnerSettings": "settings",
    "Loss": "loss",
    "LossFunction": "loss",
    "Minibatches": "minibatches",
    "NonFiniteLossError": "loss",
    "PPOLoss": "ppo_loss",
    "PPOSettings": "ppo_loss",
}

__all__ = [
    "Learner",
    "LearnerSettings",
    "Loss",
    "LossFunction",
    "Minibatches",
    "NonFiniteLossError",
    "PPOLoss",
    "PPOSettings",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
