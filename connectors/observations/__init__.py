"""Pieces that change what observations are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epibatch.core.lazy import lazy_exports

if TYPE_CHECKING:
    from .affine import Affine
    from .clip import Clip
    from .flatten_axes import FlattenAxes
    from .frozen_module import FrozenModule
    from .goal_distance_rewards import GoalDistanceRewards
    from .step_columns import CountSteps, MarkFirstSteps
    from .time_max_pool import TimeMaxPool

__all__ = [
    "Affine",
    "Clip",
    "CountSteps",
    "FlattenAxes",
    "FrozenModule",
    "GoalDistanceRewards",
    "MarkFirstSteps",
    "TimeMaxPool",
]

__getattr__, __dir__ = lazy_exports(__name__)
