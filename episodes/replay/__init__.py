"""Replay buffers: the newest steps of episodes, to be drawn again."""

from epibatch.core.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
