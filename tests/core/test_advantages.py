from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.core.advantages import (
    compute_value_targets,
    discounted_sums,
    generalized_advantages,
    td_errors,
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
@given(COUNTS, COUNTS, st.integers(0, 300), DISCOUNTS, st.integers(0, 2**31))
def test_a_segment_is_bitwise_independent_of_the_others(before, after, count, discount, seed):
    x = np.random.default_rng(seed).standard_normal(sum(before) + count + sum(after))
    own = slice(sum(before), sum(before) + count)
    alone = discounted_sums(x[own], [count], discount)
    together = discounted_sums(x, [*before, count, *after], discount)[own]
    assert alone.tobytes() == together.tobytes()


def test_long_segment_in_float64_from_float32():
    x = np.ones(5000, np.float32)
    sums = discounted_sums(x, [5000], 0.99)
    assert sums.dtype == np.float64
    steps = np.arange(5000, 0, -1)
    np.testing.assert_allclose(sums, (1 - 0.99**steps) / (1 - 0.99), rtol=1e-12)


def test_nan_stays_in_its_segment():
    x = np.array([1.0, np.nan, 1.0, 1.0, 1.0])
    sums = discounted_sums(x, [3, 2], 0.5)
    assert np.isnan(sums[:2]).all()
    assert sums[2:].tolist() == [1.0, 1.5, 1.0]


def quadratic_advantages(rewards, values, bootstraps, terminateds, counts, gamma, lambda_):
    out, start = [], 0
    for segment, count in enumerate(counts):
        v = np.append(values[start : start + count], bootstraps[segment])
        if count and terminateds[start + count - 1]:
            v[-1] = 0.0
        errors = rewards[start : start + count] + gamma * v[1:] - v[:-1]
        out += [sum((gamma * lambda_) ** k * errors[t + k] for k in range(count - t)) for t in range(count)]
        start += count
    return np.array(out)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(0, 2**31))
def test_both_forms_of_advantages_equal_the_quadratic_reference(counts, seed):
    rng = np.random.default_rng(seed)
    total, gamma, lambda_ = sum(counts), 0.97, 0.9
    rewards, values = rng.standard_normal(total), rng.standard_normal(total)
    bootstraps = rng.standard_normal(len(counts))
    terminateds = np.zeros(total, bool)
    ends = np.cumsum(counts)
    terminateds[ends - 1] = rng.random(len(counts)) < 0.5
    expected = quadratic_advantages(rewards, values, bootstraps, terminateds, counts, gamma, lambda_)
    errors = td_errors(rewards, values, terminateds, counts, gamma, bootstraps)
    found = generalized_advantages(errors, counts, gamma, lambda_)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)

    longer = np.array(counts) + 1  # the same with bootstrap rows, whose rewards and flags must not matter
    last = np.cumsum(longer) - 1
    real = np.ones(longer.sum(), bool)
    real[last] = False
    r, v, t = np.full(len(real), 9.0), np.zeros(len(real)), np.zeros(len(real), bool)
    r[real], v[real], t[real] = rewards, values, terminateds
    v[last] = bootstraps
    rows = generalized_advantages(td_errors(r, v, t, longer, gamma), longer, gamma, lambda_)
    assert rows[real].tobytes() == found.tobytes()
    assert (rows[last] == 0).all()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: discounted_sums([1.0], [2], 0.5), ColumnError, r"column 'rows'[\s\S]*\(2,\)"),
        (lambda: discounted_sums([1.0], [1], 1.5), ConfigError, "discount"),
        (lambda: discounted_sums([1.0], [1], float("nan")), ConfigError, "discount"),
        (lambda: td_errors([1.0], [1.0, 2.0], [0], [1], 0.9), ColumnError, "column 'values'"),
        (lambda: td_errors([1.0], [1.0], [0], [1], -1.0), ConfigError, "gamma"),
        (lambda: td_errors([1.0], [1.0], [0], [1], 0.9, [1.0, 2.0]), ColumnError, "bootstrap_values"),
        (lambda: generalized_advantages([1.0], [1], 0.9, 2.0), ConfigError, "lambda_"),
        (lambda: compute_value_targets([1.0], [1.0], [0], [0, 0], 0.9, 0.9), ColumnError, "truncateds"),
    ],
)
def test_errors_name_what_was_expected(call, error, message):
    with pytest.raises(error, match=message):
        call()
