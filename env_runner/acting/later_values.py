"""Values of observations that are computed some steps later, together with those of other steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from epibatch.core.structs import flatten, map_struct

_ROWS_AT_ONCE = 1024
"""Rows from which on a call of a network costs as much as calls for parts of them."""


class LaterValues:
    """Values of the rows of batches, in the order in which these come.

    A module takes a few rows in about the time of many, so it is called when about 1,024 have come. Batches of other
    columns, types or sizes are not joined.

    Args:
        compute: Returns the values of a batch: float [rows].
    """

    def __init__(self, compute: Callable[[dict[str, Any]], torch.Tensor]) -> None:
        self._compute = compute
        self._waiting: list[dict[str, Any]] = []
        self._kind: Any = None  # of those that wait
        self._rows = 0
        self._values: list[torch.Tensor] = []

    def __bool__(self) -> bool:
        """Return True if there are any."""
        return bool(self._values or self._waiting)

    def add(self, batch: dict[str, Any], rows: int, joins: bool) -> None:
        """Let the values of a batch be computed.

        Args:
            batch: Tensors, which nothing may write to any more.
            rows: How many values it has.
            joins: True if each tensor has a row for each value; False: the batch is computed alone.
        """
        leaves, form = flatten(batch)
        kind = joins and (form, [(leaf.shape[1:], leaf.dtype) for leaf in leaves])
        if kind != self._kind or not joins:
            self._compute_waiting()
        self._waiting.append(batch)
        self._kind, self._rows = kind, self._rows + rows
        if self._rows >= _ROWS_AT_ONCE or not joins:
            self._compute_waiting()

    def add_known(self, values: torch.Tensor) -> None:
        """Add values that are known, float [rows]."""
        self._compute_waiting()
        self._values.append(values.clone())

    def _compute_waiting(self) -> None:
        if self._waiting:
            first, *others = self._waiting
            batch = map_struct(lambda *leaves: torch.cat(leaves), first, *others) if others else first
            self._values.append(self._compute(batch).clone())
            self._waiting, self._rows = [], 0

    def all(self) -> torch.Tensor:
        """Return the values of all rows: float [rows]."""
        self._compute_waiting()
        return torch.cat(self._values)


def has_rows(batch: dict[str, Any], rows: int) -> bool:
    """True if each tensor of a batch has this many rows."""
    return all(leaf.shape[:1] == (rows,) for leaf in flatten(batch)[0])
