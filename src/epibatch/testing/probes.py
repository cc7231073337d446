"""Pieces that look at a batch on its way, to stand beside the one that is checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from epibatch.connectors._engine.chunks import ChunkGroup
from epibatch.connectors._engine.columns import EpisodeColumn
from epibatch.connectors.columnar_piece import ColumnarPiece
from epibatch.core.struct_batches import convert_to_numpy
from epibatch.core.structs import flatten, map_struct

__all__ = ["Probe", "layout_of", "shown_columns"]


class Probe(ColumnarPiece):
    """Shows a function the batch, and hands it on.

    Args:
        look: called with the columns; what it returns, if anything, is the batch from then on.
    """

    reads: ClassVar[tuple[str, ...]] = ()

    def __init__(self, look: Callable[[dict[str, Any]], Any]) -> None:
        super().__init__()
        self.look = look

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Show the batch."""
        changed = self.look(columns)
        return columns if changed is None else changed


def layout_of(column: Any) -> str:
    """The layout of a column: "episodes", "arrays", "tensors", or "" for what is neither."""
    if isinstance(column, EpisodeColumn):
        return "episodes"
    leaves = flatten(column)[0] if not isinstance(column, list) else []
    if leaves and all(isinstance(leaf, np.ndarray) for leaf in leaves):
        return "arrays"
    return "tensors" if leaves and all(hasattr(leaf, "requires_grad") for leaf in leaves) else ""


def shown_columns(batch: dict[str, Any]) -> dict[str, tuple[str, Any]]:
    """Each column's layout, and a copy of what it holds."""
    return {str(name): (layout_of(column), _copied(column)) for name, column in batch.items()}


def _copied(column: Any) -> Any:
    data = column.data if isinstance(column, EpisodeColumn) else column
    if isinstance(data, list):
        return list(data)
    return map_struct(np.array, convert_to_numpy(data))
