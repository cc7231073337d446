"""The comparison itself: what it finds, what excuses a mismatch, what probes take for an outcome, and the figures."""

from __future__ import annotations

import inspect
from collections import Counter
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from oracle import differences
from oracle.cases import CASES, cases_run, random_cases
from oracle.compare import Mismatch, Outcome, mismatches, outcome, settle
from oracle.episodes import Chunk, chunks
from oracle.figures import END, PAGE, START, put_into, text_of, together
from oracle.libraries import BOTH, EPIBATCH, RLLIB
from oracle.modules import build_module
from oracle.probes import Raises, agree, plain, probe, tried
from oracle.spaces import rows, spaces

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
        (np.int64(1), np.int32(1), "dtype", ()),
        (torch.zeros(2), np.zeros(2, np.float32), "type", ()),
        ("a", "b", "value", ()),
        (None, 0, "value", ()),
        (0.0, -0.0, "value", ()),
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


@pytest.fixture
def listed(monkeypatch):
    """A listed difference of this test alone: in situation 3 ours is one more than theirs."""
    monkeypatch.setattr(differences, "IDS", frozenset({"one-more"}))
    monkeypatch.setattr(differences, "_explanations", [])
    monkeypatch.setattr(differences, "differences_met", Counter())

    @differences.difference("one-more", Situation)
    def one_more(situation, mismatch):
        return situation.number == 3 and mismatch.ours == mismatch.theirs + 1

    return one_more


def test_a_listed_difference_excuses_its_exact_situation_only(listed):
    assert settle(Outcome(1), Outcome(1), Situation(9)) is True
    assert settle(Outcome(1), Outcome(2), Situation(3)) is False
    for situation, ours in ((Situation(4), 2), (Situation(3), 3), (5, 2)):
        with pytest.raises(AssertionError, match="not listed"):
            settle(Outcome(1), Outcome(ours), situation)


def test_without_its_row_on_the_page_a_difference_excuses_nothing(listed, monkeypatch):
    monkeypatch.setattr(differences, "IDS", frozenset())
    with pytest.raises(AssertionError, match="not listed"):
        settle(Outcome(1), Outcome(2), Situation(3))


def test_errors_are_compared_by_the_builtin_they_are():
    def missing():
        raise KeyError("x")

    assert settle(outcome(missing), Outcome(error=KeyError("other words")), None)
    with pytest.raises(AssertionError, match="error at"):
        settle(outcome(missing), Outcome(1), None)
    assert "KeyError" in str(Mismatch((), "error", KeyError("x"), 1))


def test_the_page_is_read():
    assert {f"O{number}" for number in range(1, 63)} <= differences.IDS


def test_cases_are_counted(request):
    @random_cases(number=st.integers())
    def a_property(number):
        assert isinstance(number, int)

    a_property()
    assert cases_run.pop(request.node.nodeid) == CASES


@random_cases(space=spaces, seed=st.integers(0, 9))
def test_rows_are_members_of_their_space(space, seed):
    assert all(space.contains(row) for row in rows(space, np.random.default_rng(seed), 3))


@random_cases(chunk=chunks())
def test_chunks_are_the_same_episode_in_both_libraries(chunk: Chunk):
    theirs, ours = (chunk.build(library) for library in BOTH)
    for name in ("id_", "t", "t_started", "is_terminated", "is_truncated"):
        assert getattr(theirs, name) == getattr(ours, name)
    assert ours.is_numpy and theirs.is_numpy == (chunk.length > 0), "O21: without steps RLlib's is not"
    assert len(theirs) == len(ours) == chunk.length
    assert ours.observations.lookback == chunk.lookback


def test_rllibs_pieces_note_the_arguments_that_they_note_with_the_whole_stack(monkeypatch):
    box, make = gym.spaces.Box(-1, 1, (2,)), RLLIB.module_to_env.NormalizeAndClipActions
    given = {"normalize_actions": False, "clip_actions": True}
    quick = make(box, box, **given).get_ctor_args_and_kwargs()
    monkeypatch.setattr(RLLIB.module("connectors.connector_v2"), "inspect", inspect)
    assert quick == make(box, box, **given).get_ctor_args_and_kwargs()
    assert quick == ((), {"input_observation_space": box, "input_action_space": box, **given})


@pytest.mark.parametrize("library", BOTH, ids=str)
@pytest.mark.parametrize("state", [0, 3])
def test_modules_are_what_pipelines_ask_for(library, state):
    box = gym.spaces.Box(-1, 1, (2,))
    module = build_module(library, box, gym.spaces.Discrete(3), state=state, multi=True)["default_policy"]
    assert module.is_stateful() == bool(state)
    obs = torch.ones(4, 5, 2) if state else torch.ones(4, 2)
    assert module.compute_values({"obs": obs}).shape == obs.shape[:-1]


def refuse(message="no such row"):
    raise IndexError(message)


@pytest.mark.parametrize(
    ("found", "expected"),
    [(1, 1.0), (1, True), ([1], (1,)), ([1], [1, 2]), ({"a": 1}, {"b": 1}), (None, []), ("a", Raises(IndexError, ""))],
)
def test_outcomes_of_another_type_or_value_do_not_agree(found, expected):
    assert not agree(found, expected)
    assert agree(found, found)


@pytest.mark.parametrize(
    ("expected", "agrees"),
    [
        (Raises(IndexError, "such"), True),
        (Raises(IndexError, "^no such row$", "refuse"), True),
        (Raises(LookupError, "such"), False),
        (Raises(IndexError, "such column"), False),
        (Raises(IndexError, "such", "get"), False),
    ],
)
def test_an_error_is_known_by_type_message_and_place(expected, agrees):
    assert agree({"a": [tried(refuse)]}, {"a": [expected]}) is agrees


def test_plain_values():
    rows = {"a": [np.arange(2), (torch.ones(1), np.float32(0.5))]}
    assert agree(plain(rows), {"a": [[0, 1], ([1.0], 0.5)]})


def name_of(library):
    return library.name


def one(library):
    return 1


def wrong_on_rllib(library):
    return library.name if library is EPIBATCH else library.NoSuchName


@pytest.mark.parametrize(
    ("function", "ours", "theirs", "failing"),
    [
        (name_of, "epibatch", "RLlib", []),
        (name_of, "epibatch", "rllib", ["rllib"]),
        (name_of, "RLlib", "RLlib", ["epibatch", "rllib"]),
        (wrong_on_rllib, "epibatch", Raises(KeyError, "NoSuchName"), ["rllib"]),
        (one, 1, 1, ["epibatch", "rllib"]),
    ],
)
def test_a_probe_fails_unless_both_outcomes_are_as_listed_and_differ(function, ours, theirs, failing):
    assert (EPIBATCH.name, RLLIB.name) == ("epibatch", "RLlib")
    test = probe("O1", ours=ours, theirs=theirs)(function)
    failed = [side for side in ("epibatch", "rllib") if isinstance(tried_test(test, side), AssertionError)]
    assert failed == failing


def tried_test(test, side):
    return tried(lambda: test(side))


FIGURES = {
    "cases": {"tests/conformance/a/test_x.py::test_p[1]": 1000, "tests/conformance/a/test_x.py::test_p[2]": 1200},
    "differences": {"O19": 3, "arrays": 2500},
    "failed": [],
}


def test_text():
    text = text_of(FIGURES)
    assert "2,200 random cases of 2\nproperties, at least 1,000 of each; 0 unexplained mismatches." in text
    assert "| `a/test_x.py::test_p` | 2 | 2,200 |" in text
    assert "| arrays | 2,500 |" in text
    assert "1 tests failed" in text_of({**FIGURES, "failed": ["x"]})


def test_runs_are_put_together():
    again = {"cases": {"tests/conformance/a/test_x.py::test_p[1]": 7}, "differences": {"O19": 2}, "failed": ["y"]}
    whole = together([FIGURES, again])
    assert list(whole["cases"].values()) == [7, 1200]
    assert whole["differences"] == {"O19": 5, "arrays": 2500}
    assert whole["failed"] == ["y"]
    mended = {"cases": {"y": 1000}, "differences": {}, "failed": []}
    assert together([FIGURES, again, mended])["failed"] == [], "a property that ran again without a mismatch"
    assert together([mended, again])["failed"] == ["y"]


def test_only_what_is_between_the_marks_changes():
    page = f"above\n{START}old\n{END}below\n"
    new = put_into(page, FIGURES)
    assert new.startswith(f"above\n{START}The last long run")
    assert new.endswith(f"{END}below\n")
    assert put_into(new, FIGURES) == new
    assert "old" not in new


def test_the_page_has_a_place_for_them():
    page = PAGE.read_text(encoding="utf-8")
    assert put_into(put_into(page, FIGURES), FIGURES) == put_into(page, FIGURES) != page
