"""Dividing rows of different lengths into minibatches, against all divisions there are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epibatch.learner.minibatch_sizes import minibatch_sizes


def sums(steps, sizes):
    edges = np.cumsum([0, *sizes])
    return [sum(steps[a:b]) for a, b in itertools.pairwise(edges)]


def slow(steps, size):
    """The rule row by row: another row belongs to the minibatch while it brings it nearer to the size."""
    sizes, rows = [], list(steps)
    while rows:
        taken, count = rows.pop(0), 1
        while rows and taken < size:
            if abs(taken + rows[0] - size) > abs(taken - size) and sum(rows) + taken >= size:
                break
            taken, count = taken + rows.pop(0), count + 1
        sizes.append(count)
    return sizes


@given(st.lists(st.integers(1, 9), min_size=1, max_size=40), st.integers(1, 60))
def test_keep_is_the_rule_applied_row_by_row(steps, size):
    assert minibatch_sizes(np.array(steps), size, "keep") == slow(steps, size)


@given(st.integers(1, 50), st.integers(1, 60))
def test_rows_of_one_step_are_counted_exactly(rows, size):
    ones = np.ones(rows, np.int64)
    full, rest = divmod(rows, size)
    assert minibatch_sizes(ones, size, "keep") == [size] * full + [rest] * bool(rest)
    assert minibatch_sizes(ones, size, "drop") == ([size] * full or [rows])
    spread = minibatch_sizes(ones, size, "spread")
    assert len(spread) == max(1, full) and sum(spread) == rows and max(spread) - min(spread) <= 1


@given(st.lists(st.integers(1, 9), min_size=1, max_size=40), st.integers(1, 60))
def test_drop_is_keep_without_what_did_not_reach_the_size(steps, size):
    kept, dropped = (minibatch_sizes(np.array(steps), size, remainder) for remainder in ("keep", "drop"))
    assert dropped == kept or dropped == kept[:-1]
    if dropped != kept:
        assert sums(steps, kept)[-1] < size


@pytest.mark.parametrize(
    ("steps", "size", "remainder", "expected"),
    [
        ([20] * 20, 128, "keep", [6, 6, 6, 2]),  # 120 is nearer to 128 than 140
        ([20] * 20, 128, "spread", [7, 7, 6]),
        ([32, 1, 1, 1, 1], 4, "keep", [1, 4]),  # longer than asked for: a minibatch of its own
        ([32, 32], 4, "spread", [1, 1]),
        ([1, 1, 32], 40, "keep", [3]),
        ([5, 5, 5], None, "drop", [3]),
        ([3, 3], 4, "drop", [1]),
    ],
)
def test_examples(steps, size, remainder, expected):
    assert minibatch_sizes(np.array(steps), size, remainder) == expected
