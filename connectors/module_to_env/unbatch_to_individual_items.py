"""Gives each episode its row of the module's outputs."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from epibatch.core.errors import ColumnError
from epibatch.core.structs import flatten, map_struct

from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from ..columnar_piece import Piece

__all__ = ["UnBatchToIndividualItems"]


class UnBatchToIndividualItems(Piece):
    """Turns batched arrays into per-episode columns; row i belongs to episode i.

    Counterparts: RLlib's `UnBatchToIndividualItems`.

    Raises:
        ColumnError: a column without one row per episode.
    """

    pipelines: ClassVar[tuple[str, ...]] = ("module_to_env",)
    input_layouts: ClassVar[tuple[str, ...]] = ("arrays",)
    output_layout: ClassVar[str] = "episodes"

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Unbatch all columns, rows of agents that ended since they observed left out."""
        if (acting := group.call.still_acting.get(group.module_id)) is not None:
            columns = {name: _kept(name, column, acting) for name, column in columns.items()}
        expected = len(group.episodes)
        for name, column in columns.items():
            found = len(column) if type(column) is np.ndarray and column.ndim else _rows(column)
            if found != expected:
                raise _wrong_rows(name, column, expected)
            columns[name] = EpisodeColumn(column)
        return columns

    run_tensors = Piece.leave_tensors


def _kept(name: str, column: Any, acting: Any) -> Any:
    if _rows(column) != len(acting):
        raise _wrong_rows(name, column, len(acting))
    if isinstance(column, list):
        return [item for item, acts in zip(column, acting) if acts]
    return map_struct(lambda leaf: leaf[acting], column)


def _wrong_rows(name: str, column: Any, expected: int) -> ColumnError:
    found = _rows(column)
    return ColumnError(
        f"column {name!r}",
        expected=f"{expected} rows, one per episode",
        found=f"{found}" if found >= 0 else "a single value, or parts of different lengths",
        do="let the module return one row per observation it was given",
    )


def _rows(column: Any) -> int:
    if isinstance(column, list):
        return len(column)
    lengths = set(map(_length, flatten(column)[0]))
    return lengths.pop() if len(lengths) == 1 else -1


def _length(leaf: Any) -> int:
    return len(leaf) if (leaf.ndim if type(leaf) is np.ndarray else np.ndim(leaf)) else -1
