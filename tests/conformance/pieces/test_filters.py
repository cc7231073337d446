"""`MeanStdFilter` beside RLlib's for random spaces, and beside statistics that are worked out anew for every row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import strategies as st

from batches.playing import CHOICE, Playing, changed, piece, played_lengths
from batches.stages import Flat, column_of, flat_mismatches, snapshot
from oracle.cases import random_cases
from oracle.compare import Mismatch, Outcome, difference, each, outcome, settle, space_struct, stack, unstack
from oracle.episodes import boxes, spaces
from oracle.libraries import BOTH, EPIBATCH, RLLIB, Library
from oracle.makers import filtered
from oracle.probes import holds

SETTINGS = ({}, {}, {"clip_by_value": 0.7}, {"de_std_to_one": False}, {"de_mean_to_zero": False},
            {"clip_by_value": None}, {"update_stats": False})  # fmt: skip


@dataclass(frozen=True)
class Filtering:
    """Episodes that a filter is shown, and those that a frozen twin is shown with the state it leaves."""

    play: Playing
    settings: dict[str, Any]
    twin: Playing | None

    @property
    def floats(self) -> bool:
        """Whether an observation is a Box of floats, the one kind that RLlib filters as it says."""
        return isinstance(self.play.space, gym.spaces.Box) and self.play.space.dtype.kind == "f"

    def run(self, library: Library, recorded: bool = False) -> Any:
        """What both give, their space, and the statistics of the first."""

        spaces_ = self.play.space, CHOICE
        made = piece(library, "MeanStdFilter", spaces_, **self.settings)
        out: dict[str, Any] = {"shown": self.play.shown(library, made, recorded), "space": repr(made.observation_space)}
        if self.floats:
            out |= statistics(library, made)
        if self.twin:
            twin = piece(library, "MeanStdFilter", spaces_, **{**self.settings, "update_stats": False})
            twin.set_state(made.get_state())
            out["twin"] = self.twin.shown(library, twin, recorded)
        return snapshot(out)

    def expected(self, column: str) -> Flat:
        """What ours should show, from the observations themselves: `shown`, or `twin` for the frozen one."""
        untouched: list[Any] = self.play.shown(EPIBATCH, lambda **call: None)
        known = [*range(1, len(untouched) + 1)] if self.settings.get("update_stats", True) else [0] * len(untouched)
        if column == "twin":
            assert self.twin is not None
            later = self.twin.shown(EPIBATCH, lambda **call: None)
            untouched, known = untouched + later, known + [known[-1]] * len(later)

        def shifted(space: Any, values: Any) -> Any:
            if not isinstance(space, gym.spaces.Box):
                return values
            all_ = values.astype(np.float64)
            made = [self._row(own, all_[:count]) for own, count in zip(all_, known)]
            return np.array(made).astype(space.dtype if space.dtype.kind == "f" else np.float32)

        made = unstack(each(shifted, space_struct(self.play.space), stack(untouched)))
        return column_of(snapshot({column: made[-len(later) :] if column == "twin" else made}), column)

    def _row(self, row: Any, seen: Any) -> Any:
        """One row, by the mean and deviation of all that was counted; what has not varied is not scaled."""
        if not len(seen):
            return row
        deviation = seen.std(0, ddof=1) if len(seen) > 1 else np.zeros_like(row)
        if self.settings.get("de_mean_to_zero", True):
            row = row - seen.mean(0)
        if self.settings.get("de_std_to_one", True):
            row = row / np.where(seen.max(0) > seen.min(0), deviation + 1e-6, 1.0)
        limit = self.settings.get("clip_by_value", 10.0)
        return row if limit is None else np.clip(row, -limit, limit)

    def is_right(self, ours: Flat) -> bool:
        """Whether ours shows what it should, in spaces that say so."""
        limit = self.settings.get("clip_by_value", 10.0)
        limit = np.inf if limit is None else limit

        def cut(space: Any) -> Any:
            if not isinstance(space, gym.spaces.Box):
                return space
            return gym.spaces.Box(-limit, limit, space.shape, space.dtype.type if space.dtype.kind == "f" else "f4")

        columns = ["shown", "twin"] if self.twin else ["shown"]
        space = column_of(ours, "space")
        return space == {(): repr(changed(cut, self.play.space))} and all(
            close(column_of(ours, name), self.expected(name)) for name in columns
        )


def statistics(library: Library, made: Any) -> dict[str, Any]:
    """What a filter of one Box knows."""
    if library is RLLIB:
        known = made._filters[None].running_stats
        return {"count": known.num_pushes, "mean": known.mean_array.ravel(), "squares": known.sum_sq_diff_array.ravel()}
    known = made.get_state()["since"]
    return {name: known[name] for name in ("count", "mean", "squares")}


def close(one: Flat, other: Flat) -> bool:
    """Whether rows are alike up to the rounding that both libraries do.

    RLlib rounds the variance, its root and the root plus 1e-6 to float32, which moves what is divided by them by up to
    2.5 * 2**-24 of itself; either side may round the result down or up. What should be 0 is 0 up to float64's rounding,
    divided by 1e-6.
    """

    def near(a: Any, b: Any) -> bool:
        a, b = np.asarray(a), np.asarray(b)
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        tolerance = {2: (2.0**-10, 2.0**-24), 4: (5 * 2.0**-24, 1e-9), 8: (3 * 2.0**-24, 1e-9)}
        rtol, atol = tolerance[a.dtype.itemsize] if a.dtype.kind == "f" else (0, 0)
        return np.allclose(a.astype(np.float64), b.astype(np.float64), rtol=rtol, atol=atol)

    return list(one) == list(other) and all(near(own, other[path]) for path, own in one.items())


def compared(theirs: Flat, ours: Flat) -> list[Mismatch]:
    """The columns that differ by more than rounding; statistics are sums of up to 21 numbers in float64."""
    found = []
    for mismatch in flat_mismatches(theirs, ours):
        name, value = mismatch.path[-1], mismatch.kind == "value"
        if value and name in ("shown", "twin") and close(mismatch.theirs, mismatch.ours):
            continue
        if value and name in ("mean", "squares") and np.allclose(mismatch.theirs[()], mismatch.ours[()], 1e-14, 1e-14):
            continue
        found.append(mismatch)
    return found


@difference("O61", Filtering)
def other_than_boxes_of_floats(situation: Filtering, mismatch: Mismatch) -> bool:
    """RLlib fails on all but single Boxes and flags, and cuts what it makes of integers to whole numbers."""
    return not situation.floats


@difference("O50", Filtering)
def entries_that_have_not_varied(situation: Filtering, mismatch: Mismatch) -> bool:
    """RLlib divides by 1e-6 what has not varied yet, or was not counted; here it is shifted only, or stays."""
    if mismatch.kind != "value" or mismatch.path[-1] not in ("shown", "twin"):
        return False
    pairs = [(np.asarray(leaf), np.asarray(mismatch.ours[path])) for path, leaf in mismatch.theirs.items()]
    return all((np.abs(a) > np.abs(b))[~np.isclose(a, b, rtol=1e-3, atol=1e-3)].all() for a, b in pairs)


@difference("filter-no-limit", Filtering)
def no_limit(situation: Filtering, mismatch: Mismatch) -> bool:
    """With `clip_by_value=None` RLlib has no space; here the space has no bounds."""
    unlimited = situation.settings.get("clip_by_value", 10.0) is None
    return unlimited and mismatch.kind == "error" and isinstance(mismatch.theirs, TypeError)


plays = st.builds(Playing, st.one_of(boxes(), boxes(), spaces), played_lengths, st.integers(0, 1000))


@holds("C52")
@random_cases(play=plays, settings=st.sampled_from(SETTINGS), later=st.sampled_from([None, (0,), (2,)]))
def test_mean_std_filter(play, settings, later):
    filter_beside(play, settings, later)


def test_flags_that_have_not_varied() -> None:
    """RLlib divides them by 1e-6, and what comes of that does not fit into int8."""
    filter_beside(Playing(gym.spaces.MultiBinary(1), (0,), 0), {"clip_by_value": None}, (0,))


def filter_beside(play, settings, later):
    twin = later and Playing(play.space, later, play.seed + 1)
    situation = Filtering(play, settings, twin)
    theirs = outcome(lambda: situation.run(RLLIB))
    for recorded in (False, True):
        ours = situation.run(EPIBATCH, recorded)
        assert situation.is_right(ours)
        settle(theirs, Outcome(ours), situation, compared)


@holds("C52")
def test_the_first_merge_of_filters() -> None:
    """RLlib's first merge is exact; its later ones are not (O1)."""
    space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    for library in BOTH:
        runners = [piece(library, "MeanStdFilter", (space, CHOICE)) for _ in range(2)]
        for made, values in zip(runners, [[1.0, 2.0, 3.0], [10.0, 20.0]]):
            filtered(library, made, np.array(values)[:, None])
        merger = piece(library, "MeanStdFilter", (space, CHOICE))
        merger.set_state(merger.merge_states([made.get_state() for made in runners]))
        frozen = piece(library, "MeanStdFilter", (space, CHOICE), update_stats=False)
        frozen.set_state(merger.get_state())
        expected = (9.0 - 7.2) / np.std([1, 2, 3, 10, 20], ddof=1)
        assert filtered(library, frozen, [np.array([9.0])])[0][0] == pytest.approx(expected, rel=1e-5)
