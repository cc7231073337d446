"""Lays the module-to-env batch out for a vector environment."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError
from epibatch.core.structs import map_struct

from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from ..columnar_piece import Piece

__all__ = ["EnvRows", "ListifyDataForVectorEnv"]


class EnvRows(dict[Any, Any]):
    """A nested column: a dict of arrays with the environment axis first, or by an index the values of one environment.

    Examples:
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


class ListifyDataForVectorEnv(Piece):
    """Makes each column an array (or nested arrays) with the environment axis first.

    Row i belongs to episode i: `column[i]` is the value for environment i, of a nested column such as `state_out` too
    (see `EnvRows`). The actions of Dict and Tuple spaces are plain dicts and tuples of arrays, as is a state that is
    a tuple: of these `column[i]` is the i-th array, so let a module give its state as a dict. Columns of Python objects
    become lists. For episodes of several agents each column is a list with one `{agent: value}` per episode.

    Counterparts: RLlib's `ListifyDataForVectorEnv`.

    Raises:
        ColumnError: a column without exactly one item per episode.
    """

    pipelines: ClassVar[tuple[str, ...]] = ("module_to_env",)
    input_layouts: ClassVar[tuple[str, ...]] = ("episodes",)
    output_layout: ClassVar[str] = "arrays"

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Lay out all columns."""
        for name, column in columns.items():
            if isinstance(column, EpisodeColumn):
                if column.counts is not None and bool((column.counts != 1).any()):
                    self._refuse(name, column, group)
                data = column.data
                columns[name] = EnvRows(data) if isinstance(data, dict) and name not in _ACTIONS else data
        return columns

    run_tensors = Piece.leave_tensors

    def _refuse(self, name: str, column: EpisodeColumn, group: ChunkGroup) -> None:
        counts = np.asarray(column.counts)
        chunk = int(np.flatnonzero(counts != 1)[0])
        raise ColumnError(
            f"column {name!r}, {group.describe(chunk)}",
            expected="exactly 1 item",
            found=f"{counts[chunk]}",
            do="let each piece add one item per episode",
        )
