"""Steps of several steps each, as one-step episodes."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from epibatch.core.arrays_or_tensors import as_floats, take
from epibatch.core.columns import Columns

from ..chunk_table import ChunkTable
from ..store import Ints, Leaf, Store, StoreColumn
from .held_steps import HeldSteps
from .sampled_episodes import SampledEpisodes


class GatheredColumns:
    """Copies of some rows of a store, at places 0, 1, ...: a store itself. Columns are copied when they are asked for.

    Args:
        store: The store.
        rows: The numbers of the rows: int64 [P].
        made: Columns that have other rows.
    """

    def __init__(self, store: Store, rows: Ints, made: dict[str, StoreColumn | None]) -> None:
        self._store, self._rows, self._made = store, rows, made
        self.outputs = store.outputs

    def stored(self, name: str) -> StoreColumn | None:
        """Return a column, by places; None if there is none of that name."""
        if name not in self._made:
            column = self._store.stored(name)
            if column is not None:
                column = StoreColumn(column.form, [take(leaf, self._rows) for leaf in column.leaves])
            self._made[name] = column
        return self._made[name]


class SampledTransitions(SampledEpisodes):
    """A draw of which each chunk is one step that stands for n steps, or for as many as its episode has left.

    With k such steps, a chunk has the observation at its start and the one k steps later; the action at its start; and
    the discounted sum of k rewards. It ends as its episode does, if that ends after these k steps. (Sutton and Barto,
    chapter 7.) Built-in pieces read these rows by index, like those of other draws.

    Args:
        lanes: The buffer's rows.
        places: The place of each chunk's start: int64 [C].
        n_step: Steps of each, at least 1: an int or int64 [C].
        gamma: Discount of the rewards.
        lookback: Steps that each chunk keeps before its start, if the buffer holds them.
        hidden: Names of columns that are not shown.

    Attributes:
        per_chunk: `n_step`, k: int64 [C]; `discounts`, gamma^k, with which a loss multiplies the value of the last
            observation, and `weights` of the losses: float32 [C].
    """

    skips_steps = True

    def __init__(
        self,
        lanes: HeldSteps,
        places: Ints,
        n_step: Ints | int,
        gamma: float,
        lookback: int = 0,
        hidden: Collection[str] = (Columns.INFOS,),
    ) -> None:
        super().__init__(lanes, places, n_step, hidden)
        self._all_steps = SampledEpisodes(lanes, places, n_step, hidden)
        counts, width = self.lengths, lookback + 2
        at = places[:, None] + np.arange(-lookback, 2)
        at[:, -1] = places + counts
        rows = lanes.rows_at(np.maximum(at, (places - self.lookbacks)[:, None]).ravel())
        stored = lanes.stored(Columns.REWARDS)
        rewards = [] if stored is None else [self._summed(leaf, rows, lookback, gamma, lanes) for leaf in stored.leaves]
        made = {Columns.REWARDS: stored and stored._replace(leaves=rewards)}
        self.stores = [GatheredColumns(self.stores[0], rows, made)]
        self.terminateds, self.truncateds = self.ends
        self.first = np.arange(len(places)) * width + lookback
        self.lengths, self.ahead = np.ones_like(counts), np.zeros_like(counts)
        self.lookbacks = np.minimum(self.lookbacks, lookback)
        self.per_chunk = {
            "n_step": counts,
            "discounts": (gamma**counts).astype(np.float32),
            "weights": np.ones(len(counts), np.float32),
        }

    def _summed(self, leaf: Leaf, rows: Ints, lookback: int, gamma: float, lanes: HeldSteps) -> Leaf:
        """The rewards at all rows, with the sums at those of the starts."""
        out: Leaf = as_floats(take(leaf, rows))
        sums = out[lookback :: lookback + 2]
        for later in range(1, int(self.lengths.max(initial=0))):
            still = np.flatnonzero(self.lengths > later)
            sums[still] += gamma**later * take(leaf, lanes.rows_at(self.drawn[still] + later))
        return out

    def observations_at(self, chunks: Ints, steps: Ints) -> ChunkTable:
        """Chunks without steps, each with an observation and all that the buffer holds before it; see `ChunkTable`."""
        whole = self._all_steps
        return whole.observations_at(chunks, steps * whole.lengths[chunks])
