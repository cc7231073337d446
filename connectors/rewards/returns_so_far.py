"""What the episodes of a call have got so far."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from epibatch.core.errors import ColumnError, LookbackError

from ...episodes._parts.running_returns import running_returns
from .._engine.chunks import ChunkGroup

__all__ = ["returns_before", "returns_so_far"]

Floats = npt.NDArray[np.float64]


def returns_before(group: ChunkGroup, piece: str) -> Floats:
    """What each chunk's episode got before the chunk: float64 [chunks].

    Raises:
        LookbackError: a chunk does not know it.
    """
    vector = group.vector
    chunks: Any = group.episodes if vector is None else vector.chunks
    return _known(np.array([chunk.return_before for chunk in chunks], np.float64), group, piece)


def returns_so_far(group: ChunkGroup, piece: str) -> Floats:
    """What each running episode has got up to its newest observation: float64 [chunks].

    Raises:
        ColumnError: whoever acts did not say what a reward was.
        LookbackError: a chunk does not know what came before it.
    """
    recording = group.recording
    if recording is None:
        found = np.array([episode.return_before + episode.get_return() for episode in group.episodes], np.float64)
        return _known(found, group, piece)
    found = running_returns(recording.block, recording.chunks)
    if recording.block.unknown_rewards and np.isnan(found).any():
        raise ColumnError(
            piece,
            expected="every reward since the episode's start",
            found=f"one that nobody gave, in {group.describe(int(np.isnan(found).argmax()))}",
            do="policy.act(obs, state, reward=reward), with the reward of the step before",
        )
    return _known(found, group, piece)


def _known(returns: Floats, group: ChunkGroup, piece: str) -> Floats:
    unknown = np.flatnonzero(np.isnan(returns))
    if len(unknown):
        chunk = int(unknown[0])
        started, lookback = group.history(chunk)
        raise LookbackError(
            f"{piece}, {group.describe(chunk)} that starts at t={started}",
            expected="a chunk that knows what its episode got before",
            found=f"one made of data, with a lookback of {lookback} steps",
            do="make chunks with episode.cut(), or give them a lookback back to the episode's start",
        )
    return returns
