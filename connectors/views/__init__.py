"""Trajectory views: columns some steps away from each row, declared once for acting and training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epibatch.core.lazy import lazy_exports

if TYPE_CHECKING:
    from .declared_views import add_view
    from .trajectory_views import TrajectoryViews
    from .view import View

__all__ = ["TrajectoryViews", "View", "add_view"]

__getattr__, __dir__ = lazy_exports(__name__)
