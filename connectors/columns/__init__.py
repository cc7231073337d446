"""Pieces that rename, choose, join or check columns, whatever they hold."""

from epibatch.core.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
