"""A bonus for what was seen rarely."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from epibatch.core.columns import Columns
from epibatch.core.errors import ConfigError, StateError
from epibatch.core.structs import sorted_leaves

from .._engine.chunks import ChunkGroup
from .._engine.columns import EpisodeColumn
from .._engine.gather import column_or_gather, gather
from ..authoring.column_paths import paths_from
from ..columns.hash_columns import hashed_rows
from ..columns.open_columns import in_tree
from .module_statistics import ModuleStatistics

Integers = npt.NDArray[np.int64]


class _Counts:
    """Sorted keys, and how often each was seen."""

    __slots__ = ("keys", "numbers")

    def __init__(self, keys: Any = (), numbers: Any = ()) -> None:
        self.keys: Integers = np.array(keys, np.int64)
        self.numbers: Integers = np.array(numbers, np.int64)

    def of(self, keys: Integers) -> Integers:
        if not len(self.keys):
            return np.zeros(len(keys), np.int64)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[at] == keys, self.numbers[at], 0)

    def add(self, keys: Integers, numbers: Integers) -> None:
        """Count in: sorted keys, each once."""
        counted = self.of(keys) > 0
        self.numbers[np.searchsorted(self.keys, keys[counted])] += numbers[counted]
        places = np.searchsorted(self.keys, keys[~counted])
        self.keys = np.insert(self.keys, places, keys[~counted])
        self.numbers = np.insert(self.numbers, places, numbers[~counted])

    def to_state(self) -> dict[str, Any]:
        return {"keys": self.keys.copy(), "numbers": self.numbers.copy()}

    def same_as(self, other: _Counts) -> bool:
        return np.array_equal(self.keys, other.keys) and np.array_equal(self.numbers, other.numbers)


class SharedCounts:
    """Counts of all copies at their last merge, and the counts of this copy since then.

    Examples:
        >>> counts = SharedCounts()
        >>> counts.visits(np.array([7, 9, 7]), learns=True)
        array([1, 1, 2])
        >>> counts.visits(np.array([7, 8]), learns=False)
        array([3, 1])
    """

    __slots__ = ("since", "synchronised", "total")

    def __init__(self) -> None:
        self.synchronised, self.since, self.total = _Counts(), _Counts(), _Counts()

    def visits(self, keys: Integers, *, learns: bool) -> Integers:
        """The number of each visit: 1 for the first of its key, this visit among them.

        Args:
            keys: int64 [R], in the order in which they were seen.
            learns: Whether they are counted.
        """
        unique, inverse, numbers = np.unique(keys, return_inverse=True, return_counts=True)
        order = np.argsort(inverse, kind="stable")
        rank = np.empty(len(keys), np.int64)
        rank[order] = np.arange(len(keys)) - np.repeat(np.cumsum(numbers) - numbers, numbers)
        before = self.total.of(unique)[inverse]
        if not learns:
            return before + 1
        self.since.add(unique, numbers)
        self.total.add(unique, numbers)
        return before + rank + 1

    def to_state(self) -> dict[str, Any]:
        """Plain data: `synchronised` and `since`, each with `keys` and `numbers`."""
        return {"synchronised": self.synchronised.to_state(), "since": self.since.to_state()}

    @classmethod
    def from_state(cls, state: Any, where: str) -> SharedCounts:
        """The counts that `to_state` described.

        Raises:
            StateError: something else.
        """
        out = cls()
        out.synchronised, out.since = _part(state, "synchronised", where), _part(state, "since", where)
        out.total = _Counts(out.synchronised.keys, out.synchronised.numbers)
        out.total.add(out.since.keys, out.since.numbers)
        return out


def merge_shared_counts(states: Sequence[Any], where: str) -> dict[str, Any]:
    """Merge the counts of all copies into one state. Set it in each copy before it continues.

    Args:
        states: The result of `to_state` of each copy.
        where: Source of the states, for messages.

    Raises:
        StateError: the copies were last merged with different states.
    """
    copies = [SharedCounts.from_state(state, f"{where}, state {i}") for i, state in enumerate(states)]
    first = next((counts.synchronised for counts in copies if len(counts.synchronised.keys)), _Counts())
    out = SharedCounts()
    out.synchronised = _Counts(first.keys, first.numbers)
    for i, counts in enumerate(copies):
        if len(counts.synchronised.keys) and not counts.synchronised.same_as(first):
            raise StateError(
                f"{where}, state {i}",
                expected="a copy last synchronised with the others",
                found="one last synchronised with another state",
                do="give all copies the merged state (set_state) each time before any of them goes on",
            )
        out.synchronised.add(counts.since.keys, counts.since.numbers)
    return out.to_state()


def _part(state: Any, name: str, where: str) -> _Counts:
    try:
        part = _Counts(state[name]["keys"], state[name]["numbers"])
    except (KeyError, TypeError, ValueError, IndexError):
        part = None
    if (
        part is None
        or part.keys.ndim != 1
        or part.keys.shape != part.numbers.shape
        or (part.keys[1:] <= part.keys[:-1]).any()  # hashes: their differences need not fit into int64
    ):
        found = f"keys {sorted(map(str, state))}" if isinstance(state, Mapping) else repr(state)
        raise StateError(
            where,
            expected="`synchronised` and `since`, each with sorted `keys` and as many `numbers`",
            found=found,
            do="pass what get_state or merge_states gave",
        )
    return part


class CountBasedReward(ModuleStatistics):
    """Adds `scale / N ** exponent` to each step's reward, N counting how often its observation was seen so far.

    Observations count in the order of chunks and steps, this visit included; the last one of a chunk is the first of
    the next chunk, and counts there. The bonus stands in `intrinsic_rewards`, too. Equal observations have equal hashes
    (`hash_columns`), so the table takes 16 bytes for each that was ever seen; round or leave out first what differs
    every time. With exponent 0.5 it is the bonus of MBIE-EB (Strehl and Littman 2008).

    Each module has counts of its own. Copies are brought together exactly by `merge_states`; `freeze` stops counting.
    Rewards that an earlier piece put into the batch are the ones that the bonus is added to.

    Args:
        update_stats: Whether to count; see `freeze`.
        scale: Factor of the bonus.
        exponent: Of the counts, above 0.
        columns: What is counted: `obs`, or parts of it such as `obs/position`; with `actions`, pairs of both.
        add: Whether the bonus is added to the rewards; otherwise it stands in its column alone.

    Raises:
        ConfigError: invalid arguments.

    Examples:
        >>> from epibatch.connectors.learner import BatchIndividualItems, LearnerConnectorPipeline
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> rows = {"observations": [3, 5, 3, 4], "actions": [0, 0, 0], "rewards": [0.0, 0.0, 1.0]}
        >>> episode = SingleAgentEpisode(**rows, len_lookback_buffer=0)
        >>> pipeline = LearnerConnectorPipeline(connectors=[CountBasedReward(), BatchIndividualItems()])
        >>> pipeline(episodes=[episode])["rewards"]
        array([1. , 1. , 1.5])
    """

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
        tree = {name: gather(group, name) for name in dict.fromkeys(path.column for path in self._paths)}
        leaves = [leaf for path in self._paths for leaf in sorted_leaves(in_tree(path).part(tree))]
        visits = self.statistics(group).visits(hashed_rows(leaves, "CountBasedReward"), learns=self.learns)
        rewards = column_or_gather(columns, group, Columns.REWARDS, "CountBasedReward")
        counts = rewards.counts
        steps = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        kind = rewards.data.dtype if rewards.data.dtype.kind == "f" else np.float64
        bonus = np.zeros(len(steps), kind)
        bonus[steps < np.repeat(group.lengths, counts)] = self.scale / visits**self.exponent
        columns[Columns.INTRINSIC_REWARDS] = EpisodeColumn(bonus, counts)
        if self.add:
            columns[Columns.REWARDS] = rewards.with_data(rewards.data + bonus)
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
