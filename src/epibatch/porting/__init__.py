"""Moves files written for RLlib here: their imports are changed, and what is left to do is listed."""

from epibatch.core.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
