"""Cutting, slicing and joining chunks of both libraries."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import strategies as st

from oracle.behaviours import holds
from oracle.cases import differences_met, random_cases
from oracle.episode_operations import ENDS, Step, cut, join, slice_, step
from oracle.episodes import Chunk
from oracle.libraries import EPIBATCH, RLLIB
from oracle.spaces import rows
from oracle.twins import Case, Twins, cases

BOX = gym.spaces.Box(-2, 3, (2,), np.float32)
lookbacks = st.integers(0, 6)
bounds = st.one_of(st.none(), st.integers(-8, 8), st.integers(-70, 70))


def twins_of(case: Case) -> Twins:
    theirs, ours = case.build(grows=True)
    for episode in (theirs, ours):
        episode.agent_id, episode.module_id, episode.multi_agent_episode_id = "a", "m", "ma"
        episode.custom_data["kept"] = [1]
    return Twins(theirs, ours, case.arrays)


@holds("C13", "C14")
@random_cases(case=cases(), k=st.one_of(lookbacks, st.integers(-1, 70)))
def test_cut(case: Case, k: int) -> None:
    cut(twins_of(case), k)


@holds("C16")
@random_cases(
    case=cases(),
    start=bounds,
    stop=bounds,
    step=st.sampled_from([None, None, None, None, 1, 2, 3, -1, -2]),
    lookback=st.one_of(st.none(), lookbacks, st.integers(-1, 70)),
)
def test_slice(case: Case, start: Any, stop: Any, step: Any, lookback: Any) -> None:
    slice_(twins_of(case), slice(start, stop, step), lookback)


WRONG = ("id", "time", "observation", "nesting", "extras", "not reset", "done")


@holds("C15")
@random_cases(
    case=cases(end="running"),
    k=lookbacks,
    added=st.lists(st.builds(Step, st.integers(0, 99), st.sampled_from(ENDS)), max_size=3),
    wrong=st.sampled_from([None, None, None, *WRONG]),
    turned=st.sampled_from([None, None, "first", "second"]),
)
def test_concat(case: Case, k: int, added: list[Step], wrong: str | None, turned: str | None) -> None:
    """A chunk and the one after it, back together; `turned` is the one that only now becomes arrays."""
    first = twins_of(case)
    second = twins_of(case)
    cut(second, k)
    for one in added:
        if not second.ours.is_done:
            step(second, case.chunk, one)
    second.theirs.custom_data["second"] = second.ours.custom_data["second"] = 2
    if turned:
        (first if turned == "first" else second).theirs.to_numpy()
    spoil(first, second, case, wrong)
    join(first, (second.theirs, second.ours), wrong or "right")


def spoil(first: Twins, second: Twins, case: Case, wrong: str | None) -> None:
    """Make the second chunk one that does not follow, or the first one that is not followed."""
    chunk = case.chunk
    if wrong == "id":
        second.theirs.id_ = second.ours.id_ = "another"
    elif wrong == "time":
        second.theirs.t_started += 1
        second.theirs.t += 1
        second.ours.t_started += 1
    elif wrong == "done":
        first.theirs.is_terminated = first.ours.is_terminated = True
    elif wrong in ("observation", "nesting", "not reset"):
        other = rows(chunk.observation_space, np.random.default_rng(chunk.seed + 1), 1)[0]
        if wrong == "nesting":
            other = {"another": (other,)}
        given = {"observations": [] if wrong == "not reset" else [other], "t_started": first.ours.t}
        for twins_side, library in (("theirs", RLLIB), ("ours", EPIBATCH)):
            setattr(second, twins_side, library.SingleAgentEpisode(id_=chunk.id_, **given))
    elif wrong == "extras":
        for episode in (second.theirs, second.ours):
            if len(episode) and episode.extra_model_outputs:
                episode.extra_model_outputs.pop(sorted(episode.extra_model_outputs)[0])


def slice_no_rows(twins: Twins) -> None:
    for episode in (twins.theirs, twins.ours):  # or the cut would lose them, and with them its nested arrays
        episode.agent_id = episode.module_id = episode.multi_agent_episode_id = None
    cut(twins, 0)
    slice_(twins, slice(1, None), 1)


FLAT = Chunk(BOX, BOX, 4, end="terminated")
RUNNING = Chunk(BOX, BOX, 4, lookback=2, t_started=2)
NESTED = Chunk(gym.spaces.Tuple((BOX,)), BOX, 4, lookback=3, t_started=3)
NESTED_ACTIONS = Chunk(BOX, gym.spaces.Tuple((BOX,)), 4)
WITH_OUTPUTS = Chunk(BOX, BOX, 4, extras=("vf_preds",))
EXAMPLES = {
    "flags of a slice behind the end": ("O18", FLAT, lambda twins: slice_(twins, slice(0, 9), None)),
    "names after a cut": ("O18", RUNNING, lambda twins: cut(twins, 1)),
    "cut of nested arrays": ("O60", NESTED, lambda twins: cut(twins, 3)),
    "slice of nested arrays": ("O60", NESTED, lambda twins: slice_(twins, slice(0, 3), None)),
    "slice of nested arrays without rows": ("O60", NESTED_ACTIONS, slice_no_rows),
    "start before the first step": ("slice-bounds", RUNNING, lambda twins: slice_(twins, slice(-9, None), None)),
    "bounds that cross": ("slice-bounds", RUNNING, lambda twins: slice_(twins, slice(3, 1), None)),
    "steps that come out even": ("slice-bounds", RUNNING, lambda twins: slice_(twins, slice(0, 4, 2), None)),
    "steps that do not": ("slice-bounds", FLAT, lambda twins: slice_(twins, slice(0, 3, 2), None)),
    "negative lookback of a cut": ("argument-errors", RUNNING, lambda twins: cut(twins, -1)),
    "negative lookback of a slice": ("argument-errors", RUNNING, lambda twins: slice_(twins, slice(0, 2), -1)),
    "joining no steps to arrays": ("mixed-concat", RUNNING, lambda twins: join_after_cut(twins, RUNNING, None)),
    "another nesting": ("state-errors", RUNNING, lambda twins: join_after_cut(twins, RUNNING, "nesting")),
    "no observations": (
        "state-errors",
        RUNNING,
        lambda twins: join_after_cut(twins, RUNNING, "not reset"),
    ),
    "a model output too many": ("O23", WITH_OUTPUTS, lambda twins: step(twins, WITH_OUTPUTS, Step(extras="late"))),
    "a model output too few": ("O23", WITH_OUTPUTS, lambda twins: step(twins, WITH_OUTPUTS, Step(extras="missing"))),
    "left half joined": ("refused-calls", WITH_OUTPUTS, lambda twins: join_after_cut(twins, WITH_OUTPUTS, "extras")),
}


def join_after_cut(twins: Twins, chunk: Chunk, wrong: str | None) -> None:
    second = twins_of(Case(chunk, twins.arrays, "own"))
    cut(second, 0)
    if wrong == "extras":
        step(second, chunk, Step())
    spoil(twins, second, Case(chunk, twins.arrays, "own"), wrong)
    join(twins, (second.theirs, second.ours), wrong or "right")


@pytest.mark.parametrize("example", EXAMPLES)
def test_each_difference(example):
    identity, chunk, do = EXAMPLES[example]
    twins = twins_of(Case(chunk, True, "own"))
    before = differences_met.copy()
    do(twins)
    assert identity in differences_met - before
