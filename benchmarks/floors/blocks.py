"""A train batch from steps that lie side by side, [T, N, ...]."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.blocks import Block, chunks, sliced
from benchmarks.columns import TERMINATED, TRUNCATED
from benchmarks.floors.learner import TYPES, Batch, stateless


def by_slices(given: Block) -> Batch:
    """A concatenation of slices per column."""
    return stateless(sliced(given))


def by_index(given: Block) -> Batch:
    """One gather per column."""
    found = chunks(given)
    num_envs = given.obs.shape[1]
    lengths = np.array([own.stop - own.start for own in found])
    ends = np.cumsum(lengths)
    firsts = np.array([own.start * num_envs + own.env for own in found])
    within = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
    rows = np.repeat(firsts, lengths) + within * num_envs
    batch = {"obs": given.obs.reshape(-1, *given.obs.shape[2:]).take(rows, axis=0)}
    for name, kind in TYPES.items():
        column = given.steps[name]
        batch[name] = column.reshape(-1, *column.shape[2:]).take(rows, axis=0).astype(kind, copy=False)
    for name, end in (("terminateds", TERMINATED), ("truncateds", TRUNCATED)):
        batch[name] = np.zeros(int(ends[-1]), np.bool_)
        batch[name][ends[[own.end == end for own in found]] - 1] = True
    return {name: torch.from_numpy(column) for name, column in batch.items()}
