"""Synchronising copies any number of times gives the moments of one that saw everything."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.core.errors import StateError
from epibatch.core.shared_moments import RunningMoments, SharedMoments, merge_shared_moments

SHAPES = {"a": [2], "b": []}


def synchronised(copies):
    merged = merge_shared_moments([copy.to_state() for copy in copies], "here")
    return [SharedMoments.from_state(merged, "here") for _ in copies]


@settings(deadline=None, max_examples=40)
@given(copies=st.integers(1, 6), rounds=st.integers(1, 12), seed=st.integers(0, 2**32 - 1))
def test_rounds_of_synchronisation_are_exact(copies, rounds, seed):
    rng = np.random.default_rng(seed)
    everything = RunningMoments(3)
    own = [SharedMoments.nothing(SHAPES) for _ in range(copies)]
    for _ in range(rounds):
        for copy in own:
            for _ in range(rng.integers(0, 4)):
                rows = rng.normal(rng.normal(0, 10), rng.exponential(3), (rng.integers(0, 5), 3))
                copy.add(rows)
                everything.add(rows)
        own = synchronised(own)
        for copy in own:
            assert copy.total.count == everything.count and copy.since.count == 0
            np.testing.assert_allclose(copy.total.mean, everything.mean, rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(copy.total.squares, everything.squares, rtol=1e-9, atol=1e-9)


def test_the_total_is_what_is_known_and_what_is_new():
    copy = SharedMoments.nothing(SHAPES)
    copy.add(np.ones((2, 3)))
    [copy] = synchronised([copy])
    copy.add(np.full((2, 3), 3.0))
    assert (copy.synchronised.count, copy.since.count, copy.total.count) == (2, 2, 4)
    assert copy.total.mean.tolist() == [2.0, 2.0, 2.0]
    again = SharedMoments.from_state(copy.to_state(), "here")
    assert again.total.same_as(copy.total) and again.since.same_as(copy.since)


def test_a_copy_that_was_never_synchronised_may_join():
    old, new = SharedMoments.nothing(SHAPES), SharedMoments.nothing(SHAPES)
    old.add(np.zeros((3, 3)))
    [old] = synchronised([old])
    new.add(np.full((1, 3), 4.0))
    for states in ([old, new], [new, old]):
        assert synchronised(states)[0].total.mean.tolist() == [1.0, 1.0, 1.0]


def test_copies_that_went_apart_are_refused():
    first, second = SharedMoments.nothing(SHAPES), SharedMoments.nothing(SHAPES)
    first.add(np.zeros((3, 3)))
    second.add(np.ones((3, 3)))
    apart = [*synchronised([first]), *synchronised([second])]
    with pytest.raises(StateError, match="here, state 1") as raised:
        synchronised(apart)
    assert "give all copies the merged state" in str(raised.value)


def test_states_of_other_leaves_are_refused():
    with pytest.raises(StateError, match=r"here, state 1(.|\n)*'b': \[\]"):
        synchronised([SharedMoments.nothing(SHAPES), SharedMoments.nothing({"a": [3]})])


@pytest.mark.parametrize(
    "change",
    [
        {"leaves": {"a": [5]}},
        {"leaves": 3},
        {"leaves": {"a": 3}},
        {"leaves": {"a": [2.0], "b": [1]}},
        {"leaves": {"a": [-1], "b": [-3]}},
        {"leaves": {"a": ["3"]}},
        {"leaves": {1: [2], "b": [1]}},
        {"since": {}},
        None,
    ],
)
def test_something_else_than_a_state_is_named(change):
    state = None if change is None else {**SharedMoments.nothing(SHAPES).to_state(), **change}
    with pytest.raises(StateError):
        SharedMoments.from_state(state, "here")


def test_the_order_of_the_leaves_in_a_state_does_not_matter():
    state = SharedMoments.nothing(SHAPES).to_state()
    state["leaves"] = dict(reversed(state["leaves"].items()))
    assert list(SharedMoments.from_state(state, "here").shapes) == ["a", "b"]
