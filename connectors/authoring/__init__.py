"""Shorter ways to write a piece: functions of columns, functions of episodes."""

from epibatch.core.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
