"""Lays the module-to-env batch out for a vector environment."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from epibatch.core.errors import ColumnError, explain

from ..call import Call
from ..columnar_piece import ColumnarPiece
from ..episode_column import EpisodeColumn

__all__ = ["ListifyDataForVectorEnv"]


class ListifyDataForVectorEnv(ColumnarPiece):
    """Makes each column an array (or nested arrays) with the environment axis first.

    Row i belongs to episode i. Columns of Python objects become lists.

    Args:
        input_observation_space: Space of one observation.
        input_action_space: Space of one action.

    Raises:
        ColumnError: a column without exactly one item per episode.
    """

    pipelines: ClassVar[tuple[str, ...]] = ("module_to_env",)
    takes: ClassVar[tuple[str, ...]] = ("episodes",)
    reads: ClassVar[tuple[str, ...]] = ()
    gives: ClassVar[str] = "arrays"

    def run(self, batch: dict[str, Any], call: Call) -> dict[str, Any]:
        """Lay out all columns."""
        for name, column in batch.items():
            if isinstance(column, EpisodeColumn):
                if column.counts is not None and bool((column.counts != 1).any()):
                    self._refuse(name, column, call)
                batch[name] = column.data
        return batch

    def _refuse(self, name: str, column: EpisodeColumn, call: Call) -> None:
        counts = np.asarray(column.counts)
        chunk = int(np.flatnonzero(counts != 1)[0])
        raise ColumnError(
            explain(
                f"column {name!r}, {call.describe(chunk)}",
                expected="exactly 1 item",
                found=f"{counts[chunk]}",
                do="let each piece add one item per episode",
            )
        )
