"""The comparison itself: what it finds, what excuses a mismatch, and that it excuses no fault beside it."""

from __future__ import annotations

import inspect
from collections import Counter
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from batches.acting import ActingCall, hold_acting
from batches.chunks import BatchChunk
from batches.learner import LearnerCall, hold_learner
from epibatch.connectors.common import BatchIndividualItems
from epibatch.connectors.learner import GeneralAdvantageEstimation
from epibatch.connectors.module_to_env import GetActions, NormalizeAndClipActions
from oracle import compare
from oracle.cases import CASES, cases_run, random_cases
from oracle.compare import Mismatch, Outcome, mismatches, outcome, settle
from oracle.episodes import Chunk, chunks, rows, spaces
from oracle.figures import END, PAGE, START, put_into, together
from oracle.libraries import BOTH, EPIBATCH, RLLIB
from oracle.probes import Raises, agree, probe, tried

ARRAY = np.array([1.0, np.nan], np.float32)


@pytest.mark.parametrize(
    ("theirs", "ours", "kind", "path"),
    [
        ({"a": 1}, {"b": 1}, "keys", ()),
        ({"a": [1, 2]}, {"a": [1]}, "length", ("a",)),
        ([1], (1,), "layout", ()),
        ({"a": {"b": ARRAY}}, {"a": {"b": ARRAY[:, None]}}, "shape", ("a", "b")),
        (ARRAY, ARRAY.astype(float), "dtype", ()),
        ((ARRAY, 0), (ARRAY, 1), "value", (1,)),
        (torch.zeros(2), np.zeros(2, np.float32), "type", ()),
        ("a", "b", "value", ()),
        (None, 0, "value", ()),
        (np.array([1.0, 0.0]), np.array([1.0, -0.0]), "value", ()),
    ],
)
def test_mismatches(theirs, ours, kind, path):
    (found,) = mismatches(theirs, ours)
    assert (found.kind, found.path) == (kind, path)
    assert mismatches(theirs, theirs) == mismatches(ours, ours) == []


@dataclass(frozen=True)
class Situation:
    number: int


def test_a_listed_difference_excuses_its_exact_situation_only(monkeypatch):
    """In situation 3 ours is one more than theirs; without the row of the page nothing is excused."""
    for name, value in {"IDS": {"one-more"}, "_explanations": [], "differences_met": Counter()}.items():
        monkeypatch.setattr(compare, name, value)

    @compare.difference("one-more", Situation)
    def one_more(situation, mismatch):
        return situation.number == 3 and mismatch.ours == mismatch.theirs + 1

    assert settle(Outcome(1), Outcome(1), Situation(9)) is True
    assert settle(Outcome(1), Outcome(2), Situation(3)) is False
    wrong = [(Situation(4), 2), (Situation(3), 3), (5, 2)]
    for ids in ({"one-more"}, set()):
        monkeypatch.setattr(compare, "IDS", ids)
        for situation, ours in wrong:
            with pytest.raises(AssertionError, match="not listed"):
                settle(Outcome(1), Outcome(ours), situation)
        wrong.append((Situation(3), 2))


def test_errors_are_compared_by_the_builtin_they_are():
    missing = outcome(lambda: {}["x"])
    assert settle(missing, Outcome(error=KeyError("other words")), None)
    with pytest.raises(AssertionError, match="error at"):
        settle(missing, Outcome(1), None)
    assert "KeyError" in str(Mismatch((), "error", KeyError("x"), 1))


def test_cases_are_counted(request):
    @random_cases(number=st.integers())
    def a_property(number):
        assert isinstance(number, int)

    a_property()
    assert cases_run.pop(request.node.nodeid) == CASES


@random_cases(chunk=chunks(), space=spaces, seed=st.integers(0, 9))
def test_chunks_are_the_same_episode_in_both_libraries(chunk: Chunk, space: Any, seed: int):
    assert all(space.contains(row) for row in rows(space, np.random.default_rng(seed), 3))
    theirs, ours = (chunk.build(library) for library in BOTH)
    for name in ("id_", "t", "t_started", "is_terminated", "is_truncated"):
        assert getattr(theirs, name) == getattr(ours, name)
    assert ours.is_numpy and theirs.is_numpy == (chunk.length > 0), "O21: without steps RLlib's is not"
    assert len(theirs) == len(ours) == chunk.length and ours.observations.lookback == chunk.lookback


def test_rllibs_pieces_note_the_arguments_that_they_note_with_the_whole_stack(monkeypatch):
    box, make = gym.spaces.Box(-1, 1, (2,)), RLLIB.module_to_env.NormalizeAndClipActions
    given = {"normalize_actions": False, "clip_actions": True}
    quick = make(box, box, **given).get_ctor_args_and_kwargs()
    monkeypatch.setattr(RLLIB.module("connectors.connector_v2"), "inspect", inspect)
    assert quick == make(box, box, **given).get_ctor_args_and_kwargs()
    assert quick == ((), {"input_observation_space": box, "input_action_space": box, **given})


def refuse():
    raise IndexError("no such row")


@pytest.mark.parametrize(
    ("found", "expected", "agrees"),
    [
        (1, 1.0, False),
        (1, True, False),
        ([1], (1,), False),
        ({"a": 1}, {"b": 1}, False),
        (refuse, Raises(IndexError, "^no such row$", "refuse"), True),
        (refuse, Raises(LookupError, "such"), False),
        (refuse, Raises(IndexError, "such column"), False),
        (refuse, Raises(IndexError, "such", "get"), False),
    ],
)
def test_outcomes_of_probes(found, expected, agrees):
    found = tried(found) if callable(found) else found
    assert agree({"a": [found]}, {"a": [expected]}) is agrees


def name_of(library):
    return library.name


@pytest.mark.parametrize(
    ("ours", "theirs", "failing"),
    [
        ("epibatch", "RLlib", []),
        ("epibatch", "rllib", ["rllib"]),
        ("RLlib", "RLlib", ["epibatch", "rllib"]),
    ],
)
def test_a_probe_fails_unless_both_outcomes_are_as_listed_and_differ(ours, theirs, failing):
    assert (EPIBATCH.name, RLLIB.name) == ("epibatch", "RLlib")
    test = probe("O1", ours=ours, theirs=theirs)(name_of)
    outcomes = {side: tried(lambda side=side: test(side)) for side in ("epibatch", "rllib")}
    assert [side for side, found in outcomes.items() if isinstance(found, AssertionError)] == failing


def test_figures_of_several_runs_are_put_into_the_page():
    first = {"cases": {"a::p": 10, "b::p": 20}, "differences": {"O19": 3}, "failed": []}
    again = {"cases": {"a::p": 7}, "differences": {"O19": 2}, "failed": ["a::p"]}
    whole = together([first, again])
    assert whole == {"cases": {"a::p": 7, "b::p": 20}, "differences": {"O19": 5}, "failed": ["a::p"]}
    assert together([again, first])["failed"] == [], "a property that ran again without a mismatch"
    page = PAGE.read_text(encoding="utf-8")
    new = put_into(page, whole)
    assert new != page and put_into(new, whole) == new
    assert new.partition(START)[0] == page.partition(START)[0] and new.partition(END)[2] == page.partition(END)[2]
    assert "27 random cases of 2\nproperties, at least 7 of each; 1 tests failed." in new


# -- planted faults --------------------------------------------------------------------------------

BOX, CHOICE = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(2)
LATE = gym.spaces.Tuple((gym.spaces.Discrete(2, start=3), gym.spaces.Discrete(2, start=3)))


def chunk(actions: Any = CHOICE, length: int = 3, **fields: Any) -> BatchChunk:
    return BatchChunk(BOX, actions, length, **{"seed": 5, "id_": "e", **fields})


def another_action(batch: Any) -> None:
    column = batch["actions_for_env"]
    batch["actions_for_env"] = type(column)(column.data + 1, column.counts)


def other_past_rewards(batch: Any) -> None:
    batch["default_policy"]["past_rewards"][-1, -1] += 1


def advantages_of_64_bits(batch: Any) -> None:
    batch["default_policy"]["advantages"] = batch["default_policy"]["advantages"].double()


def targets_in_a_column(batch: Any) -> None:
    batch["default_policy"]["value_targets"] = torch.unsqueeze(batch["default_policy"]["value_targets"], -1)


WRITTEN = LearnerCall((chunk(reward="int"),), front=("rewards_at_indices", "past_rewards"), seed=1)
ESTIMATED = LearnerCall((chunk(),), ppo=(0.9, 0.8))
BATCHES = {
    "greedy-logp": (GetActions, lambda batch: batch.pop("action_logp"), ActingCall((chunk(),))),
    "O43": (
        GetActions,
        lambda batch: batch.update(action_logp=batch["action_logp"] + 1),
        ActingCall((chunk(),), given="actions"),
    ),
    "actions-for-env": (NormalizeAndClipActions, another_action, ActingCall((chunk(),), normalize=False)),
    "discrete-start": (
        GetActions,
        lambda batch: batch.update(actions=(batch["actions"][0], batch["actions"][1] - 3)),
        ActingCall((chunk(LATE),)),
    ),
    "column-types": (BatchIndividualItems, other_past_rewards, WRITTEN),
    "O28": (GeneralAdvantageEstimation, advantages_of_64_bits, ESTIMATED),
    "bootstrap-targets": (GeneralAdvantageEstimation, targets_in_a_column, ESTIMATED),
}


@pytest.mark.parametrize("beside", BATCHES)
def test_a_fault_of_a_batch_is_found_beside_a_listed_difference(beside: str, monkeypatch: pytest.MonkeyPatch) -> None:
    piece, spoil, call = BATCHES[beside]
    right = piece.run

    def wrong(self: Any, batch: Any, call: Any) -> Any:
        out = right(self, batch, call)
        spoil(out)
        return out

    hold: Any = hold_acting if isinstance(call, ActingCall) else hold_learner
    hold(call)
    monkeypatch.setattr(piece, "run", wrong)
    with pytest.raises(AssertionError, match="not listed"):
        hold(call)
