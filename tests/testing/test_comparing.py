"""The first difference of two structures is found and named; rows are told apart by episode."""

from __future__ import annotations

import numpy as np
import pytest

from epibatch.episodes import SingleAgentEpisode
from epibatch.testing.comparing import difference, facts_of, rows_of

NAN = float("nan")


@pytest.mark.parametrize(
    "same",
    [
        1,
        "a",
        None,
        NAN,
        [1, (2, 3)],
        {"a": np.array([1.0, NAN])},
        np.array(["x", None], object),
        np.zeros((0, 3)),
        np.array(3),
    ],
)
def test_the_same(same):
    assert difference(same, same) == ""
    assert difference(same, same, near=True) == ""


@pytest.mark.parametrize(
    ("one", "other", "text"),
    [
        (1, 2, ": 1 and 2"),
        ("a", 1, ": str 'a' and int 1"),
        ({"a": 1}, {"b": 1}, "keys: a and b"),
        ([1], [1, 2], "items: 1 and 2 items"),
        ({"a": [1, 2]}, {"a": [1, 3]}, "['a'][1]: 2 and 3"),
        (np.zeros(2), np.zeros(3), ": shapes (2,) and (3,)"),
        (np.zeros(2), np.zeros(2, np.float32), ": float64 and float32"),
        (np.array([[0.0, 1.0]]), np.array([[0.0, 2.0]]), "[0][1]: 1.0 and 2.0"),
        (np.array([NAN]), np.array([0.0]), "[0]: nan and 0.0"),
        (np.array([1, "a"], object), np.array([1, "b"], object), "[1]: 'a' and 'b'"),
    ],
)
def test_the_first_difference(one, other, text):
    assert difference(one, other) == text
    assert difference({"k": one}, {"k": other}).endswith(text.removeprefix("keys").removeprefix("items"))


def test_nearly_the_same():
    one, other = np.array([1.0, 2.0]), np.array([1.0, 2.0 + 1e-9])
    assert difference(one, other) and not difference(one, other, near=True)
    assert difference(1.0, 1.0 + 1e-9) and not difference(1.0, 1.0 + 1e-9, near=True)
    assert difference(1.0, 1.1, near=True)


def test_facts_are_copies():
    episode = SingleAgentEpisode(observations=[0.0, 1.0], actions=[1], rewards=[2.0], len_lookback_buffer=0)
    facts = facts_of(episode)
    episode.set_rewards(new_data=np.array([5.0]))
    assert facts["rewards"].tolist() == [2.0] and facts["flags"] == [False, False, 1, 0]
    assert difference(facts, facts_of(episode)) == "['rewards'][0]: 2.0 and 5.0"


def test_rows_by_episode():
    batch = {"a": np.arange(3), "n": {"x": np.arange(6).reshape(3, 2)}, "l": ["p", "q"]}
    first, second = rows_of(batch, [1, 2])
    assert first["a"].tolist() == [0] and second["a"].tolist() == [1, 2]
    assert second["n"].tolist() == [[2, 3], [4, 5]] and (first["l"], second["l"]) == ("p", "q")


@pytest.mark.parametrize("column", [np.arange(4), np.array(1), ["p"], 3])
def test_other_rows_are_not_taken_apart(column):
    assert rows_of({"a": column}, [1, 2]) is None
