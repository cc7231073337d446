"""Lays the module-to-env batch out for a vector environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError
from epibatch.core.structs import flatten, map_struct

from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from ..columnar_piece import ColumnarPiece

if TYPE_CHECKING:
    from .._engine.call import PipelineCall
    from .._engine.columns import Batch
    from .._engine.grouping import AgentRows

__all__ = ["EnvRows", "ListifyDataForVectorEnv"]


class EnvRows(dict[Any, Any]):
    """A nested column: a dict of arrays with the environment axis first, or by an index the values of one environment.

    Example:
        >>> column = EnvRows(h=np.array([[0.0], [1.0]]), c=np.array([[2.0], [3.0]]))
        >>> column["h"].shape
        (2, 1)
        >>> column[1]
        {'h': array([1.]), 'c': array([3.])}
    """

    def __missing__(self, key: Any) -> Any:
        if isinstance(key, (int, np.integer)):
            return map_struct(lambda leaf: leaf[key], self)
        raise KeyError(key)


_ACTIONS = (Columns.ACTIONS, Columns.ACTIONS_FOR_ENV)


def _rows(data: Any) -> Any:
    """The rows of a column, one by one."""
    if isinstance(data, (list, np.ndarray)):
        return data
    return (map_struct(lambda leaf, i=i: leaf[i], data) for i in range(len(flatten(data)[0][0])))


class _Order:
    """The rows of some modules in the order of episodes and agents.

    Args:
        parts: Whose rows each module's are.
        episodes: Number of episodes.
    """

    def __init__(self, parts: Sequence[AgentRows], episodes: int) -> None:
        places = [place for own in parts for place in own.places]
        self._back = sorted(range(len(places)), key=places.__getitem__)
        agents, owners = ([value for own in parts for value in getattr(own, name)] for name in ("agents", "owners"))
        self._agents = [agents[i] for i in self._back]
        ends = np.cumsum(np.bincount(np.array(owners, np.int64), minlength=episodes)).tolist()
        self._spans = list(zip([0, *ends], ends))

    def by_episode(self, columns: Sequence[Any]) -> list[dict[Any, Any]]:
        """Each episode's `{agent: value}`, from one column per module."""
        ordered, agents = self._ordered(columns), self._agents
        return [dict(zip(agents[start:stop], ordered[start:stop])) for start, stop in self._spans]

    def _ordered(self, columns: Sequence[Any]) -> list[Any]:
        arrays = set(map(type, columns)) == {np.ndarray} and columns[0].dtype != object
        if arrays and len({(column.dtype, column.shape[1:]) for column in columns}) == 1:
            return list(np.concatenate(columns)[self._back])
        rows = [row for column in columns for row in _rows(column)]
        return [rows[i] for i in self._back]


class ListifyDataForVectorEnv(ColumnarPiece):
    """Makes each column an array (or nested arrays) with the environment axis first.

    Row i belongs to episode i: `column[i]` is the value for environment i, of a nested column such as `state_out` too
    (see `EnvRows`). The actions of Dict and Tuple spaces are plain dicts and tuples of arrays, as is a state that is
    a tuple: of these `column[i]` is the i-th array, so let a module give its state as a dict. Columns of Python objects
    become lists. For episodes of several agents each column is a list with one `{agent: value}` per episode.

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

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Lay out all columns."""
        for name, column in columns.items():
            if isinstance(column, EpisodeColumn):
                if column.counts is not None and bool((column.counts != 1).any()):
                    self._refuse(name, column, group)
                data = column.data
                columns[name] = EnvRows(data) if isinstance(data, dict) and name not in _ACTIONS else data
        return columns

    def run_all(self, batch: Batch, call: PipelineCall) -> Batch:
        """Lay out all columns; of several agents by episode and agent."""
        modules = super().run_all(batch, call).groups
        if not call.several:
            return batch
        rows = call.agent_rows
        laid_out: dict[Any, list[dict[Any, Any]]] = {}
        whole: dict[tuple[Any, ...], _Order] = {}
        done: dict[tuple[int, ...], list[dict[Any, Any]]] = {}
        for name in dict.fromkeys([name for columns in modules.values() for name in columns]):
            having = tuple([module_id for module_id, columns in modules.items() if name in columns])
            if having not in whole:
                whole[having] = _Order([rows[module_id] for module_id in having], len(call.episodes))
            columns = [modules[module_id][name] for module_id in having]
            same = tuple(map(id, columns))  # actions that need no change for the environment are one array twice
            if same in done:
                laid_out[name] = list(map(dict, done[same]))
            else:
                laid_out[name] = done[same] = whole[having].by_episode(columns)
        batch.groups, batch.loose = {}, {**laid_out, **batch.loose}
        return batch

    def _refuse(self, name: str, column: EpisodeColumn, group: ChunkGroup) -> None:
        counts = np.asarray(column.counts)
        chunk = int(np.flatnonzero(counts != 1)[0])
        raise ColumnError(
            f"column {name!r}, {group.describe(chunk)}",
            expected="exactly 1 item",
            found=f"{counts[chunk]}",
            do="let each piece add one item per episode",
        )
