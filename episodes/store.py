"""Stores hold rows of columns at numbered places: the interface between storage and all that reads it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from epibatch.core.structs import Form

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Leaf = npt.NDArray[Any]


class StoreColumn(NamedTuple):
    """A column of a store.

    Args:
        form: Nesting of its rows.
        leaves: Its arrays, of shape [rows, ...] each; none as long as nothing shows what a row is like.
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
