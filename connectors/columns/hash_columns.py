"""A column that tells rows apart."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError
from epibatch.core.struct_batches import sorted_leaves

from .._engine.chunks import ChunkGroup
from ..authoring.column_paths import paths_from
from ..authoring.parameters import ParameterPiece
from ..columnar_piece import ColumnarPiece
from .hashed_rows import hashed_rows
from .open_columns import OpenColumns, in_tree

__all__ = ["HashColumns"]


class HashColumns(ParameterPiece, ColumnarPiece):
    """Adds a 64-bit number per row that is the same for equal rows of some columns: for counts, tables, caches.

    It is the same in every process and on every run. Of nested columns all parts count, dicts by sorted key. It is
    made of bytes, so columns to compare have to be of one type: 1 is not 1.0. What the batch does not have yet is taken
    from the episodes, and not left in the batch.

    Counterparts: TorchRL's `Hash`.

    Args:
        input_observation_space: Space of one observation.
        input_action_space: Space of one action.
        columns: Name of the column, or names, of numbers or strings.
        to: Name of the new column, int64.

    Raises:
        ColumnError: rows of something else, or a column of that name.

    Example:
        >>> from epibatch.connectors.learner import BatchIndividualItems, LearnerConnectorPipeline
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> rows = {"observations": [3, 5, 3, 4], "actions": [0, 0, 0], "rewards": [0.0, 0.0, 0.0]}
        >>> episode = SingleAgentEpisode(**rows, len_lookback_buffer=0)
        >>> pipeline = LearnerConnectorPipeline(connectors=[HashColumns(columns="obs"), BatchIndividualItems()])
        >>> first, second, third = pipeline(episodes=[episode])["hash"]
        >>> bool(first == third), bool(first == second)
        (True, False)
    """

    pipelines: ClassVar[tuple[str, ...]] = ("env_to_module", "learner")
    takes: ClassVar[tuple[str, ...]] = ("episodes", "arrays")
    columns: Any = Columns.OBS
    to: str = "hash"

    def __post_init__(self) -> None:
        """Take the names apart."""
        self._paths = paths_from("HashColumns", self.columns)

    @property
    def writes(self) -> tuple[str, ...]:  # type: ignore[override]
        """The new column."""
        return (self.to,)

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Add the column."""
        if not len(group.episodes):
            return columns
        if self.to in columns:
            raise ColumnError(
                "HashColumns.to",
                expected="a new name",
                found=f"{self.to!r}, which the batch has already",
                do="choose another name",
            )
        opened = OpenColumns(columns, group, self._paths, "HashColumns", pull=True)
        opened.check_rows()
        leaves = [leaf for path in self._paths for leaf in sorted_leaves(in_tree(path).part(opened.tree))]
        shape = np.shape(leaves[0])[: opened.leading]
        rows = [np.asarray(leaf).reshape(math.prod(shape), *np.shape(leaf)[opened.leading :]) for leaf in leaves]
        return opened.batch_with({**opened.tree, self.to: hashed_rows(rows, "HashColumns").reshape(shape)})
