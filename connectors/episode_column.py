"""A per-episode column that is one array already."""

from __future__ import annotations

from typing import Any

import numpy as np

from epibatch.core.structs import flatten

__all__ = ["EpisodeColumn"]


class EpisodeColumn:
    """Rows of all chunks of a call, one chunk after the other.

    It stands for `{key: [items]}` of the plain layout without taking it apart.

    Args:
        data: Arrays of shape [sum of counts, ...] in the column's nesting, or a list of Python objects.
        counts: Rows of each chunk (int64, [number of chunks]); None: one row each.
        single: Whether a plain piece sees each row as an item of its own; otherwise it sees one
            item that holds all of a chunk's rows.
    """

    __slots__ = ("counts", "data", "single")

    def __init__(
        self,
        data: Any,
        counts: np.ndarray[Any, np.dtype[np.int64]] | None = None,
        *,
        single: bool = False,
    ) -> None:
        self.data = data
        self.counts = counts
        self.single = single or counts is None

    def __len__(self) -> int:
        return len(self.data if isinstance(self.data, list) else flatten(self.data)[0][0])

    def __repr__(self) -> str:
        if isinstance(self.data, list):
            return f"EpisodeColumn({len(self)} objects)"
        shapes = [(leaf.shape, str(leaf.dtype)) for leaf in flatten(self.data)[0]]
        return f"EpisodeColumn({shapes})"
