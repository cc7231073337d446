"""The episode's return up to each step."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from epibatch.core.advantages import discounted_sums
from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, LookbackError

from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from .._engine.gather import gather
from ..authoring.fields import ParameterPiece
from ..columnar_piece import LearnerPiece

Floats = npt.NDArray[np.float64]


def returns_before(group: ChunkGroup, piece: str) -> Floats:
    """Return the return of each episode before its chunk: float64 [chunks].

    Raises:
        LookbackError: a chunk does not know it.
    """
    return _known(group.reader.returns_before(), group, piece)


def returns_so_far(group: ChunkGroup, piece: str) -> Floats:
    """Return the return of each running episode up to its newest observation: float64 [chunks].

    Raises:
        ColumnError: the caller did not give a reward.
        LookbackError: the return before a chunk is not known.
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


class RewardSum(ParameterPiece, LearnerPiece):
    """Adds a column of running episode returns: the sum of all rewards from the episode's start up to each step's own.

    A chunk in the middle of an episode goes on from what the episode got before it, which chunks that were cut know
    whatever their lookback; at an episode's end the sum is its return. The rewards are the episodes', as they happened:
    what an earlier piece makes of them in the batch does not count. A bootstrap row repeats the last sum.

    Counterparts: TorchRL's `RewardSum`.

    Args:
        to: Name of the column, of the rewards' type if that is float.

    Raises:
        ColumnError: rewards that are no numbers.
        LookbackError: a chunk made of data that starts in the middle of an episode, and holds too little of it.

    Examples:
        >>> from epibatch.connectors.learner import BatchIndividualItems, LearnerConnectorPipeline
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> rows = {"observations": [0, 1, 2], "actions": [0, 0], "rewards": [1.0, 2.0]}
        >>> chunk = SingleAgentEpisode(**rows, len_lookback_buffer=0)
        >>> rest = chunk.cut()
        >>> rest.add_env_step(3, action=0, reward=4.0, terminated=True)
        >>> pipeline = LearnerConnectorPipeline(connectors=[RewardSum(), BatchIndividualItems()])
        >>> pipeline(episodes=[chunk, rest])["episode_return"]
        array([1., 3., 7.])
    """

    to: str = "episode_return"

    @property
    def writes(self) -> tuple[str, ...]:  # type: ignore[override]
        """The new column."""
        return (self.to,)

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Add the column."""
        rewards = np.asarray(gather(group, Columns.REWARDS, plus_one=group.plus_one, last=0.0))
        if rewards.ndim != 1 or rewards.dtype.kind not in "fiub":
            raise ColumnError(
                "RewardSum",
                expected="one number per step as rewards",
                found=f"{rewards.dtype} of shape {rewards.shape[1:]}",
                do="sum up vectors of rewards with a piece of your own: it makes one number of a whole episode",
            )
        counts = group.counts
        firsts = (np.cumsum(counts) - counts)[counts > 0]
        rows = rewards.astype(np.float64)
        rows[firsts] += returns_before(group, "RewardSum")[counts > 0]
        sums = discounted_sums(rows[::-1], counts[::-1], 1.0)[::-1]
        kind = rewards.dtype if rewards.dtype.kind == "f" else np.float64
        columns[self.to] = EpisodeColumn(sums.astype(kind), counts)
        return columns
