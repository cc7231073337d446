"""Counts against a dict in a loop; copies merged exactly."""

from __future__ import annotations

import copy
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.connectors.rewards.count_based_reward import SharedCounts, merge_shared_counts
from epibatch.core.errors import StateError

KEYS = st.lists(st.integers(-3, 6), max_size=12)


@settings(max_examples=100, deadline=None)
@given(calls=st.lists(KEYS, max_size=6))
def test_visits_in_their_order(calls):
    counts, seen = SharedCounts(), Counter()
    for keys in calls:
        expected = []
        for key in keys:
            seen[key] += 1
            expected.append(seen[key])
        before = copy.deepcopy(counts.to_state())
        array = np.array(keys, np.int64)
        frozen = counts.visits(array, learns=False).tolist()
        assert frozen == [seen[key] - keys.count(key) + 1 for key in keys]
        assert str(before) == str(counts.to_state())
        assert counts.visits(array, learns=True).tolist() == expected
    assert dict(zip(counts.total.keys.tolist(), counts.total.numbers.tolist())) == dict(seen)


@settings(max_examples=60, deadline=None)
@given(rounds=st.lists(st.tuples(KEYS, KEYS), min_size=1, max_size=4))
def test_copies_that_are_merged_again_and_again(rounds):
    copies, seen = [SharedCounts(), SharedCounts()], Counter()
    for both in rounds:
        for own, keys in zip(copies, both):
            own.visits(np.array(keys, np.int64), learns=True)
            seen.update(keys)
        merged = merge_shared_counts([own.to_state() for own in copies], "t")
        copies = [SharedCounts.from_state(copy.deepcopy(merged), "t") for _ in copies]
        for own in copies:
            assert dict(zip(own.total.keys.tolist(), own.total.numbers.tolist())) == dict(seen)


def test_copies_that_went_apart_are_refused():
    one, other = SharedCounts(), SharedCounts()
    one.visits(np.array([1]), learns=True)
    merged = merge_shared_counts([one.to_state()], "t")
    other.visits(np.array([2]), learns=True)
    apart = merge_shared_counts([other.to_state()], "t")
    with pytest.raises(StateError, match="last synchronised with another state"):
        merge_shared_counts([merged, apart], "t")


@pytest.mark.parametrize(
    "state",
    [
        {},
        None,
        {"synchronised": {}, "since": {}},
        {"synchronised": {"keys": [2, 1], "numbers": [1, 1]}, "since": {"keys": [], "numbers": []}},
        {"synchronised": {"keys": [1], "numbers": []}, "since": {"keys": [], "numbers": []}},
    ],
)
def test_states_that_are_none(state):
    with pytest.raises(StateError, match="get_state or merge_states"):
        SharedCounts.from_state(state, "t")
