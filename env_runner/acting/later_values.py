"""Values of observations that are computed some steps later, together with those of other steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from epibatch.core.structs import map_struct

_ROWS_AT_ONCE = 1024
"""Rows from which on a call of a network costs as much as calls for parts of them."""


class LaterValues:
    """Values of the rows of batches, in the order in which these come.

    A module takes a few rows in about the time of many, so it is called when about 1,024 have come.

    Args:
        compute: Returns the values of a batch: float [rows].
    """

    def __init__(self, compute: Callable[[dict[str, Any]], torch.Tensor]) -> None:
        self._compute = compute
        self._waiting: list[dict[str, Any]] = []
        self._rows = 0
        self._values: list[torch.Tensor] = []

    def add(self, batch: dict[str, Any], rows: int) -> None:
        """Let the values of a batch be computed, of which nothing may write to the tensors any more."""
        self._waiting.append(batch)
        self._rows += rows
        if self._rows >= _ROWS_AT_ONCE:
            self._compute_waiting()

    def add_known(self, values: torch.Tensor) -> None:
        """Add values that are known, float [rows]; all or none have to be."""
        self._values.append(values.clone())

    def _compute_waiting(self) -> None:
        first, *others = self._waiting
        batch = map_struct(lambda *leaves: torch.cat(leaves), first, *others) if others else first
        self.add_known(self._compute(batch))
        self._waiting, self._rows = [], 0

    def all(self) -> torch.Tensor:
        """Return the values of all rows: float [rows]."""
        if self._waiting:
            self._compute_waiting()
        return torch.cat(self._values)
