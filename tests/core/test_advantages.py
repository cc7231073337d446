from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.core.advantages import (
    compute_value_targets,
    discounted_sums,
    generalized_advantages,
    td_errors,
    vtrace,
)
from epibatch.core.errors import ColumnError, ConfigError

COUNTS = st.lists(st.one_of(st.integers(0, 6), st.sampled_from([31, 32, 33, 64, 65, 200])), max_size=8)
DISCOUNTS = st.sampled_from([0.0, 0.5, 0.95, 0.9405, 1.0])


def quadratic_sums(x: np.ndarray, counts: list[int], discount: float) -> np.ndarray:
    """Every sum from scratch: O(n^2)."""
    out, start = np.zeros(len(x)), 0
    for count in counts:
        for t in range(count):
            powers = discount ** np.arange(count - t, dtype=float)
            out[start + t] = np.sum(powers * x[start + t : start + count])
        start += count
    return out


@settings(deadline=None)
@given(COUNTS, DISCOUNTS, st.integers(0, 2**31))
def test_discounted_sums_equal_the_quadratic_reference(counts, discount, seed):
    x = np.random.default_rng(seed).standard_normal(sum(counts))
    expected = quadratic_sums(x, counts, discount)
    np.testing.assert_allclose(discounted_sums(x, counts, discount), expected, rtol=1e-11, atol=1e-11)


@settings(deadline=None)
@given(COUNTS, st.integers(0, 2**31))
def test_discounts_may_differ_from_row_to_row(counts, seed):
    rng = np.random.default_rng(seed)
    x, discounts = rng.standard_normal(sum(counts)), rng.uniform(0, 1, sum(counts))
    expected, start = np.zeros(len(x)), 0
    for count in counts:
        later = 0.0
        for t in reversed(range(start, start + count)):
            later = expected[t] = x[t] + discounts[t] * later
        start += count
    np.testing.assert_allclose(discounted_sums(x, counts, discounts), expected, rtol=1e-11, atol=1e-11)


@settings(deadline=None)
@given(COUNTS, COUNTS, st.integers(0, 300), DISCOUNTS, st.integers(0, 2**31))
def test_a_segment_is_bitwise_independent_of_the_others(before, after, count, discount, seed):
    x = np.random.default_rng(seed).standard_normal(sum(before) + count + sum(after))
    own = slice(sum(before), sum(before) + count)
    alone = discounted_sums(x[own], [count], discount)
    together = discounted_sums(x, [*before, count, *after], discount)[own]
    assert alone.tobytes() == together.tobytes()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: discounted_sums([1.0], [2], 0.5), ColumnError, r"column 'rows'[\s\S]*\(2,\)"),
        (lambda: discounted_sums([1.0], [1], 1.5), ConfigError, "discount"),
        (lambda: discounted_sums([1.0], [1], np.ones(2)), ColumnError, "column 'discounts'"),
        (lambda: vtrace([1.0], [1.0, 2.0], [0], [1], 0.9), ColumnError, "column 'log_ratios'"),
        (lambda: td_errors([1.0], [1.0, 2.0], [0], [1], 0.9), ColumnError, "column 'values'"),
        (lambda: td_errors([1.0], [1.0], [0], [1], 0.9, [1.0, 2.0]), ColumnError, "bootstrap_values"),
        (lambda: generalized_advantages([1.0], [1], 0.9, 2.0), ConfigError, "lambda_"),
        (lambda: compute_value_targets([1.0], [1.0], [0], [0, 0], 0.9, 0.9), ColumnError, "truncateds"),
    ],
)
def test_errors_name_what_was_expected(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_bootstrap_values_stand_for_bootstrap_rows():
    errors = td_errors([1.0, 2.0], [3.0, 4.0], [0, 0], [2], 0.5, [6.0])
    rows = td_errors([1.0, 2.0, 9.0], [3.0, 4.0, 6.0], [0, 0, 0], [3], 0.5)
    assert errors.tolist() == rows[:2].tolist() == [1.0 + 2.0 - 3.0, 2.0 + 3.0 - 4.0]


def test_tensors_give_tensors_with_the_numbers_of_arrays():
    rng, counts = np.random.default_rng(0), [0, 1, 40, 32, 200]
    rewards, values, log_ratios, discounts = rng.standard_normal((4, sum(counts)))
    ended, last = rng.random(sum(counts)) < 0.05, rng.standard_normal(len(counts))

    def results(*given):
        rewards, values, log_ratios, discounts, ended, last = given
        errors = td_errors(rewards, values, ended, counts, 0.9)
        return [
            errors,
            td_errors(rewards, values, ended, counts, 0.9, last),
            generalized_advantages(errors, counts, 0.9, 0.95),
            discounted_sums(rewards, counts, abs(discounts).clip(max=1.0)),
            *vtrace(errors, log_ratios, ended, counts, 0.9),
        ]

    given = rewards, values, log_ratios, discounts, ended, last
    for tensor, array in zip(results(*map(torch.from_numpy, given)), results(*given)):
        assert isinstance(tensor, torch.Tensor)
        np.testing.assert_allclose(tensor.numpy(), array, rtol=1e-12, atol=1e-12)
