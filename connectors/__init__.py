"""Ordered pieces that turn episodes into batches, and module outputs into actions."""

from epibatch.core.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, renamed={"Call": "ChunkGroup, in run(columns, group)"})
