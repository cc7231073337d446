"""Lanes: rings of consecutive rows, in which a replay buffer keeps the steps of episodes."""

from __future__ import annotations

import math
import os
import tempfile
import weakref
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from operator import attrgetter
from typing import Any

import numpy as np

from epibatch.core.arrays_or_tensors import as_tensor, common_type, new_zeros, on_device, put, take
from epibatch.core.columns import Columns
from epibatch.core.errors import CheckpointError, ColumnError
from epibatch.core.files import storing
from epibatch.core.kept_property import kept_property
from epibatch.core.restoring import check_count
from epibatch.core.runtime import usable_device
from epibatch.core.sealed_arrays import SealedArrays, SealedFile
from epibatch.core.structs import Form, convert_to_numpy, flatten, flatten_like, unflatten

from ..arrays import object_leaf
from ..reader import EpisodeReader, reader_of
from ..store import Flags, Ints, Leaf, StoreColumn
from .held_steps import Life, Name

_LANE = 40
"""Bits of a place that number the rows of a lane; those above number the lanes."""
_POSITION = (1 << _LANE) - 1
_FEWEST_ROWS = 2
_SEGMENTS = 16
"""Segments of saved rows that full lanes have at least."""
_COLUMNS = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)


_NAMES = attrgetter(*Name._fields)


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
        folder: Where the columns lie, in files without a name; None: in memory.
        device: Where they lie as tensors, a name or a `torch.device`; None: they are arrays.
        pin_memory: True: they are tensors in page-locked memory.

    Attributes:
        written: Rows that each lane ever got: int64 [lanes].
        num_steps: Rows that are steps.
        num_steps_added: Steps that were ever added.
        num_episodes_added: Episodes that were ever added.
    """

    def __init__(
        self,
        num_lanes: int,
        rows_per_lane: int,
        kept_outputs: Collection[str] | None = None,
        keep_infos: bool = False,
        folder: str | os.PathLike[str] | None = None,
        device: Any = None,
        pin_memory: bool = False,
    ) -> None:
        self.num_lanes, self.rows_per_lane = num_lanes, rows_per_lane
        self._kept, self._keep_infos, self._folder = kept_outputs, keep_infos, folder
        self._options = kept_outputs, keep_infos, folder, device, pin_memory
        self._device, self._pin_memory = "cpu" if pin_memory else device, pin_memory
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
        self._bounds: list[Ints] = [np.zeros(num_lanes, np.int64)]  # positions of lanes between segments
        self._files: list[SealedFile] = []  # those of the segments
        self._views: weakref.WeakSet[SealedArrays] = weakref.WeakSet()  # segments in states that somebody holds

    # -- as a store ----------------------------------------------------------------------------------

    @kept_property
    def device(self) -> Any:
        """The device of the columns, if they are tensors; None: they are arrays.

        Raises:
            ConfigError: this machine has no such device.
        """
        return None if self._device is None else usable_device(self._device, "replay buffer")

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
    def num_rows(self) -> int:
        """Rows that all lanes hold."""
        return int(self.filled.sum())

    @property
    def filled(self) -> Ints:
        """Rows that each lane holds: int64 [lanes]."""
        return np.minimum(self.written, self.rows_per_lane)

    def places(self, numbers: Ints) -> Ints:
        """Return the places of rows that are numbered lane by lane as they lie: int64 [R]."""
        filled = self.filled
        if filled.min() < self.rows_per_lane:
            ends = filled.cumsum()
            lanes = ends.searchsorted(numbers, "right")
            numbers = numbers + (lanes * self.rows_per_lane - (ends - filled)[lanes])
        return self.places_of(numbers)

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
        rows = self.rows_at(places)
        first, last, terminated, truncated = self._lives.take(self._owner[rows], 1)
        return Life(np.maximum(first, self.oldest(places)), last, terminated > 0, truncated > 0, self._t[rows])

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
        self._keep_views()
        out = Lanes(num_lanes, rows_per_lane, *self._options)
        out.num_steps_added, out.num_episodes_added = self.num_steps_added, self.num_episodes_added
        out.written[: self.num_lanes] = self.written
        places = self.newest(rows_per_lane)
        before, after = self.rows_at(places), out.rows_at(places)
        for mine, other in zip(self._per_row, out._per_row):
            other[after] = mine[before]
        for name, (form, leaves) in self._columns.items():
            out._columns[name] = out._with_room(name, form, leaves)
            for leaf, other in zip(leaves, out._columns[name][1]):
                put(other, after, take(leaf, before))
        out._lives, out._names, out._free = self._lives, self._names, list(self._free)
        out._bounds, out._files = list(self._bounds), list(self._files)
        more = num_lanes - self.num_lanes
        out._held = [*map(deque, self._held), *(deque() for _ in range(more))]
        out._open, out._next = self._open + [None] * more, self._next + [0] * more
        out._forget_episodes()
        return out

    @property
    def _per_row(self) -> tuple[Leaf, ...]:
        return self._number, self._t, self._owner, self._marks

    # -- state ---------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return all that the lanes hold, as arrays, numbers, text, and segments of rows that never change."""
        self._seal()
        segments = zip(self._bounds, self._bounds[1:], self._files)
        parts = [SealedArrays(partial(self._segment, low, high), file) for low, high, file in segments]
        self._views.update(parts)
        filled = np.flatnonzero(self.written)
        newest = (filled << _LANE) + self.written[filled] - 1
        rows = self.rows_at(newest)
        every = self.rows_at(self.newest())
        return {
            "rows_per_lane": self.rows_per_lane,
            "written": self.written.copy(),
            "added": [self.num_steps_added, self.num_episodes_added],
            "marks": self._marks[rows],
            "bounds": np.array(self._bounds),
            "segments": parts,
            "apart": {
                name: [_listed(leaf, every) for leaf in leaves if not _is_numbers(leaf)]
                for name, (_, leaves) in self._columns.items()
            },
            "columns": {
                name: unflatten(form, [_listed(leaf, rows) for leaf in leaves])
                for name, (form, leaves) in self._columns.items()
            },
            "lives": self._episodes(newest),
            "names": self._listed_names(),
            "is_open": np.array([owner is not None for owner in self._open], np.bool_),
        }

    def _seal(self) -> None:
        """Leave out segments that were overwritten, and make segments of the rows that will not change any more.

        Those are all rows of a lane but its newest. Segments that no checkpoint has are made again, with newer rows.
        """
        bounds, files = self._bounds, self._files
        bounds[:] = [np.pad(bound, (0, self.num_lanes - len(bound))) for bound in bounds]
        oldest, stable = self.written - self.filled, np.maximum(self.written - 1, 0)
        spans = list(pairwise(bounds))  # some lanes may have had no steps for long
        kept = [i for i, (low, high) in enumerate(spans) if (high > np.maximum(low, oldest)).any()]
        bounds[1:], files[:] = [bounds[i + 1] for i in kept], [files[i] for i in kept]
        while files and files[-1].path is None:
            del files[-1], bounds[-1]
        first = np.minimum(np.maximum(bounds[-1], oldest), stable)
        pieces = -(-int((stable - first).sum()) * _SEGMENTS // max(self.num_lanes * self.rows_per_lane, 1))
        bounds += [first + (stable - first) * piece // pieces for piece in range(1, pieces + 1)]
        files += [SealedFile() for _ in range(pieces)]

    def _segment(self, low: Ints, high: Ints) -> list[Leaf]:
        """Return the rows from one position of each lane to another: their first positions, episodes and columns."""
        lanes = np.arange(len(low)) << _LANE
        firsts = np.minimum(np.maximum(low, (self.written - self.filled)[: len(low)]), high)
        places = runs(lanes + firsts, high - firsts)
        rows = self.rows_at(places)
        ends = places[self._number[rows] < 0]  # rows that are no steps are the last ones of their episodes
        return [firsts, self._episodes(ends), *(convert_to_numpy(take(leaf, rows)) for leaf in self._leaves)]

    @property
    def _leaves(self) -> list[Leaf]:
        """The arrays of which segments have the rows."""
        columns = (leaf for _, leaves in self._columns.values() for leaf in leaves if _is_numbers(leaf))
        return [self._number, self._marks, *columns]

    def _listed_names(self) -> list[list[Any]]:
        """The names of all episodes of which there are rows, lane by lane, without what is None at their ends."""
        oldest = self.oldest(np.arange(self.num_lanes) << _LANE).tolist()
        lanes = zip(self._held, oldest)
        names = (self._names[owner] for held, first in lanes for owner in held if self._lives[1, owner] >= first)
        return [list(name) if any(part is not None for part in name[1:]) else [name.id_] for name in names]

    def _episodes(self, last: Ints) -> Ints:
        """Return the episodes that end at some places: their lives and first steps, int64 [5, E]."""
        lives = self._lives[:, self._owner[self.rows_at(last)]]
        return np.concatenate([lives, [self.steps_of(last) - (last - lives[0])]])

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_views"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _views=weakref.WeakSet())

    def _keep_views(self) -> None:
        """Let states that were asked for keep what they have."""
        if len(self._views):
            for view in list(self._views):
                view.keep()
            self._views.clear()

    @classmethod
    def from_state(
        cls,
        state: Mapping[str, Any],
        kept_outputs: Collection[str] | None = None,
        keep_infos: bool = False,
        folder: str | os.PathLike[str] | None = None,
        device: Any = None,
        pin_memory: bool = False,
    ) -> Lanes:
        """Return lanes with what `get_state` gave.

        Raises:
            ConfigError: the device cannot be used here.
            ColumnError: a column that cannot be a tensor, if there is a device.
            CheckpointError: parts of the state do not fit each other.
        """
        written, bounds = np.array(state["written"], np.int64), np.array(state["bounds"], np.int64)
        options = kept_outputs, keep_infos, folder, device, pin_memory
        out = cls(len(written), check_count("rows of a lane", state["rows_per_lane"]), *options)
        out.written = written
        filled = np.flatnonzero(written)
        newest = out.rows_at((filled << _LANE) + written[filled] - 1)
        oldest = written - out.filled
        is_place = bool(((written >= 0) & (written <= _POSITION)).all())
        _require(written.ndim == 1 and is_place and out.rows_per_lane >= _FEWEST_ROWS, "numbers of rows")
        _require(not len(filled) or {*_COLUMNS} <= state["columns"].keys(), "columns")
        _require(bounds.shape == (len(state["segments"]) + 1, len(written)), "bounds of segments")
        _require(bool((np.diff(bounds, axis=0) >= 0).all() and (bounds[0] <= oldest).all()), "bounds of segments")
        _require(bool((bounds[-1] == np.maximum(written - 1, 0)).all()), "bounds of segments")
        for name, column in state["columns"].items():
            leaves, form = flatten(column)
            _require(all(len(leaf) == len(filled) for leaf in leaves), f"newest rows of {name!r}")
            arrays = [object_leaf(leaf) if isinstance(leaf, list) else np.asarray(leaf) for leaf in leaves]
            arrays = out._as_kept(name, arrays)
            out._columns[name] = out._with_room(name, form, arrays)
            for leaf, values in zip(out._columns[name][1], arrays):
                put(leaf, newest, values)
        out._marks[newest] = state["marks"]
        episodes = [np.array(state["lives"], np.int64)]
        episodes += [
            out._fill(*part) for part in zip(bounds, bounds[1:], [part.arrays() for part in state["segments"]])
        ]
        _require(all(lives.ndim == 2 and lives.shape[0] == 5 for lives in episodes), "episodes")
        out._fill_apart(state["apart"])
        out.num_steps_added, out.num_episodes_added = (check_count("steps or episodes", n) for n in state["added"])
        names = [Name(*name) for name in state["names"]]
        out._set_episodes(np.concatenate(episodes, axis=1), names, np.asarray(state["is_open"]).tolist())
        out._bounds, out._files = list(bounds), [part.file for part in state["segments"]]
        return out

    def _fill(self, low: Ints, high: Ints, arrays: Sequence[Leaf]) -> Ints:
        """Take over the rows of a segment that lanes still hold; return its episodes."""
        firsts, lives, *values = arrays
        leaves = self._leaves
        _require(firsts.dtype == np.int64 and firsts.ndim == 1 and lives.dtype == np.int64, "a segment")
        count = len(firsts)
        oldest = np.maximum(low, self.written - self.filled)
        _require(
            count <= self.num_lanes and bool((low[count:] == high[count:]).all() and (firsts <= high[:count]).all()),
            "a segment",
        )
        _require(
            bool(((firsts <= oldest[:count]) | (firsts == high[:count])).all() and (firsts >= 0).all()), "a segment"
        )
        counts = high[:count] - firsts
        _require(
            counts.sum() <= 2 * len(self._t), "rows of a segment"
        )  # there may have been fewer lanes, with more rows
        shapes = [value.shape for value in values]
        _require(shapes == [(counts.sum(), *leaf.shape[1:]) for leaf in leaves], "columns of a segment")
        values[2:] = self._as_kept("", values[2:])
        _require(all(_can_hold(leaf, value) for leaf, value in zip(leaves, values)), "types of a segment")
        places = runs((np.arange(count) << _LANE) + firsts, counts)
        held = self.hold(places)
        rows = self.rows_at(places[held])
        for leaf, value in zip(leaves, values):
            put(leaf, rows, take(value, np.flatnonzero(held)))
        return lives

    def _fill_apart(self, columns: Mapping[str, Sequence[Any]]) -> None:
        """Take over rows of text and Python objects, which are in no segment."""
        rows = self.rows_at(self.newest())
        for name, (_, leaves) in self._columns.items():
            apart = [i for i, leaf in enumerate(leaves) if not _is_numbers(leaf)]
            _require(len(columns[name]) == len(apart), f"rows of {name!r}")
            for i, values in zip(apart, columns[name]):
                array = object_leaf(values) if isinstance(values, list) else np.asarray(values)
                fits = array.shape == (len(rows), *leaves[i].shape[1:]) and not _is_numbers(array)
                _require(fits, f"rows of {name!r}")
                leaves[i] = self._promoted(leaves[i], np.result_type(leaves[i], array))
                leaves[i][rows] = array

    def _set_episodes(self, table: Ints, names: list[Name], is_open: list[bool]) -> None:
        """Let all rows belong to episodes: [5, E], lives and first steps."""
        _require(len(is_open) == self.num_lanes, "episodes")
        lanes = table[1] >> _LANE
        _require(bool(((lanes >= 0) & (lanes < self.num_lanes)).all()), "episodes")
        order = np.argsort(table[1], kind="stable")
        order = order[table[1, order] >= self.oldest(table[1, order])]
        _require(len(order) == len(names), "names of episodes")
        table, lanes, self._names = table[:, order], lanes[order], names
        first, last = np.maximum(table[0], self.oldest(table[1])), table[1]
        counts = np.bincount(lanes, minlength=self.num_lanes)
        _require(bool((table[:2] >> _LANE == lanes).all() and (table[0] <= last).all()), "episodes")
        _require(bool((table[4] >= 0).all() and ((table[2:4] == 0) | (table[2:4] == 1)).all()), "episodes")
        every, sizes = self.newest(), last - first + 1
        _require(sizes.sum() == len(every) and bool((runs(first, sizes) == every).all()), "episodes of all rows")
        rows = self.rows_at(every)
        self._owner[rows] = np.repeat(np.arange(len(order)), sizes)
        self._t[rows] = runs(table[4] + first - table[0], sizes)
        is_step = np.ones(len(rows), np.bool_)
        is_step[np.cumsum(sizes) - 1] = False
        numbers = self._number[rows]
        _require(bool(((numbers >= 0) == is_step).all()) and numbers.max(initial=-1) < self.num_steps_added, "steps")
        self.num_steps = int(is_step.sum())
        self._lives = table[:4]
        ends = np.cumsum(counts).tolist()
        self._held = [deque(range(end - count, end)) for end, count in zip(ends, counts.tolist())]
        self._open = [held[-1] if held and going else None for held, going in zip(self._held, is_open)]
        after = (table[4] + last - table[0]).tolist()
        self._next = [after[held[-1]] if held else 0 for held in self._held]

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
            columns[Columns.INFOS] = None, [object_leaf(infos)]
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
        self._keep_views()
        counts = np.minimum(reader.lengths + 1, self.rows_per_lane)
        skipped = reader.lengths + 1 - counts
        self._columns = {name: self._with_room(name, form, values) for name, (form, values) in columns.items()}
        firsts, owners = self._begin(reader, episodes, lanes.tolist(), counts.tolist(), skipped.tolist())
        chunks, stops = np.repeat(np.arange(len(counts)), counts), counts.cumsum()
        at = np.arange(len(chunks)) - (stops - counts)[chunks]
        places: Ints = firsts[chunks] + at
        rows = self.rows_at(places)
        lengths = reader.lengths
        numbers = (lengths.cumsum() - lengths + skipped + self.num_steps_added)[chunks] + at
        numbers[stops - 1] = -1
        is_step = numbers >= 0
        targets = {True: self._targets(places, rows, None), False: self._targets(places, rows, is_step)}
        self._number[rows] = numbers
        self.num_steps_added += int(lengths.sum())
        self._t[rows] = (reader.starts + skipped)[chunks] + at
        self._owner[rows] = owners[chunks]
        if marks is not None:
            self._marks[rows] = marks[((counts + skipped).cumsum() - counts)[chunks] + at]
        for name, (_, values) in columns.items():
            at, picked = targets[name in (Columns.OBS, Columns.INFOS)]
            for leaf, value in zip(self._columns[name][1], values):
                if self.device is None:
                    leaf[at] = value
                else:
                    put(leaf, at, value if picked is None else take(value, picked))
        return places

    def _targets(self, places: Ints, rows: Ints, mask: Flags | None) -> tuple[Any, Ints | None]:
        """Return the rows to write to, those of a mask, and which of their values go there; None: all.

        Later chunks of one call may overwrite rows of earlier ones, and tensors take no row twice.
        """
        if mask is not None:
            rows = rows[mask]
        if self.device is None:
            return rows, None
        held = self.hold(places if mask is None else places[mask])
        picked = None if held.all() else np.flatnonzero(held)
        return on_device(rows if picked is None else rows[picked], self.device), picked

    def _as_kept(self, name: str, leaves: list[Leaf]) -> list[Leaf]:
        """Return the leaves of a column as what they are kept as: arrays, or tensors on the device.

        Raises:
            ColumnError: one is text or Python objects, and cannot be a tensor.
        """
        if self.device is None:
            return leaves
        for leaf in leaves:
            if not _is_numbers(leaf):
                raise ColumnError(
                    f"column {name!r} of a replay buffer on {self.device}",
                    expected="numbers, which tensors can hold",
                    found=f"rows of type {leaf.dtype}",
                    do="encode it with an env-to-module piece, or make the buffer without device",
                )
        return [as_tensor(leaf, self.device) for leaf in leaves]

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
        rows.check(objects=True)
        form, leaves = rows.form, [rows.leaf(i) for i in range(rows.num_leaves)]
        if self.device is not None:
            leaves = self._as_kept(name, leaves)
        before = self._columns.get(name)
        if before is None:
            return form, leaves
        if form != before[0]:
            leaves = flatten_like(before[0], unflatten(form, leaves))
        kinds, wanted = ([_kind(leaf) for leaf in part] for part in (leaves, before[1]))
        if kinds != wanted:
            expected, found = (
                ", ".join(f"{kind} of shape {shape}" for kind, shape in part) for part in (wanted, kinds)
            )
            raise ColumnError(
                f"column {name!r} of a replay buffer",
                expected=f"rows of {expected}, as those before",
                found=f"{found} in {reader.describe(0)}",
                do="bring them to one shape with an env-to-module piece, or begin with an empty buffer",
            )
        return before[0], leaves

    def _with_room(self, name: str, form: Form, values: list[Leaf]) -> tuple[Form, list[Leaf]]:
        """Return a column that can hold rows of the types of these."""
        if name not in self._columns:
            return form, [self._array(value.shape[1:], value.dtype) for value in values]
        form, leaves = self._columns[name]
        return form, [self._promoted(leaf, common_type(leaf, value)) for leaf, value in zip(leaves, values)]

    def _promoted(self, leaf: Leaf, dtype: Any) -> Leaf:
        if leaf.dtype == dtype:
            return leaf
        array = self._array(leaf.shape[1:], dtype)
        array[...] = leaf
        return array

    def _array(self, shape: tuple[int, ...], dtype: Any) -> Leaf:
        """Make rows of zeros, in memory, on the device, or in a file that has no name and so goes with the process."""
        shape = self.num_lanes * self.rows_per_lane, *shape
        if self.device is not None:
            return new_zeros(shape, dtype, self.device, self._pin_memory)  # type: ignore[no-any-return]
        size = math.prod(shape) * dtype.itemsize
        if self._folder is None or not size or dtype.hasobject:
            return np.zeros(shape, dtype)
        with (
            storing(f"replay buffer in {self._folder}", "free or choose another disk, or lower the capacity"),
            tempfile.TemporaryFile(dir=self._folder) as file,
        ):
            if hasattr(os, "posix_fallocate"):  # else a disk that is full would be known when rows are written
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
            mapped: Leaf = np.asarray(np.memmap(file, dtype, "r+", shape=shape))
        return mapped

    @staticmethod
    def row_bytes(columns: Iterable[Leaf]) -> int:
        """Return the bytes of a row: those of the leaves of its columns, [rows, ...] each, and of what lanes add."""
        own = 4 * np.dtype(np.int64).itemsize
        return own + sum(math.prod(leaf.shape[1:]) * leaf.dtype.itemsize for leaf in columns)

    def leaves_of(self, episodes: Sequence[Any]) -> list[Leaf]:
        """Return the newest rows of chunks, as far as they would be kept: the leaves of all columns."""
        reader = reader_of(episodes)
        return [leaf for _, leaves in self._read(reader, reader.lengths).values() for leaf in leaves]

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
        firsts, owners, written = [], [], self.written.tolist()
        ids = getattr(episodes, "ids", None)
        names = [Name(*_NAMES(episode)) for episode in episodes] if ids is None else list(map(Name, ids))
        ends = reader.ends
        table = zip(lanes, counts, skipped, names, reader.starts.tolist(), np.logical_or(*ends).tolist())
        for lane, count, skip, name, start, is_done in table:
            position, owner = written[lane], self._open[lane]
            if owner is not None and (self._names[owner].id_, self._next[lane]) == (name.id_, start):
                position -= 1  # the row of the observation with which this chunk begins
            else:
                owner = self._new_owner(name, (lane << _LANE) + position)
                self._held[lane].append(owner)
            firsts.append((lane << _LANE) + position + skip)
            written[lane] = position + skip + count
            self._open[lane] = None if is_done else owner
            self._next[lane] = start + skip + count - 1
            owners.append(owner)
        self.written = np.array(written, np.int64)
        first, owner_of = np.array(firsts, np.int64), np.array(owners, np.int64)
        self._lives[1, owner_of], self._lives[2:, owner_of] = first + counts - 1, ends
        self._forget_episodes()
        return first, owner_of

    def _forget_episodes(self) -> None:
        """Let go of episodes of which no row is held; of each other one, all held rows but the last are steps."""
        oldest = self.oldest(np.arange(self.num_lanes) << _LANE).tolist()
        for held, place in zip(self._held, oldest):
            while held and self._lives[1, held[0]] < place:
                self._free.append(held.popleft())
        self.num_steps = self.num_rows - sum(map(len, self._held))

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


def _require(fits: bool, what: str) -> None:
    if not fits:
        raise CheckpointError(
            "state of a replay buffer",
            expected="as many rows in every column as its lanes hold, each of an episode that it names",
            found=f"{what} that do not fit",
            do="restore a state that get_state of a buffer gave",
        )


def runs(firsts: Ints, counts: Ints) -> Ints:
    """Return `counts[c]` consecutive integers from `firsts[c]` on, chunk after chunk: int64."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(firsts - ends + counts, counts)


def _is_numbers(leaf: Leaf) -> bool:
    return not isinstance(leaf, np.ndarray) or leaf.dtype.kind in "biufc"


def _can_hold(leaf: Leaf, value: Leaf) -> bool:
    """True if values can be copied into a leaf."""
    return (
        np.can_cast(value.dtype, leaf.dtype) if isinstance(leaf, np.ndarray) else common_type(leaf, value) == leaf.dtype
    )


def _kind(leaf: Leaf) -> tuple[Any, tuple[int, ...]]:
    kind = "numbers" if _is_numbers(leaf) else "text" if leaf.dtype.kind == "U" else leaf.dtype
    return kind, tuple(leaf.shape[1:])


def _listed(leaf: Leaf, rows: Ints) -> Any:
    """Rows of a leaf, as a list if they are Python objects, since a state holds no arrays of objects."""
    values = convert_to_numpy(take(leaf, rows))
    return values.tolist() if values.dtype == np.object_ else values
