"""Stores hold rows of columns at numbered places: the interface between storage and all that reads it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from epibatch.core.columns import Columns
from epibatch.core.structs import Form

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Leaf = npt.NDArray[Any]
"""Rows of a column; those of a store may be a tensor."""


class StoreColumn(NamedTuple):
    """A column of a store.

    Args:
        form: Nesting of its rows.
        leaves: Its arrays or tensors, of shape [rows, ...] each; none as long as nothing shows what a row is like.
        offset: The row at place 0.
    """

    form: Form
    leaves: list[Leaf]
    offset: int = 0

    def rows_at(self, places: Ints) -> Ints:
        """Return the rows of the arrays at some places: int64 [R]."""
        return places + self.offset if self.offset else places


class Store(Protocol):
    """Rows of columns at numbered places.

    A store whose rows do not lie in the order of their places has a method `rows_at` too, that gives the rows of all
    its columns at some places: function of int64 [R].
    """

    @property
    def outputs(self) -> Collection[str]:
        """The names of the model outputs."""

    def stored(self, name: str) -> StoreColumn | None:
        """Return the column `obs`, `actions` or `rewards`, or a model output; None if there is none of that name."""


class Columnar:
    """Rows of columns, in the order in which they lie: a store.

    Args:
        columns: Nesting and leaves of each column.
    """

    def __init__(self, columns: Mapping[str, tuple[Form, list[Leaf]]]) -> None:
        self._columns = {name: StoreColumn(*column) for name, column in columns.items()}

    @property
    def outputs(self) -> Collection[str]:
        """The names of the model outputs."""
        return [name for name in self._columns if name not in (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)]

    def stored(self, name: str) -> StoreColumn | None:
        """Return a column; None if there is none of that name."""
        return self._columns.get(name)
