"""Eats batches: minibatches, losses, advantages and the learner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epibatch.core.lazy import lazy_exports

if TYPE_CHECKING:
    from .learner import Learner
    from .loss import Loss, LossFunction
    from .minibatches import Minibatches
    from .multi_agent_settings import MultiAgentSettings
    from .ppo_loss import PPOLoss, PPOSettings
    from .settings import LearnerSettings
    from .unread_columns import ColumnUse, trace_columns


__all__ = [
    "ColumnUse",
    "Learner",
    "LearnerSettings",
    "Loss",
    "LossFunction",
    "Minibatches",
    "MultiAgentSettings",
    "PPOLoss",
    "PPOSettings",
    "trace_columns",
]

__getattr__, __dir__ = lazy_exports(__name__)
