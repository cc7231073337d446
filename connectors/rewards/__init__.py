"""Pieces that change rewards, or add up what comes of them."""

from epibatch.core.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
