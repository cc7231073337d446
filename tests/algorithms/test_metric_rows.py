from __future__ import annotations

import numpy as np
import pytest

from epibatch.algorithms.results import flat_metrics, in_reading_order, nested_metrics


def test_flat_metrics():
    nested = {
        "a": {"b": np.float32(0.5), "c": {"d": True}},
        "e": float("nan"),
        "f": "text",
        "g": np.zeros(3),
        "h": None,
    }
    assert flat_metrics(nested) == {"a/b": 0.5, "a/c/d": True, "e": None, "f": "text", "h": None}


def test_nested_again():
    nested = {"a": {"b": 0.5, "c": {"d": 1}}, "e": "text"}
    assert nested_metrics(flat_metrics(nested)) == nested


@pytest.mark.parametrize("turned", [False, True])
def test_a_value_beside_values_below_it(turned):
    row = {"a/loss": 1.0, "a/loss/policy": 2.0, "a/loss/policy/mean": 3.0, "a/b/c": 4}
    row = dict(reversed(row.items())) if turned else row
    nested = nested_metrics(row)
    assert nested == {"a": {"loss": 1.0, "loss/policy": 2.0, "loss/policy/mean": 3.0, "b": {"c": 4}}}
    assert flat_metrics(nested) == row


def test_what_one_looks_for_comes_first():
    expected = ["training_iteration", "num_env_steps_sampled_lifetime", "env_runners/episode_return_mean"]
    assert in_reading_order(["timers/learn", *expected[::-1], "a"]) == [*expected, "timers/learn", "a"]
