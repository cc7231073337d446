"""Making, resetting and stepping episodes of both libraries, rightly and wrongly."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import strategies as st

from oracle.behaviours import holds
from oracle.cases import differences_met, random_cases
from oracle.compare import Outcome, outcome, settle
from oracle.episode_operations import ENDS, Step, reset, step
from oracle.episodes import Chunk, chunks
from oracle.libraries import EPIBATCH, RLLIB
from oracle.twins import Case, Operation, Twins, cases, content

BOX = gym.spaces.Box(-2, 3, (2,), np.float32)
steps = st.builds(
    Step, st.integers(0, 99), st.sampled_from(ENDS), st.sampled_from(["right", "right", "right", "late", "missing"])
)


@holds("C12")
@random_cases(case=cases(), added=st.lists(st.one_of(steps, st.none()), max_size=4))
def test_steps_and_resets(case: Case, added: list[Step | None]) -> None:
    """None stands for a reset, which a running episode refuses."""
    twins = Twins(*case.build(grows=True), case.arrays)
    for what in added:
        if what is None:
            reset(twins, case.chunk)
        else:
            step(twins, case.chunk, what)


@random_cases(chunk=chunks(length=0, t_started=0, lookback=0), added=st.lists(steps, max_size=4), early=st.booleans())
def test_an_episode_from_its_reset_on(chunk: Chunk, added: list[Step], early: bool) -> None:
    """A new episode gets its reset and some steps; `early` tries a step before the reset first."""
    spaces = {"observation_space": chunk.observation_space, "action_space": chunk.action_space}
    twins = Twins(*(library.SingleAgentEpisode(id_="e", **spaces) for library in (RLLIB, EPIBATCH)), arrays=False)
    if early:
        step(twins, chunk, Step())
    reset(twins, chunk)
    for what in added:
        step(twins, chunk, what)


def make(library: Any, chunk: Chunk, drop: str | None, lookback: int | str) -> Any:
    """An episode from data, of which one column may have a row too few."""
    columns = {key: list(rows) for key, rows in chunk.columns.items() if key != "extra_model_outputs"}
    extras = {key: list(rows) for key, rows in chunk.columns["extra_model_outputs"].items()}
    for rows in (columns.get(drop), *(extras.values() if drop == "extras" else ())):
        if rows:
            rows.pop()
    return library.SingleAgentEpisode(
        id_="e", **columns, extra_model_outputs=extras, t_started=chunk.t_started, len_lookback_buffer=lookback
    )


@holds("C1", "C2")
@random_cases(
    chunk=chunks(),
    lookback=st.one_of(st.just("auto"), st.integers(0, 70)),
    drop=st.sampled_from([None, None, None, "observations", "infos", "actions", "rewards", "extras"]),
)
def test_making_one_from_data(chunk: Chunk, lookback: int | str, drop: str | None) -> None:
    operation = Operation("make", {"lookback": lookback, "drop": drop}, {}, {})
    found = [outcome(lambda lib=library: make(lib, chunk, drop, lookback)) for library in (RLLIB, EPIBATCH)]
    if any(one.error is not None for one in found):
        settle(*found, operation)
    else:
        settle(*(Outcome(content(one.value)) for one in found), operation)


@pytest.mark.parametrize("early", [True, False])
def test_each_difference(early):
    chunk = Chunk(BOX, BOX, 0)
    before = differences_met.copy()
    episodes = (library.SingleAgentEpisode(id_="e") for library in (RLLIB, EPIBATCH))
    twins = Twins(*episodes, arrays=False)
    if early:
        step(twins, chunk, Step())
    reset(twins, chunk)
    assert ("O23" in differences_met - before) is early


def test_the_first_step_of_a_chunk_decides_on_its_model_outputs() -> None:
    chunk = Chunk(BOX, BOX, 0, extras=("vf_preds",))
    before = differences_met.copy()
    twins = Twins(*Case(chunk, False, "own").build(), arrays=False)
    step(twins, chunk, Step(extras="missing"))
    assert "extra-keys" in differences_met - before
    assert twins.ours.extra_model_outputs == {}
