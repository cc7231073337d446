"""Advantages of flat arrays, and minibatches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from benchmarks.columns import Array
from benchmarks.floors.learner import discounted_sums


def errors(rewards: Array, values: Array, terminateds: Array, ends: Array, bootstraps: Array, gamma: float) -> Array:
    """One-step errors: what came, plus the discounted value of what follows, minus the value."""
    following = np.empty_like(values)
    following[:-1] = values[1:]
    following[ends - 1] = bootstraps
    following[terminateds] = 0.0
    following *= np.float32(gamma)
    following += rewards
    following -= values
    return following


def advantages_in_blocks(columns: Mapping[str, Any], gamma: float, lambda_: float) -> Array:
    """NumPy alone; see `discounted_sums`."""
    ends = np.cumsum(columns["counts"])
    return discounted_sums(_errors(columns, ends, gamma), columns["counts"].tolist(), gamma * lambda_)


def advantages_by_filter(columns: Mapping[str, Any], gamma: float, lambda_: float) -> Array:
    """scipy's recursive filter over everything at once; what it carries over a segment's end is taken off again."""
    from scipy.signal import lfilter

    counts, factor = columns["counts"], gamma * lambda_
    ends = np.cumsum(counts)
    given = _errors(columns, ends, gamma).astype(np.float64)
    sums = lfilter([1.0], [1.0, -factor], given[::-1])[::-1]
    carried = np.append(sums, 0.0)[ends]
    distance = np.repeat(ends, counts) - np.arange(len(sums))
    return (sums - np.repeat(carried, counts) * factor**distance).astype(np.float32)


def _errors(columns: Mapping[str, Any], ends: Array, gamma: float) -> Array:
    return errors(columns["rewards"], columns["values"], columns["terminateds"], ends, columns["bootstraps"], gamma)


def minibatches(batch: Mapping[str, torch.Tensor], size: int, epochs: int, seed: int) -> Iterator[dict[str, Any]]:
    """Every column shuffled once, then slices of it, the same in every epoch."""
    rows = len(next(iter(batch.values())))
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed)).numpy()
    shuffled = {name: torch.from_numpy(own.numpy().take(order, axis=0)) for name, own in batch.items()}
    for _ in range(epochs):
        for start in range(0, rows, size):
            yield {name: own[start : start + size] for name, own in shuffled.items()}
