"""Stores hold rows of columns at numbered places: the interface between storage and all that reads it."""

from __future__ import annotations

from collections.abc import Callable, Collection
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
        order: Gives the rows at some places, offset included: function of int64 [R]; None: they are the places.
    """

    form: Form
    leaves: list[Leaf]
    offset: int = 0
    order: Callable[[Ints], Ints] | None = None

    def rows_at(self, places: Ints) -> Ints:
        """Return the rows of the arrays at some places: int64 [R]."""
        if self.order is not None:
            return self.order(places)
        return places + self.offset if self.offset else places


class Store(Protocol):
    """Rows of columns at numbered places."""

    @property
    def outputs(self) -> Collection[str]:
        """The names of the model outputs."""

    def stored(self, name: str) -> StoreColumn | None:
        """Return the column `obs`, `actions` or `rewards`, or a model output; None if there is none of that name."""
