"""What episodes of both libraries say of themselves, what their states bring back, and their public names."""

from __future__ import annotations

import inspect
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from oracle.behaviours import holds
from oracle.cases import differences_met, random_cases
from oracle.compare import Mismatch, Outcome, leaves, settle, stack
from oracle.differences import difference
from oracle.episode_operations import round_trip
from oracle.episodes import Chunk
from oracle.libraries import EPIBATCH, RLLIB
from oracle.twins import Case, Operation, Twins, cases, content

BOX = gym.spaces.Box(-2, 3, (2,), np.float32)


def data_dict(episode: Any) -> dict[str, Any]:
    """`get_data_dict`, columns stacked; those without rows as None."""

    def column(key: str, rows: Any) -> Any:
        if key == "infos":
            return list(rows)
        if isinstance(rows, list):
            return stack(rows) if rows else None
        return rows if len(leaves(rows)[0]) else None

    return {key: column(key, rows) for key, rows in episode.get_data_dict().items()}


@difference("data-dict", Operation)
def one_row_of_flags_for_no_steps(operation: Operation, mismatch: Mismatch) -> bool:
    if operation.name != "data dict" or operation.before["steps"][0]:
        return False
    return mismatch.path[0] in ("terminateds", "truncateds") and len(mismatch.theirs) == 1 and mismatch.ours is None


def compare_data_dicts(case: Case) -> None:
    theirs, ours = case.build()
    operation = Operation("data dict", {}, content(ours), {})
    settle(Outcome(data_dict(theirs)), Outcome(data_dict(ours)), operation)


@random_cases(case=cases())
def test_data_dicts(case: Case) -> None:
    compare_data_dicts(case)


def test_a_chunk_without_steps() -> None:
    before = differences_met.copy()
    compare_data_dicts(Case(Chunk(BOX, BOX, 0), True, "own"))
    assert "data-dict" in differences_met - before


@holds("C11", "C18")
@random_cases(case=cases())
def test_what_they_say_of_themselves(case: Case) -> None:
    """The contents are compared by every operation; here by those that change nothing."""
    twins = Twins(*case.build(), case.arrays)
    for episode in (twins.theirs, twins.ours):
        episode.custom_data["kept"] = [1]
    for name in ("validate", "to_numpy"):
        twins.do(name, lambda e, name=name: getattr(e, name)())
    assert twins.ours.to_numpy() is twins.ours
    assert twins.ours.is_numpy and twins.theirs.is_numpy == bool(case.chunk.length)
    assert not twins.rebuilt


@holds("C18")
@random_cases(case=cases())
def test_a_round_trip_through_the_state(case: Case) -> None:
    round_trip(Twins(*case.build(), case.arrays))


def test_a_round_trip_of_a_chunk_without_steps() -> None:
    case = Case(Chunk(BOX, BOX, 0, lookback=2, t_started=2, extras=("vf_preds",)), True, "own")
    before = differences_met.copy()
    round_trip(Twins(*case.build(), case.arrays))
    assert "state-no-steps" in differences_met - before


REMOVED = {
    "add_temporary_timestep_data",  # raises in RLlib as well
    "get_temporary_timestep_data",
    "get_sample_batch",  # old API stack
}


def test_every_public_name_is_there() -> None:
    theirs = {name for name in dir(RLLIB.SingleAgentEpisode()) if not name.startswith("_")}
    assert theirs - REMOVED <= set(dir(EPIBATCH.SingleAgentEpisode()))


METHODS = {name for name, _ in inspect.getmembers(RLLIB.SingleAgentEpisode, inspect.isfunction) if name[0] != "_"}


@pytest.mark.parametrize("name", sorted(METHODS - REMOVED | {"__init__"}))
def test_every_argument_is_there(name: str) -> None:
    expected = inspect.signature(getattr(RLLIB.SingleAgentEpisode, name)).parameters
    found = inspect.signature(getattr(EPIBATCH.SingleAgentEpisode, name)).parameters
    assert [p for p in expected if p not in found] == []
