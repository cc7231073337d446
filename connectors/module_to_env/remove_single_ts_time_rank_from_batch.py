"""Takes the time axis out of a recurrent module's outputs."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, explain
from epibatch.core.structs import map_struct

from ..call import Call
from ..columnar_piece import ColumnarPiece
from ..episode_column import EpisodeColumn

__all__ = ["RemoveSingleTsTimeRankFromBatch"]


class RemoveSingleTsTimeRankFromBatch(ColumnarPiece):
    """Drops the time axis of length 1 that the env-to-module side added; `state_out` has none.

    Args:
        input_observation_space: Space of one observation.
        input_action_space: Space of one action.

    Raises:
        ColumnError: a column whose time axis is missing or longer.
    """

    takes: ClassVar[tuple[str, ...]] = ("episodes",)
    reads: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        input_observation_space: gym.Space[Any] | None = None,
        input_action_space: gym.Space[Any] | None = None,
    ) -> None:
        super().__init__(input_observation_space, input_action_space)

    def run(self, batch: dict[str, Any], call: Call) -> dict[str, Any]:
        """Squeeze all columns, if a time axis was added."""
        if not call.shared_data.get("_added_single_ts_time_rank"):
            return batch
        for name, column in batch.items():
            if name != Columns.STATE_OUT and isinstance(column, EpisodeColumn) and not isinstance(column.data, list):
                column.data = map_struct(partial(_squeezed, name), column.data)
        return batch


def _squeezed(name: str, leaf: np.ndarray[Any, Any]) -> Any:
    if leaf.ndim < 2 or leaf.shape[1] != 1:
        raise ColumnError(
            explain(
                f"column {name!r}",
                expected="shape [rows, 1, ...], with the time axis of the observations",
                found=f"shape {list(leaf.shape)}",
                do="keep the time axis in the recurrent module's outputs (state_out alone has none)",
            )
        )
    return leaf[:, 0]
