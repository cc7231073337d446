"""Recorded data: episodes in folders and other formats, read where they lie."""

from epibatch.core.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
