"""Ordered pieces that turn episodes into batches, and module outputs into actions."""

from epibatch.core.lazy import lazy_exports

RENAMED = {"Call": "ChunkGroup, in run(columns, group)", "ColumnarPiece": "Piece"}
__getattr__, __dir__ = lazy_exports(__name__, renamed=RENAMED)
