"""Means over the minibatches of one module's update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from epibatch.core.columns import Columns

__all__ = ["UpdateMetrics"]


class UpdateMetrics:
    """Collects the minibatches' metrics, weighted by their valid rows, and the last epoch's value predictions."""

    def __init__(self) -> None:
        self._first_of_epoch = 0
        self._epochs = 0
        self._num_rows = 0
        self._values: list[Mapping[str, float]] = []
        self._weights: list[int] = []
        self._predictions: list[torch.Tensor] = []
        self._targets: list[torch.Tensor] = []

    def begin_epoch(self) -> None:
        """Begin the next epoch of minibatches."""
        self._first_of_epoch = len(self._values)
        self._epochs += 1
        self._predictions.clear()
        self._targets.clear()

    def add(self, values: Mapping[str, float], minibatch: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
        """Add one minibatch's metrics, value predictions and targets."""
        mask = minibatch.get(Columns.LOSS_MASK)
        recurrent = mask is not None and mask.ndim > 1
        self._values.append(values)
        self._weights.append(int(mask.sum()) if mask is not None and recurrent else _num_rows(minibatch))
        self._num_rows += self._weights[-1] if self._epochs == 1 else 0  # later epochs may end early
        if Columns.VF_PREDS in outputs and Columns.VALUE_TARGETS in minibatch:
            predictions, targets = outputs[Columns.VF_PREDS].detach(), minibatch[Columns.VALUE_TARGETS]
            self._predictions.append(predictions[mask] if recurrent else predictions)
            self._targets.append(targets[mask] if recurrent else targets)

    def last_epoch(self) -> dict[str, float]:
        """Return means over the last epoch."""
        return self._means(self._first_of_epoch)

    def result(self) -> dict[str, float]:
        """Return means over the whole update, with `explained_variance`, `num_rows` and `num_minibatches`."""
        means = self._means(0)
        if self._targets:
            means["explained_variance"] = _explained_variance(torch.cat(self._predictions), torch.cat(self._targets))
        means["num_rows"] = self._num_rows
        means["num_minibatches"] = len(self._values)
        return means

    def _means(self, start: int) -> dict[str, float]:
        total = sum(self._weights[start:])
        pairs = list(zip(self._values[start:], self._weights[start:]))
        return {name: sum(values[name] * weight for values, weight in pairs) / total for name in self._values[start]}


def _explained_variance(predictions: torch.Tensor, targets: torch.Tensor) -> float:
    """Return the share of the targets' variance that the predictions explain; 0 if the targets do not vary."""
    variance = float(targets.double().var(correction=0))
    if variance == 0.0:
        return 0.0
    return 1.0 - float((targets.double() - predictions.double()).var(correction=0)) / variance


def _num_rows(minibatch: Mapping[str, Any]) -> int:
    for column in minibatch.values():
        if isinstance(column, torch.Tensor):
            return len(column)
    return 1
