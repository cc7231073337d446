"""Lays the module-to-env batch out for a vector environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from epibatch.core.errors import ColumnError, explain
from epibatch.core.structs import map_struct

from ..call import Call
from ..columnar_piece import ColumnarPiece
from ..episode_column import EpisodeColumn

if TYPE_CHECKING:
    from ..agent_batch import AgentBatch
    from ..agent_call import AgentCall

__all__ = ["ListifyDataForVectorEnv"]


def _row(data: Any, i: int) -> Any:
    return data[i] if isinstance(data, list) else map_struct(lambda leaf: leaf[i], data)


class ListifyDataForVectorEnv(ColumnarPiece):
    """Makes each column an array (or nested arrays) with the environment axis first.

    Row i belongs to episode i. Columns of Python objects become lists. For episodes of several agents
    each column is a list with one `{agent: value}` per episode.

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

    def run_modules(self, batch: AgentBatch, call: AgentCall) -> AgentBatch:
        """Lay out all columns by episode and agent."""
        modules = super().run_modules(batch, call).groups
        rows = dict.fromkeys(modules, 0)
        places = []  # of every chunk: its module, and its row there
        for chunk in call.chunks:
            if chunk.key[2] in rows:
                places.append((chunk.owner, chunk.key[1], chunk.key[2], rows[chunk.key[2]]))
                rows[chunk.key[2]] += 1
        laid_out: dict[Any, list[dict[Any, Any]]] = {}
        for name in dict.fromkeys(name for columns in modules.values() for name in columns):
            by_episode = laid_out[name] = [{} for _ in call.episodes]
            for owner, agent_id, module_id, row in places:
                if name in modules[module_id]:
                    by_episode[owner][agent_id] = _row(modules[module_id][name], row)
        batch.groups, batch.loose = {}, {**laid_out, **batch.loose}
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
