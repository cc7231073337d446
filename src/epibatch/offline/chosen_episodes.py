"""The steps of some episodes of a data set, to be drawn."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from ..episodes.replay.held_steps import Life, Name
from ..episodes.replay.lanes import runs
from ..episodes.store import Ints, StoreColumn
from .episode_rows import Columnar, EpisodeFacts, Spans


class ChosenEpisodes:
    """Whole episodes as held steps: facts of episodes say what each row is, so that nothing is kept for single rows.

    Args:
        store: Their rows.
        facts: The facts of the episodes, the first places sorted.
        name_of: Returns the names of an episode, by its number among these.
    """

    def __init__(self, store: Columnar, facts: EpisodeFacts, name_of: Callable[[int], Name]) -> None:
        self._store, self._facts, self._name_of = store, facts, name_of
        self._rows = facts.lookback + facts.steps + 1
        self._row_ends, self._step_ends = self._rows.cumsum(), facts.steps.cumsum()
        self.stored: Callable[[str], StoreColumn | None] = store.stored

    @property
    def outputs(self) -> Collection[str]:
        """The names of the model outputs."""
        return self._store.outputs

    def rows_at(self, places: Ints) -> Ints:
        """Return the rows of the arrays at some places: int64 [R]."""
        return self._store.rows_at(places) if isinstance(self._store, Spans) else places

    @property
    def num_rows(self) -> int:
        """Rows of all episodes."""
        return int(self._rows.sum())

    @property
    def num_steps(self) -> int:
        """Steps of all episodes."""
        return int(self._facts.steps.sum())

    num_steps_added = num_steps

    def places(self, numbers: Ints) -> Ints:
        """Return the places of rows by their number, from 0 to `num_rows` - 1: int64 [R]."""
        episodes = self._row_ends.searchsorted(numbers, "right")
        places: Ints = self._facts.first[episodes] + numbers - (self._row_ends - self._rows)[episodes]
        return places

    def newest(self, most: int | None = None) -> Ints:
        """Return the places of all rows: int64."""
        return runs(self._facts.first, self._rows)

    def numbers_of(self, places: Ints) -> Ints:
        """Return the number of the step at each place among those of all episodes, -1 for no step: int64 [R]."""
        facts, episodes = self._facts, self._episodes_at(places)
        steps = places - facts.first[episodes] - facts.lookback[episodes]
        is_step = (steps >= 0) & (steps < facts.steps[episodes])
        numbers: Ints = np.where(is_step, steps + (self._step_ends - facts.steps)[episodes], -1)
        return numbers

    def lives_of(self, places: Ints) -> Life:
        """Return what is known about the episode at each place."""
        facts = self._facts.of(self._episodes_at(places))
        begin = facts.first + facts.lookback
        ends = facts.terminated > 0, facts.truncated > 0
        return Life(facts.first, begin + facts.steps, *ends, facts.t_started + places - begin)

    def names_of(self, places: Ints) -> list[Name]:
        """Return the names of the episode at each place."""
        return [self._name_of(episode) for episode in self._episodes_at(places).tolist()]

    def _episodes_at(self, places: Ints) -> Ints:
        episodes: Ints = self._facts.first.searchsorted(places, "right") - 1
        return episodes
