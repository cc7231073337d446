"""Takes the time axis out of a recurrent module's outputs."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, error_context
from epibatch.core.rl_module.module_facts import state_layout
from epibatch.core.structs import flatten_like, map_struct

from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from ..columnar_piece import Piece
from ..tensor_step import TensorStep

__all__ = ["RemoveSingleTsTimeRankFromBatch"]


class RemoveSingleTsTimeRankFromBatch(Piece):
    """Drops the time axis of length 1 that the env-to-module side added; `state_out` has none.

    Counterparts: RLlib's `RemoveSingleTsTimeRankFromBatch`.

    Raises:
        ColumnError: the time axis of a column is missing or longer, or there is no new state.
    """

    pipelines: ClassVar[tuple[str, ...]] = ("module_to_env",)
    input_layouts: ClassVar[tuple[str, ...]] = ("episodes",)

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Squeeze all columns, if a time axis was added."""
        if not self._has_time_axis(columns, group):
            return columns
        if Columns.STATE_OUT not in columns:
            raise _without_state(group.rl_module, columns)
        self._check_state(columns[Columns.STATE_OUT], group)
        for name, column in columns.items():
            if name == Columns.STATE_OUT or not isinstance(column, EpisodeColumn):
                continue
            data = column.data
            if type(data) is np.ndarray:
                column.data = _squeezed(name, data)
            elif not isinstance(data, list):
                column.data = map_struct(partial(_squeezed, name), data)
        return columns

    def run_tensors(self, columns: dict[str, Any], step: TensorStep) -> dict[str, Any]:
        """Squeeze all columns but the state, if the module has one."""
        if step.state_in is None:
            return columns
        if Columns.STATE_OUT not in columns:
            raise _without_state(step.group.rl_module, columns)
        return {
            name: column if name == Columns.STATE_OUT else map_struct(partial(_squeezed, name), column)
            for name, column in columns.items()
        }

    def _check_state(self, column: Any, group: ChunkGroup) -> None:
        """Refuse a state of another shape than the initial one: with a time axis, say."""
        layout = state_layout(group.rl_module)
        where = f"column {Columns.STATE_OUT!r} of {type(group.rl_module).__name__}"
        with error_context(f"{where}, which is nested like get_initial_state():"):
            leaves = flatten_like(layout.form, column.data)
        if [leaf.shape[1:] for leaf in leaves] == list(layout.shapes):
            return
        layout = state_layout(group.rl_module, anew=True)  # the module's state may have grown since
        for shape, leaf in zip(layout.shapes, leaves):
            if leaf.shape[1:] != shape:
                raise ColumnError(
                    where,
                    expected=f"shape [rows, {', '.join(map(str, shape))}], like get_initial_state() has",
                    found=f"shape {list(leaf.shape)}",
                    do="return the state after the last step, without a time axis",
                )

    def _has_time_axis(self, batch: dict[str, Any], group: ChunkGroup) -> bool:
        """True if the outputs have a time axis, as the env-to-module call noted or as their shapes show."""
        added = group.shared_data.get("_added_single_ts_time_rank")
        if added is None:
            inputs = batch.get(Columns.ACTION_DIST_INPUTS)
            return isinstance(inputs, EpisodeColumn) and np.ndim(inputs.data) > 2 and group.stateful
        return bool(added) and (not group.several or group.stateful)  # another module of the batch may have one


def _without_state(module: Any, columns: dict[str, Any]) -> ColumnError:
    return ColumnError(
        f"outputs of {type(module).__name__}, which is recurrent",
        expected=f"a column {Columns.STATE_OUT!r}, nested like get_initial_state()",
        found=f"columns {sorted(columns)}",
        do="return the new state as Columns.STATE_OUT from the module's _forward",
    )


def _squeezed(name: str, leaf: Any) -> Any:
    if leaf.ndim < 2 or leaf.shape[1] != 1:
        raise ColumnError(
            f"column {name!r}",
            expected="shape [rows, 1, ...], with the time axis of the observations",
            found=f"shape {list(leaf.shape)}",
            do="keep the time axis in the recurrent module's outputs (state_out alone has none)",
        )
    return leaf[:, 0]
