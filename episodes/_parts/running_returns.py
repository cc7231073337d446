"""What running episodes have got so far, for all environments of a block at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from .._storage.block import Block
    from .._storage.chunk import Chunk

__all__ = ["running_returns"]


def running_returns(block: Block, chunks: Sequence[Chunk]) -> npt.NDArray[np.float64]:
    """Sum of the rewards of each environment's episode, from its start to the newest step.

    Args:
        block: The rows that are being recorded.
        chunks: One per environment, the newest of each.

    Returns:
        float64 [N]; NaN where that is not known.
    """
    returns = np.array([chunk.return_before for chunk in chunks], np.float64)
    starts = np.array([chunk.start if chunk.block is block else block.row for chunk in chunks], np.int64)
    if block.rewards.leaves and block.row:
        first = int(starts.min(initial=block.row))
        rows = block.rewards.leaves[0][first : block.row]
        if (starts == first).all():
            returns += rows.sum(0, dtype=np.float64)
        else:
            its_own = np.arange(first, block.row)[:, None] >= starts
            returns += np.where(its_own, rows, 0.0).sum(0)
    for env, chunk in enumerate(chunks):
        if chunk.block is not block and chunk.block.rewards.leaves:  # it ended with the block before
            returns[env] += chunk.block.rewards.leaves[0][chunk.start : chunk.end, chunk.env].sum(dtype=np.float64)
    return returns
