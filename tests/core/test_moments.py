"""Running moments, of one or of several copies, against NumPy's over all rows at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.core.errors import StateError
from epibatch.core.shared_moments import RunningMoments, SharedMoments, merge_shared_moments


def moments_of(*batches, size=3):
    moments = RunningMoments(size)
    for batch in batches:
        moments.add(np.asarray(batch, np.float64))
    return moments


def test_a_mean_far_from_zero_costs_no_digits_of_the_deviation():
    rows = 1e8 + np.random.default_rng(0).normal(0, 1, (10_000, 1))
    moments = moments_of(*np.array_split(rows, 300), size=1)
    assert moments.std() == pytest.approx(rows.std(ddof=1), rel=1e-7)


def test_a_state_is_a_copy_and_comes_back_bit_by_bit():
    moments = moments_of(np.random.default_rng(1).normal(size=(5, 3)))
    state = moments.to_state()
    again = RunningMoments.from_state(state)
    assert again.same_as(moments)
    moments.add(np.ones((1, 3)))
    assert not again.same_as(moments)
    assert state["count"] == 5 and repr(again) == "RunningMoments(count=5, size=3)"


@pytest.mark.parametrize(
    "state",
    [
        None,
        {"count": 1, "mean": [0.0]},
        {"count": -1, "mean": [0.0], "squares": [0.0]},
        {"count": 2**63, "mean": [0.0], "squares": [0.0]},
        {"count": 1, "mean": [0.0], "squares": [0.0, 1.0]},
        {"count": 1, "mean": 0.0, "squares": 0.0},
        {"count": 1.5, "mean": [0.0], "squares": [0.0]},
        {"count": True, "mean": [0.0], "squares": [0.0]},
        {"count": 2, "mean": ["1"], "squares": [0.0]},
        {"count": 2, "mean": [np.nan], "squares": [0.0]},
        {"count": 2, "mean": [0.0], "squares": [np.inf]},
        {"count": 0, "mean": [5.0], "squares": [0.0]},
    ],
)
def test_something_else_than_a_state_is_named(state):
    with pytest.raises(StateError, match="'count'") as raised:
        RunningMoments.from_state(state)
    assert "to_state()" in str(raised.value)


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


def test_a_copy_that_was_never_synchronised_may_join():
    old, new = SharedMoments.nothing(SHAPES), SharedMoments.nothing(SHAPES)
    old.add(np.zeros((3, 3)))
    [old] = synchronised([old])
    new.add(np.full((1, 3), 4.0))
    for states in ([old, new], [new, old]):
        assert synchronised(states)[0].total.mean.tolist() == [1.0, 1.0, 1.0]
        assert new.since.count == 1, "merging changes no part"
    [other] = synchronised([SharedMoments.from_state(new.to_state(), "here")])
    with pytest.raises(StateError, match=r"here, state 1(.|\n)*give all copies the merged state"):
        synchronised([old, other])
    with pytest.raises(StateError, match=r"here, state 1(.|\n)*'b': \[\]"):
        synchronised([SharedMoments.nothing(SHAPES), SharedMoments.nothing({"a": [3]})])


@pytest.mark.parametrize(
    "change",
    [
        {"leaves": {"a": [5]}},
        {"leaves": {"a": [2.0], "b": [1]}},
        {"leaves": {"a": [-1], "b": [-3]}},
        {"leaves": {"a": ["3"]}},
        {"leaves": {1: [2], "b": [1]}},
        None,
    ],
)
def test_something_else_than_a_shared_state_is_named(change):
    state = None if change is None else {**SharedMoments.nothing(SHAPES).to_state(), **change}
    with pytest.raises(StateError):
        SharedMoments.from_state(state, "here")
