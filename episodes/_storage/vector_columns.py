"""Whole columns of many chunks out of one block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from epibatch.core.structs import Form, flatten_like

from ..infinite_lookback_buffer import NOTHING
from .arrays import Leaf, fits, leaf_from_rows, promoted
from .block import BlockColumn
from .chunk import Chunk

__all__ = ["ChunkFacts", "take", "with_tails"]


class ChunkFacts(NamedTuple):
    """What a block knows of chunks, one entry each.

    Args:
        envs: Index of the environment.
        starts: First row of the chunk itself.
        lengths: Number of steps.
        ends: Whether the episode was terminated, and truncated, at the chunk's end: bool, [2, chunks].
        tails: Positions of the chunks whose last observation lies outside the block.
    """

    envs: np.ndarray[Any, np.dtype[np.int64]]
    starts: np.ndarray[Any, np.dtype[np.int64]]
    lengths: np.ndarray[Any, np.dtype[np.int64]]
    ends: np.ndarray[Any, np.dtype[np.bool_]]
    tails: np.ndarray[Any, np.dtype[np.int64]]

    @classmethod
    def of(cls, chunks: Sequence[Chunk]) -> ChunkFacts:
        """The facts of these chunks."""
        rows = np.array([(c.env, c.start, c.end - c.start) for c in chunks], np.int64).reshape(-1, 3).T
        flags = np.array([(c.terminated, c.truncated, c.tail is not NOTHING) for c in chunks], np.bool_)
        flags = flags.reshape(-1, 3).T
        return cls(rows[0], rows[1], rows[2], flags[:2], np.flatnonzero(flags[2]))

    def positions(self, width: int, plus_one: bool, next_exists: bool) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Flat positions (row * width + env) of every chunk's steps.

        Args:
            width: Number of environments.
            plus_one: Add one row to each chunk.
            next_exists: Whether that is the row after the last step; otherwise it is the last step again.
        """
        counts = self.lengths + plus_one
        first = self.starts * width + self.envs
        ends = np.cumsum(counts)
        rows = np.arange(ends[-1] if len(ends) else 0, dtype=np.int64)
        rows *= width
        rows += np.repeat(first - (ends - counts) * width, counts)
        if plus_one and not next_exists:
            rows[ends - 1] -= width
        elif plus_one:
            rows[ends[self.tails] - 1] -= width
        return rows


def with_tails(leaves: list[Leaf], form: Form, chunks: Sequence[Chunk], facts: ChunkFacts) -> list[Leaf]:
    """Put observations that lie outside the block in their places.

    Args:
        leaves: One row more than steps for each chunk.
        form: Their nesting.
        chunks: Whose observations.
        facts: Of these chunks.

    Raises:
        ColumnError: such an observation is nested otherwise than the column.
    """
    if not len(facts.tails):
        return leaves
    at = (np.cumsum(facts.lengths + 1) - 1)[facts.tails]
    rows = [flatten_like(form, chunks[i].tail) for i in facts.tails]
    column = BlockColumn()
    for i, values in enumerate(zip(*rows)):
        leaf = leaves[i]
        typed = all(isinstance(value, (np.ndarray, np.generic)) for value in values)
        stacked = leaf_from_rows(values) if typed else None
        if stacked is not None and stacked.dtype.kind != "O" and leaf.dtype.kind != "O":
            leaf = promoted(leaf, len(leaf), fits(leaf, stacked, stacked.shape[1:]))
            if leaf.dtype.kind != "O":
                leaf[at] = stacked
                leaves[i] = leaf
                continue
            leaf = leaves[i]
        column.leaves = [leaf]
        for position, value in zip(at.tolist(), values):
            column.put_one(position, value)
        leaves[i] = column.leaves[0]
    return leaves


def take(leaf: Leaf, rows: np.ndarray[Any, np.dtype[np.int64]]) -> Leaf:
    """Copies of rows of a leaf of shape [T, N, ...] at flat positions."""
    flat = leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])
    return np.take(flat, rows, axis=0)
