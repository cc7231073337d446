"""Pieces that record a batch before or after the checked piece."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from epibatch.connectors._engine.chunks import ChunkGroup
from epibatch.connectors._engine.columns import EpisodeColumn
from epibatch.connectors.columnar_piece import ColumnarPiece
from epibatch.core.structs import convert_to_numpy, flatten, map_struct

__all__ = ["Probe", "layout_of", "shown_columns"]


class Probe(ColumnarPiece):
    """Calls a function with the batch, and passes the batch on.

    Args:
        look: called with the columns; its result, if any, replaces the batch.
    """

    reads: ClassVar[tuple[str, ...]] = ()

    def __init__(self, look: Callable[[dict[str, Any]], Any]) -> None:
        super().__init__()
        self.look = look

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Call the function with the batch."""
        changed = self.look(columns)
        return columns if changed is None else changed


def layout_of(column: Any) -> str:
    """Return the layout of a column: "episodes", "arrays", "tensors", or "" for anything else."""
    if isinstance(column, EpisodeColumn):
        return "episodes"
    leaves = flatten(column)[0] if not isinstance(column, list) else []
    if leaves and all(isinstance(leaf, np.ndarray) for leaf in leaves):
        return "arrays"
    return "tensors" if leaves and all(hasattr(leaf, "requires_grad") for leaf in leaves) else ""


def shown_columns(batch: dict[str, Any]) -> dict[str, tuple[str, Any]]:
    """Return each column's layout, and a copy of its content."""
    return {str(name): (layout_of(column), _copied(column)) for name, column in batch.items()}


def _copied(column: Any) -> Any:
    data = column.data if isinstance(column, EpisodeColumn) else column
    if isinstance(data, list):
        return list(data)
    return map_struct(np.array, convert_to_numpy(data))
