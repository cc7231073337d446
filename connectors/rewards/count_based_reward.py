"""A bonus for what was seen rarely."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import ConfigError
from epibatch.core.struct_batches import sorted_leaves

from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from .._engine.gather import gather, taken
from ..authoring.column_paths import paths_from
from ..columns.hashed_rows import hashed_rows
from ..columns.open_columns import in_tree
from .module_statistics import ModuleStatistics
from .shared_counts import SharedCounts, merge_shared_counts

__all__ = ["CountBasedReward"]


class CountBasedReward(ModuleStatistics):
    """Adds `scale / N ** exponent` to each step's reward, N counting how often its observation was seen so far.

    Observations count in the order of chunks and steps, this visit included; the last one of a chunk is the first of
    the next chunk, and counts there. The bonus stands in `intrinsic_rewards`, too. Equal observations have equal hashes
    (`hash_columns`), so the table takes 16 bytes for each that was ever seen; round or leave out first what differs
    every time. With exponent 0.5 it is the bonus of MBIE-EB (Strehl and Littman 2008).

    Each module has counts of its own. Copies are brought together exactly by `merge_states`; `freeze` stops counting.
    Rewards that a piece in front put into the batch are the ones that the bonus is added to.

    Args:
        input_observation_space: Space of one observation.
        input_action_space: Space of one action.
        update_stats: Whether to count; see `freeze`.
        scale: Factor of the bonus.
        exponent: Of the counts, above 0.
        columns: What is counted: `obs`, or parts of it such as `obs/position`; with `actions`, pairs of both.
        add: Whether the bonus is added to the rewards; otherwise it stands in its column alone.

    Raises:
        ConfigError: arguments that cannot be meant.

    Example:
        >>> from epibatch.connectors.learner import BatchIndividualItems, LearnerConnectorPipeline
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> rows = {"observations": [3, 5, 3, 4], "actions": [0, 0, 0], "rewards": [0.0, 0.0, 1.0]}
        >>> episode = SingleAgentEpisode(**rows, len_lookback_buffer=0)
        >>> pipeline = LearnerConnectorPipeline(connectors=[CountBasedReward(), BatchIndividualItems()])
        >>> pipeline(episodes=[episode])["rewards"]
        array([1. , 1. , 1.5])
    """

    update_stats: bool = True
    scale: float = 1.0
    exponent: float = 1.0
    columns: Any = Columns.OBS
    add: bool = True

    def __post_init__(self) -> None:
        """Check the parameters."""
        self._paths = paths_from("CountBasedReward", self.columns)
        if not math.isfinite(self.scale) or not (math.isfinite(self.exponent) and self.exponent > 0):
            raise ConfigError(
                "CountBasedReward",
                expected="a finite scale, and an exponent above 0",
                found=f"scale={self.scale}, exponent={self.exponent}",
                do="pass such numbers, as in scale=0.1, exponent=0.5",
            )

    @property
    def writes(self) -> tuple[str, ...]:  # type: ignore[override]
        """The bonus, and what it is added to."""
        return (Columns.INTRINSIC_REWARDS, *((Columns.REWARDS,) if self.add else ()))

    def run(self, columns: dict[str, Any], group: ChunkGroup) -> dict[str, Any]:
        """Count, and add the bonus."""
        if not len(group.episodes):
            return columns
        tree = {name: gather(group, name) for name in dict.fromkeys(path.column for path in self._paths)}
        leaves = [leaf for path in self._paths for leaf in sorted_leaves(in_tree(path).part(tree))]
        visits = self.statistics(group).visits(hashed_rows(leaves, "CountBasedReward"), learns=self.learns)
        rewards = taken(columns, group, Columns.REWARDS, "CountBasedReward")
        counts = rewards.counts
        steps = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        kind = rewards.data.dtype if rewards.data.dtype.kind == "f" else np.float64
        bonus = np.zeros(len(steps), kind)
        bonus[steps < np.repeat(group.lengths, counts)] = self.scale / visits**self.exponent
        columns[Columns.INTRINSIC_REWARDS] = EpisodeColumn(bonus, counts)
        if self.add:
            columns[Columns.REWARDS] = EpisodeColumn(rewards.data + bonus, counts, single=rewards.single)
        return columns

    def nothing_known(self) -> SharedCounts:
        """Nothing seen."""
        return SharedCounts()

    def from_state(self, state: Any, where: str) -> SharedCounts:
        """Counts of one module out of a state."""
        return SharedCounts.from_state(state, where)

    def merged(self, states: list[Any], where: str) -> dict[str, Any]:
        """One state of several copies."""
        return merge_shared_counts(states, where)
