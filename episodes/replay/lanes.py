"""Lanes: rings of consecutive rows, in which a replay buffer keeps the steps of episodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from epibatch.core.columns import Columns
from epibatch.core.errors import CheckpointError, ColumnError
from epibatch.core.restoring import check_count
from epibatch.core.structs import Form, flatten, flatten_like, unflatten

from ..reader import EpisodeReader, reader_of
from ..store import Flags, Ints, Leaf, StoreColumn

_LANE = 40
"""Bits of a place that number the rows of a lane; those above number the lanes."""
_POSITION = (1 << _LANE) - 1
_COLUMNS = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)


class Name(NamedTuple):
    """The names of an episode.

    Args:
        id_: Its id.
        agent_id: Its agent, if it is that of one of several.
        multi_agent_episode_id: The id of the episode of all of them.
    """

    id_: str
    agent_id: Any = None
    multi_agent_episode_id: Any = None


_NAMES = attrgetter(*Name._fields)


class Life(NamedTuple):
    """What is known about the episode that a row belongs to.

    Args:
        first: The place of the first row that was added of it.
        last: The place of its newest observation.
        terminated: True if it was terminated there.
        truncated: True if it was truncated there.
    """

    first: Ints
    last: Ints
    terminated: Flags
    truncated: Flags


class Lanes:
    """A store of the newest rows of several streams of episodes, each in a ring of its own.

    An episode of T steps takes T + 1 consecutive rows of a lane: row t has observation t, and action, reward and model
    outputs of the step that followed it; the last row has an observation only. Each observation lies there once. What
    is added later of a running episode goes on in its lane, and overwrites the oldest rows there.

    A row's *place* is the number of its lane times 2^40 plus its position, which counts all rows that the lane ever
    got. So a place never comes to stand for another row: once that is overwritten, the place is gone.

    Args:
        num_lanes: Number of lanes.
        rows_per_lane: Rows of each; at least 2.
        kept_outputs: Names of the model outputs to keep; None: all.
        keep_infos: True: keep the infos too, in a column `infos` of dicts.

    Attributes:
        written: Rows that each lane ever got: int64 [lanes].
        num_steps: Rows that are steps.
        num_steps_added: Steps that were ever added.
        num_episodes_added: Episodes that were ever added.
    """

    def __init__(
        self, num_lanes: int, rows_per_lane: int, kept_outputs: Collection[str] | None = None, keep_infos: bool = False
    ) -> None:
        self.num_lanes, self.rows_per_lane = num_lanes, rows_per_lane
        self._kept, self._keep_infos = kept_outputs, keep_infos
        self.written = np.zeros(num_lanes, np.int64)
        self.num_steps = self.num_steps_added = self.num_episodes_added = 0
        size = num_lanes * rows_per_lane
        self._number = np.full(size, -1, np.int64)  # of a step among all that were ever added; -1 for other rows
        self._t = np.zeros(size, np.int64)
        self._owner = np.zeros(size, np.int64)
        self._marks = np.zeros(size, np.int64)
        self._columns: dict[str, tuple[Form, list[Leaf]]] = {}
        self._lives = np.zeros((4, 0), np.int64)  # the columns of `Life`, by number of the episode
        self._names: list[Name] = []
        self._free: list[int] = []
        self._held: list[deque[int]] = [deque() for _ in range(num_lanes)]  # episodes of each lane, the oldest first
        self._open: list[int | None] = [None] * num_lanes  # the episode that is running in each
        self._next = [0] * num_lanes  # the step at which it goes on

    # -- as a store ----------------------------------------------------------------------------------

    @property
    def outputs(self) -> Collection[str]:
        """The names of the model outputs."""
        return [name for name in self._columns if name not in (*_COLUMNS, Columns.INFOS)]

    def stored(self, name: str) -> StoreColumn | None:
        """Return a column, by places; None if there is none of that name."""
        found = self._columns.get(name)
        return None if found is None else StoreColumn(*found)

    def rows_at(self, places: Ints) -> Ints:
        """Return the rows of the arrays at some places: int64 [R]."""
        return (places >> _LANE) * self.rows_per_lane + (places & _POSITION) % self.rows_per_lane

    # -- what is at a place --------------------------------------------------------------------------

    @property
    def filled(self) -> Ints:
        """Rows that each lane holds: int64 [lanes]."""
        return np.minimum(self.written, self.rows_per_lane)

    def places(self, numbers: Ints) -> Ints:
        """Return the places of rows that are numbered lane by lane from the oldest on: int64 [R]."""
        filled = self.filled
        ends = np.cumsum(filled)
        lanes = np.searchsorted(ends, numbers, side="right")
        ages = ends[lanes] - numbers  # 1 for the newest row of a lane
        found: Ints = (lanes << _LANE) + self.written[lanes] - ages
        return found

    def newest(self, most: int | None = None) -> Ints:
        """Return the places of rows lane by lane, the oldest first: at most so many of each lane, None: all; int64."""
        kept = self.filled if most is None else np.minimum(self.filled, most)
        return runs((np.arange(self.num_lanes) << _LANE) + self.written - kept, kept)

    def places_of(self, rows: Ints) -> Ints:
        """Return the places that rows of the arrays have now: int64 [R]."""
        lanes, at = np.divmod(rows, self.rows_per_lane)
        newest = self.written[lanes] - 1
        found: Ints = (lanes << _LANE) + newest - (newest - at) % self.rows_per_lane
        return found

    def oldest(self, places: Ints) -> Ints:
        """Return the oldest place of the lane of each: int64 [R]."""
        lanes = places >> _LANE
        found: Ints = (lanes << _LANE) + np.maximum(self.written[lanes] - self.rows_per_lane, 0)
        return found

    def hold(self, places: Ints) -> Flags:
        """A mask of the places whose rows were not overwritten yet: bool [R]."""
        return places >= self.oldest(places)

    def are_steps(self, places: Ints) -> Flags:
        """A mask of the places that are steps: bool [R]."""
        return self._number[self.rows_at(places)] >= 0

    def numbers_of(self, places: Ints) -> Ints:
        """Return the number of the step at each place among all that were ever added, -1 for no step: int64 [R]."""
        return self._number[self.rows_at(places)]

    @property
    def num_episodes(self) -> int:
        """Episodes of which it holds a step."""
        oldest = self.oldest(np.arange(self.num_lanes) << _LANE).tolist()
        return sum(int((self._lives[1, list(held)] > first).sum()) for held, first in zip(self._held, oldest))

    def steps_of(self, places: Ints) -> Ints:
        """Return the step of its episode at each place: int64 [R]."""
        return self._t[self.rows_at(places)]

    def lives_of(self, places: Ints) -> Life:
        """Return what is known about the episode at each place."""
        owners = self._owner[self.rows_at(places)]
        first, last, terminated, truncated = self._lives[:, owners]
        return Life(first, last, terminated > 0, truncated > 0)

    def marks_of(self, places: Ints) -> Ints:
        """Return the number that each row was added with: int64 [R]."""
        return self._marks[self.rows_at(places)]

    def names_of(self, places: Ints) -> list[Name]:
        """Return the names of the episode at each place."""
        return [self._names[owner] for owner in self._owner[self.rows_at(places)].tolist()]

    def resized(self, num_lanes: int, rows_per_lane: int) -> Lanes:
        """Return lanes of another size with the same rows, at the same places, as far as they fit.

        Args:
            num_lanes: Number of lanes, not less than before; further ones are empty.
            rows_per_lane: Rows of each; the oldest of a lane that holds more are left out.
        """
        out = Lanes(num_lanes, rows_per_lane, self._kept, self._keep_infos)
        out.num_steps_added, out.num_episodes_added = self.num_steps_added, self.num_episodes_added
        out.written[: self.num_lanes] = self.written
        places = self.newest(rows_per_lane)
        before, after = self.rows_at(places), out.rows_at(places)
        for mine, other in zip(self._per_row, out._per_row):
            other[after] = mine[before]
        out.num_steps = int((out._number >= 0).sum())
        for name, (form, leaves) in self._columns.items():
            out._make_room(name, form, leaves)
            for leaf, other in zip(leaves, out._columns[name][1]):
                other[after] = leaf[before]
        out._lives, out._names, out._free = self._lives, self._names, self._free
        more = num_lanes - self.num_lanes
        out._held = self._held + [deque() for _ in range(more)]
        out._open, out._next = self._open + [None] * more, self._next + [0] * more
        return out

    @property
    def _per_row(self) -> tuple[Leaf, ...]:
        return self._number, self._t, self._owner, self._marks

    # -- state ---------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return all that the lanes hold, as arrays, numbers and text; copies."""
        places = self.newest()
        rows = self.rows_at(places)
        held = [owner for owners in self._held for owner in owners]
        numbers = np.zeros(len(self._names), np.int64)
        numbers[held] = np.arange(len(held))
        return {
            "rows_per_lane": self.rows_per_lane,
            "written": self.written.copy(),
            "added": [self.num_steps_added, self.num_episodes_added],
            "number": self._number[rows],
            "t": self._t[rows],
            "owner": numbers[self._owner[rows]],
            "marks": self._marks[rows],
            "columns": {
                name: unflatten(form, [_listed(leaf[rows]) for leaf in leaves])
                for name, (form, leaves) in self._columns.items()
            },
            "lives": self._lives[:, held],
            "names": [list(self._names[owner]) for owner in held],
            "episodes_held": np.array(list(map(len, self._held)), np.int64),
            "is_open": np.array([owner is not None for owner in self._open], np.bool_),
            "next": np.array(self._next, np.int64),
        }

    @classmethod
    def from_state(
        cls, state: Mapping[str, Any], kept_outputs: Collection[str] | None = None, keep_infos: bool = False
    ) -> Lanes:
        """Return lanes with what `get_state` gave.

        Raises:
            CheckpointError: parts of the state do not fit each other.
        """
        written = np.array(state["written"], np.int64)
        out = cls(len(written), check_count("rows of a lane", state["rows_per_lane"]), kept_outputs, keep_infos)
        out.written = written
        counts, names = np.array(state["episodes_held"], np.int64), [Name(*name) for name in state["names"]]
        total = int(out.filled.sum()) if (written >= 0).all() and out.rows_per_lane >= 1 else -1
        lives, owner = np.array(state["lives"], np.int64), np.array(state["owner"], np.int64)
        lanes = np.repeat(np.arange(len(written)), counts)
        columns = {name: flatten(column) for name, column in state["columns"].items()}
        sizes = {len(leaf) for leaves, _ in columns.values() for leaf in leaves}
        parts = (np.array(state["number"], np.int64), np.array(state["t"], np.int64), owner, state["marks"])
        fits = {*map(len, parts), *sizes} <= {total} and lives.shape == (4, len(names)) and len(lanes) == len(names)
        if not (fits and (lives[:2] >> _LANE == lanes).all() and ((owner >= 0) & (owner < len(names))).all()):
            raise CheckpointError(
                "state of a replay buffer",
                expected="as many rows in every column as its lanes hold, each of an episode that it names",
                found=f"{total} rows, columns of {sorted(sizes)} and {len(names)} episodes",
                do="restore a state that get_state of a buffer gave",
            )
        rows = out.rows_at(out.newest())
        for mine, part in zip(out._per_row, parts):
            mine[rows] = part
        out.num_steps = int((out._number >= 0).sum())
        for name, (leaves, form) in columns.items():
            arrays = [_objects(leaf) if isinstance(leaf, list) else np.asarray(leaf) for leaf in leaves]
            out._make_room(name, form, arrays)
            for leaf, values in zip(out._columns[name][1], arrays):
                leaf[rows] = values
        out._lives, out._names = lives, names
        out.num_steps_added, out.num_episodes_added = (check_count("steps or episodes", n) for n in state["added"])
        ends = np.cumsum(counts)
        out._held = [deque(range(end - count, end)) for end, count in zip(ends.tolist(), counts.tolist())]
        out._open = [
            held[-1] if is_open and held else None
            for held, is_open in zip(out._held, np.asarray(state["is_open"]).tolist(), strict=True)
        ]
        out._next = [int(step) for step in state["next"]]
        return out

    # -- adding --------------------------------------------------------------------------------------

    def read(self, episodes: Sequence[Any]) -> tuple[EpisodeReader, dict[str, tuple[Form, list[Leaf]]]]:
        """Read the rows of chunks, to write them afterwards.

        Args:
            episodes: What a pipeline takes: chunks of episodes of one agent, with at least one step each.

        Returns:
            What has the lengths, starts and ends of the chunks; and nesting and leaves of the rows by column.

        Raises:
            ColumnError: a column that is missing, new, or of another nesting or shape than before.
        """
        reader = reader_of(episodes)
        skipped = np.maximum(reader.lengths + 1 - self.rows_per_lane, 0)
        columns = self._read(reader, skipped)
        if self._keep_infos:
            infos = [
                row for episode, skip in zip(episodes, skipped.tolist()) for row in episode.get_infos(slice(skip, None))
            ]
            columns[Columns.INFOS] = None, [_objects(infos)]
        return reader, columns

    def write(
        self,
        episodes: Sequence[Any],
        reader: EpisodeReader,
        columns: Mapping[str, tuple[Form, list[Leaf]]],
        lanes: Ints,
        marks: Ints | None = None,
    ) -> Ints:
        """Copy the steps of chunks into lanes, one copy per column.

        Args:
            episodes: The chunks.
            reader: What `read` returned of them; nothing may have been written since.
            columns: Likewise.
            lanes: The lane of each chunk: int64 [C].
            marks: A number for each row: int64 [sum of lengths + 1]; default: 0.

        Returns:
            The places of all rows that were written, in the order of chunks: int64. Those of a chunk that is longer
            than a lane are its last ones.
        """
        counts = np.minimum(reader.lengths + 1, self.rows_per_lane)
        skipped = reader.lengths + 1 - counts
        for name, (form, values) in columns.items():
            self._make_room(name, form, values)
        firsts, owners = self._begin(reader, episodes, lanes.tolist(), counts.tolist(), skipped.tolist())
        places = runs(firsts, counts)
        rows = self.rows_at(places)
        numbers = runs(np.cumsum(reader.lengths) - reader.lengths + skipped, counts) + self.num_steps_added
        numbers[np.cumsum(counts) - 1] = -1
        is_step = numbers >= 0
        touched = rows if len(set(lanes.tolist())) == len(lanes) else np.unique(rows)  # where a row is given twice
        self.num_steps -= int((self._number[touched] >= 0).sum())
        self._number[rows] = numbers
        self.num_steps += int((self._number[touched] >= 0).sum())
        self.num_steps_added += int(reader.lengths.sum())
        self._t[rows] = runs(reader.starts + skipped, counts)
        self._owner[rows] = np.repeat(owners, counts)
        if marks is not None:
            self._marks[rows] = marks[runs(np.cumsum(counts + skipped) - counts, counts)]
        steps = rows[is_step]
        for name, (_, values) in columns.items():
            for leaf, value in zip(self._columns[name][1], values):
                leaf[steps if name not in (Columns.OBS, Columns.INFOS) else rows] = value
        return places

    def _read(self, reader: EpisodeReader, skipped: Ints) -> dict[str, tuple[Form, list[Leaf]]]:
        """The nesting and leaves of all rows by column, checked against the columns that are there."""
        names = [*_COLUMNS, *(name for name in reader.outputs if self._kept is None or name in self._kept)]
        known = (self._columns.keys() or set(names)) - {Columns.INFOS}
        if known != set(names):
            raise ColumnError(
                "episodes for a replay buffer",
                expected=f"the columns of those before: {', '.join(sorted(known))}",
                found=", ".join(sorted(names)),
                do="record all of them with the same module and pieces, or begin with an empty buffer",
            )
        return {name: self._checked(name, reader, skipped) for name in names}

    def _checked(self, name: str, reader: EpisodeReader, skipped: Ints) -> tuple[Form, list[Leaf]]:
        rows = reader.rows(name, skipped, reader.lengths + (name == Columns.OBS))
        rows.check()
        form, leaves = rows.form, [rows.leaf(i) for i in range(rows.num_leaves)]
        before = self._columns.get(name)
        if before is None:
            return form, leaves
        if form != before[0]:
            leaves = flatten_like(before[0], unflatten(form, leaves))
        kinds, wanted = ([_kind(leaf) for leaf in part] for part in (leaves, before[1]))
        if kinds != wanted:
            raise ColumnError(
                f"column {name!r} of a replay buffer",
                expected=f"rows of {', '.join(wanted)}, as those before",
                found=f"{', '.join(kinds)} in {reader.describe(0)}",
                do="bring them to one shape with an env-to-module piece, or begin with an empty buffer",
            )
        return before[0], leaves

    def _make_room(self, name: str, form: Form, values: list[Leaf]) -> None:
        """Let a column hold rows of the types of these."""
        size = self.num_lanes * self.rows_per_lane
        if name not in self._columns:
            self._columns[name] = form, [np.zeros((size, *value.shape[1:]), value.dtype) for value in values]
        leaves = self._columns[name][1]
        leaves[:] = [leaf.astype(np.result_type(leaf, value), copy=False) for leaf, value in zip(leaves, values)]

    def end(self, lane: int, id_: str, terminated: bool, truncated: bool) -> None:
        """Let the episode that is running in a lane be ended after its newest step, if it is that of this id."""
        owner = self._open[lane] if lane < self.num_lanes else None
        if owner is not None and self._names[owner].id_ == id_:
            self._lives[2:, owner] = terminated, truncated
            self._open[lane] = None

    def _begin(
        self, reader: EpisodeReader, episodes: Sequence[Any], lanes: list[int], counts: list[int], skipped: list[int]
    ) -> tuple[Ints, Ints]:
        """Take rows for each chunk; returns their first places, and the numbers of the episodes: int64 [C]."""
        firsts, owners = [], []
        ids = getattr(episodes, "ids", None)
        names = [Name(*_NAMES(episode)) for episode in episodes] if ids is None else list(map(Name, ids))
        starts, ends = reader.starts.tolist(), reader.ends.T.tolist()
        for lane, count, skip, name, start, (terminated, truncated) in zip(lanes, counts, skipped, names, starts, ends):
            position, owner = int(self.written[lane]), self._open[lane]
            if owner is not None and (self._names[owner].id_, self._next[lane]) == (name.id_, start):
                position -= 1  # the row of the observation with which this chunk begins
            else:
                owner = self._new_owner(name, (lane << _LANE) + position)
                self._held[lane].append(owner)
            first = (lane << _LANE) + position + skip
            self.written[lane] = position + skip + count
            last = first + count - 1
            self._lives[1:, owner] = last, terminated, truncated
            self._open[lane] = None if terminated or truncated else owner
            self._next[lane] = start + skip + count - 1
            oldest, held = last + 1 - self.rows_per_lane, self._held[lane]
            while self._lives[1, held[0]] < oldest:
                self._free.append(held.popleft())
            firsts.append(first)
            owners.append(owner)
        return np.array(firsts, np.int64), np.array(owners, np.int64)

    def _new_owner(self, name: Name, first: int) -> int:
        if not self._free:
            known, more = len(self._names), max(64, len(self._names))
            self._free = list(range(known + more - 1, known - 1, -1))
            self._names += [Name("")] * more
            self._lives = np.concatenate([self._lives, np.zeros((4, more), np.int64)], 1)
        self.num_episodes_added += 1
        owner = self._free.pop()
        self._names[owner], self._lives[0, owner] = name, first
        return owner


def runs(firsts: Ints, counts: Ints) -> Ints:
    """Return `counts[c]` consecutive integers from `firsts[c]` on, chunk after chunk: int64."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(firsts - ends + counts, counts)


def _kind(leaf: Leaf) -> str:
    kind = leaf.dtype.kind
    return f"{'numbers' if kind in 'biufc' else 'text' if kind == 'U' else leaf.dtype} of shape {leaf.shape[1:]}"


def _listed(leaf: Leaf) -> Any:
    """A list of Python objects if the leaf has such, since a state holds no arrays of objects; else the leaf."""
    return leaf.tolist() if leaf.dtype == np.object_ else leaf


def _objects(rows: Sequence[Any]) -> Leaf:
    """Return an array of Python objects: object [R]."""
    out = np.empty(len(rows), np.object_)
    out[:] = rows
    return out
