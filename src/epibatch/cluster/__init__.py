"""Processes on Ray: connecting, groups of actors, and what other processes must be told."""

from epibatch.core.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
