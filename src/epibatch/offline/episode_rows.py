"""The rows of whole episodes: a store, the facts of the episodes in it, and their steps, to be drawn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from epibatch.core.columns import Columns
from epibatch.core.errors import DataError
from epibatch.core.structs import Form

from ..episodes.replay.held_steps import Life, Name
from ..episodes.replay.lanes import runs
from ..episodes.store import Columnar, Ints, Leaf, StoreColumn
from .data_folder import DataFolder, read_line
from .parts import Delivery, PartFacts, Running, layout_of, read_parts, spaces_of


class Spans(Columnar):
    """Rows that lie in spans: those of an episode that was written in parts have consecutive places.

    Args:
        columns: Nesting and leaves of each column.
        begins: The first place of each span: int64 [S], sorted.
        shifts: How many rows later than its place a row of each span lies: int64 [S].
    """

    def __init__(self, columns: Mapping[str, tuple[Form, list[Leaf]]], begins: Ints, shifts: Ints) -> None:
        super().__init__(columns)
        self._begins, self._shifts = begins, shifts

    def rows_at(self, places: Ints) -> Ints:
        """Return the rows of the arrays at some places: int64 [R]."""
        rows: Ints = places + self._shifts[self._begins.searchsorted(places, "right") - 1]
        return rows


class EpisodeFacts(NamedTuple):
    """The places of episodes in a store, and their place in time: int64 [E] each.

    Args:
        first: The place of the oldest row.
        lookback: Steps before the episode's own.
        steps: Its own steps; the row after them has an observation only.
        t_started: The step of it at which these begin.
        terminated: 1 if it was terminated after them.
        truncated: 1 if it was truncated there.
        lacks_final_obs: 1 if its last observation is a placeholder.
    """

    first: Ints
    lookback: Ints
    steps: Ints
    t_started: Ints
    terminated: Ints
    truncated: Ints
    lacks_final_obs: Ints

    def of(self, chosen: Ints) -> EpisodeFacts:
        """Return the facts of some of the episodes: int64 [E]."""
        return EpisodeFacts(*(column[chosen] for column in self))


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
    device = None

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


class EpisodeRows:
    """The rows of all episodes of a data set, and what is known about each episode.

    Args:
        columns: Nesting and leaves of each column, row after row as they were written.
        parts: The facts of the parts of episodes.
        line: Returns what the line of a part says.
        spaces: Space of observations, and of actions; None: not known.
        env: Name of the environment, likewise.

    Attributes:
        store: The rows, by places.
        facts: The facts of the episodes.
        path: The folder that they are read from; None: they are in memory.
    """

    def __init__(
        self,
        columns: Mapping[str, tuple[Form, list[Leaf]]],
        parts: PartFacts,
        line: Callable[[int], dict[str, Any]],
        spaces: tuple[Any, Any] = (None, None),
        env: str | None = None,
    ) -> None:
        self.observation_space, self.action_space = spaces
        self.env, self._line = env, line
        self.path: Path | None = None
        self._made_by: tuple[Any, tuple[Any, ...]] = EpisodeRows, (columns, parts, line, spaces, env)
        self._kept: tuple[int, dict[str, Any]] = -1, {}
        before, numbers = parts.continues, np.arange(len(parts.steps))
        root = np.where(before < 0, numbers, before)
        while (root != root[root]).any():
            root = root[root]
        self._order = np.argsort(root, kind="stable")  # parts, those of an episode after each other
        self._starts = parts.t_started[self._order]
        self._begins = np.flatnonzero(before[self._order] < 0)  # the first one of each episode among them
        later = before[(before >= 0) & (parts.steps > 0)]
        rows = parts.rows
        lies_at = rows.cumsum() - rows
        rows[later] -= 1  # the last observation is the first one of the part that goes on
        ordered = rows[self._order]
        places = ordered.cumsum() - ordered
        shifts = lies_at[self._order] - places
        self.store = Spans(columns, places, shifts) if shifts.any() else Columnar(columns)
        self._own = lies_at + parts.lookback, parts.steps
        first, last = self._order[self._begins], self._order[np.append(self._begins[1:], len(numbers)) - 1]
        self.facts = EpisodeFacts(
            places[self._begins], parts.lookback[first], self._sums(parts.steps), parts.t_started[first],
            parts.terminated[last], parts.truncated[last], parts.lacks_final_obs[last],
        )  # fmt: skip

    def _sums(self, values: Any) -> Any:
        """The sums of the values of the parts of each episode."""
        return np.add.reduceat(values[self._order], self._begins) if len(values) else values

    @classmethod
    def of_folder(cls, path: Path, num_commits: int | None = None) -> EpisodeRows:
        """Return those of a folder, mapped into memory; of its first commits if a number is given."""
        folder = DataFolder(path, num_commits)
        about = folder.description
        spaces = about.observation_space, about.action_space
        rows = cls(folder.columns(), folder.parts, folder.line, spaces, about.env)
        rows.path, rows._made_by = path, (cls.of_folder, (path, len(folder.commits)))
        return rows

    @classmethod
    def in_memory(cls, given: Iterable[Sequence[Any]], where: str) -> EpisodeRows:
        """Read episodes into arrays.

        Args:
            given: The episodes, so many at a time as are read at once.
            where: What they are, for messages.

        Raises:
            DataError: there is none with a step.
            ColumnError: columns differ, or have text or Python objects.
        """
        running, num_parts, spaces = Running(), 0, (None, None)
        deliveries: list[Delivery] = []
        layout: dict[str, Any] = {}
        for part in given:
            delivery = read_parts(part, layout, num_parts, running)
            if delivery is None:
                continue
            running, num_parts = delivery.running, num_parts + len(delivery.lines)
            layout, spaces = (layout, spaces) if deliveries else (layout_of(delivery.columns), spaces_of(part))
            deliveries.append(delivery)
        if not deliveries:
            raise no_step(where)
        columns = {
            name: (form, [np.concatenate(leaves) for leaves in zip(*(item.columns[name][1] for item in deliveries))])
            for name, (form, _) in deliveries[0].columns.items()
        }
        parts = PartFacts(*map(np.concatenate, zip(*(item.facts for item in deliveries))))
        lines = [line for item in deliveries for line in item.lines]
        return cls(columns, parts, partial(_line_in_memory, lines), spaces)

    def __reduce__(self) -> Any:
        return self._made_by

    def returns(self) -> npt.NDArray[np.float64]:
        """Return the sum of the rewards of the steps of each episode: float64 [E]."""
        firsts, steps = self._own
        has_steps = steps > 0
        bounds = np.stack([firsts, firsts + steps], 1)[has_steps].ravel()  # the row after the steps is there
        sums = np.zeros(len(steps))
        column = self.store.stored(Columns.REWARDS)
        for leaf in column.leaves if column is not None and len(bounds) else ():
            parts = np.add.reduceat(leaf, bounds, 0, np.float64)[::2]
            sums[has_steps] += parts.reshape(len(parts), -1).sum(1)
        returns: npt.NDArray[np.float64] = self._sums(sums)
        return returns

    def about(self, episode: int) -> dict[str, Any]:
        """Return the names of an episode, with `infos` (a dict for each row, if there are any) and `custom_data`."""
        number, about = self._kept
        if number != episode:
            about = self._about(episode)
            self._kept = episode, about
        return about

    def _about(self, episode: int) -> dict[str, Any]:
        stop = self._begins[episode + 1] if episode + 1 < len(self._begins) else len(self._order)
        lookback, start = int(self.facts.lookback[episode]), int(self.facts.t_started[episode])
        about: dict[str, Any] = {}
        infos: dict[int, Any] = {}
        custom: dict[str, Any] = {}
        for at in range(self._begins[episode], stop):
            line = self._line(int(self._order[at]))
            about = about or line
            row = int(self._starts[at]) - start + lookback  # that of the part's first step
            infos.pop(row, None)
            infos.update({row + step: info for step, info in line.get("infos", ())})
            custom.update(line.get("custom_data", ()))
        rows = lookback + int(self.facts.steps[episode]) + 1
        return {**about, "infos": [infos.get(row, {}) for row in range(rows)] if infos else None, "custom_data": custom}


def _line_in_memory(lines: list[bytes], part: int) -> dict[str, Any]:
    return read_line(f"part {part}", lines[part])


def no_step(where: str) -> DataError:
    """Return the error about episodes of which none has a step."""
    return DataError(where, expected="an episode with a step", found="none", do="look at the source, or a filter")
