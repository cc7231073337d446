from __future__ import annotations

import numpy as np

from epibatch.algorithms.metric_rows import flat_metrics, in_reading_order, nested_metrics


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


def test_what_one_looks_for_comes_first():
    expected = ["training_iteration", "num_env_steps_sampled_lifetime", "env_runners/episode_return_mean"]
    assert in_reading_order(["timers/learn", *expected[::-1], "a"]) == [*expected, "timers/learn", "a"]
