"""Generalized advantage estimation by its definition, one row after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from batches.stages import Record


@dataclass
class Rows:
    """The rows of all chunks, one chunk after the other, without padding.

    Attributes:
        at: position of each row in the flat batch.
        counts: rows of each chunk, the bootstrap row included.
        real: whether a row is a step.
    """

    at: Any
    counts: list[int]
    real: Any
    values: Any
    rewards: Any
    terminateds: Any
    truncateds: Any

    def fits(self, column: dict[Any, Any], expected: Any) -> bool:
        """Whether a column of the batch has the expected numbers in its rows, and zeros in between.

        RLlib computes with float32, in which an advantage is what is left of targets and values: 0.5 % of the largest.
        """
        (leaf,) = column.values()
        flat = np.ravel(np.asarray(leaf, np.float64))
        between = np.ones(len(flat), bool)
        between[self.at] = False
        scale = 5e-3 * max(1.0, np.abs(expected).max())
        return bool(np.allclose(flat[self.at], expected, rtol=0, atol=scale) and (flat[between] == 0).all())


def gae_rows(call: Any, record: Record) -> Rows:
    """What a finished batch gives the estimation to work with."""
    counts = [chunk.length + 1 for chunk in call.chunks]
    at: list[int] = []
    start = 0
    for count in counts:
        at += range(start, start + count)
        start += -(-count // call.max_seq_len) * call.max_seq_len if call.layout else count
    real = np.concatenate([np.arange(count) < count - 1 for count in counts])

    def column(name: str) -> Any:
        return np.ravel(np.asarray(record.final["default_policy", name], np.float64))[at]

    values = np.ravel(np.asarray(record.values, np.float64))[at]
    return Rows(np.array(at), counts, real, values, *map(column, ("rewards", "terminateds", "truncateds")))


def chunkwise(rows: Rows, ppo: tuple[float, float]) -> Any:
    """Advantages of each chunk by itself; its last row is the bootstrap's."""
    gamma, lambda_ = ppo
    out, start = np.zeros(len(rows.at)), 0
    for count in rows.counts:
        running = 0.0
        for t in range(start + count - 2, start - 1, -1):
            goes_on = 1 - rows.terminateds[t]
            error = rows.rewards[t] + gamma * goes_on * rows.values[t + 1] - rows.values[t]
            running = out[t] = error + gamma * lambda_ * running
        start += count
    return out


def running_on(rows: Rows, ppo: tuple[float, float]) -> Any:
    """Advantages of rows as if all were one episode, cut only where a flag says so."""
    gamma, lambda_ = ppo
    following = np.append(rows.values[1:], 0.0)
    out, running = np.zeros(len(rows.at)), 0.0
    for t in range(len(rows.at) - 1, -1, -1):
        goes_on = 1 - rows.terminateds[t]
        error = rows.rewards[t] + gamma * goes_on * following[t] - rows.values[t]
        running = out[t] = error + gamma * lambda_ * goes_on * (1 - rows.truncateds[t]) * running
    return out


def standardised(values: Any, rows: Any) -> Any:
    """Shifted and scaled by the mean and deviation of some rows."""
    some = values[rows.astype(bool)]
    return (values - some.mean()) / max(1e-4, some.std())
