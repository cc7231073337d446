"""What the episodes of a call have got so far."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from epibatch.core.errors import LookbackError

from .._engine.chunks import ChunkGroup

__all__ = ["returns_before", "returns_so_far"]

Floats = npt.NDArray[np.float64]


def returns_before(group: ChunkGroup, piece: str) -> Floats:
    """What each chunk's episode got before the chunk: float64 [chunks].

    Raises:
        LookbackError: a chunk does not know it.
    """
    return _known(group.reader.returns_before(), group, piece)


def returns_so_far(group: ChunkGroup, piece: str) -> Floats:
    """What each running episode has got up to its newest observation: float64 [chunks].

    Raises:
        ColumnError: whoever acts did not say what a reward was.
        LookbackError: a chunk does not know what came before it.
    """
    return _known(group.reader.returns_so_far(), group, piece)


def _known(returns: Floats, group: ChunkGroup, piece: str) -> Floats:
    unknown = np.flatnonzero(np.isnan(returns))
    if len(unknown):
        chunk = int(unknown[0])
        started, lookback = group.reader.starts[chunk], group.reader.lookbacks[chunk]
        raise LookbackError(
            f"{piece}, {group.describe(chunk)} that starts at t={started}",
            expected="a chunk that knows what its episode got before",
            found=f"one made of data, with a lookback of {lookback} steps",
            do="make chunks with episode.cut(), or give them a lookback back to the episode's start",
        )
    return returns
