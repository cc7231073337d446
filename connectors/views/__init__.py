"""Trajectory views: columns some steps away from each row, declared once for acting and training."""

from epibatch.core.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
