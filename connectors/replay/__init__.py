"""Pieces for steps that are drawn from episodes, by a replay buffer or from recorded data."""

from epibatch.core.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
