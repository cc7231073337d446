from __future__ import annotations

import numpy as np
import pytest

from epibatch.algorithms.results import flat_metrics, in_reading_order, judge, nested_metrics
from epibatch.algorithms.settings import StopSettings


def results(mean=100.0, steps=1000, iteration=3, seconds=5.0, episodes=200, measured=None):
    evaluation = {} if measured is None else {"evaluation": {"env_runners": {"episode_return_mean": measured}}}
    for each in evaluation.values():
        each["env_runners"]["num_episodes"] = 10
    return {
        **evaluation,
        "env_runners": {"episode_return_mean": mean, "num_episodes_lifetime": episodes},
        "num_env_steps_sampled_lifetime": steps,
        "training_iteration": iteration,
        "time_total_s": seconds,
    }


@pytest.mark.parametrize(
    ("rules", "given", "expected"),
    [
        ({}, results(), None),
        ({"episode_return_mean": 475}, results(474.9), None),
        ({"episode_return_mean": 475}, results(475.0), (True, True)),
        ({"episode_return_mean": 475}, results(500.0, episodes=99), None),
        ({"episode_return_mean": 475}, results(float("nan")), None),
        ({"episode_return_mean": 475}, results(None), None),
        ({"episode_return_mean": -100}, results(-90.0), (True, True)),
        ({"episode_return_mean": 475, "num_env_steps_sampled_lifetime": 1000}, results(), (False, True)),
        ({"episode_return_mean": 475, "num_env_steps_sampled_lifetime": 1000}, results(480.0), (True, True)),
        ({"num_env_steps_sampled_lifetime": 1001}, results(), None),
        ({"evaluation_return_mean": 475}, results(500.0), None),
        ({"evaluation_return_mean": 475}, results(500.0, measured=474.0), None),
        ({"evaluation_return_mean": 475}, results(500.0, measured=float("nan")), None),
        ({"evaluation_return_mean": 475}, results(episodes=3, measured=475.0), (True, True)),
        ({"evaluation_return_mean": 475, "episode_return_mean": 475}, results(measured=480.0), (True, True)),
        ({"evaluation_return_mean": 475, "training_iteration": 3}, results(measured=1.0), (False, True)),
        ({"training_iteration": 3}, results(), (False, False)),
        ({"episode_return_mean": 475, "training_iteration": 3}, {**results(500.0), "env_runners": 3}, (False, True)),
        ({"episode_return_mean": 475}, results("500"), None),
        ({"episode_return_mean": 475}, results(np.float32(500)), (True, True)),
        ({"evaluation_return_mean": 475}, {**results(), "evaluation": "x"}, None),
        ({"evaluation_return_mean": 475}, {**results(), "evaluation": {"env_runners": [500]}}, None),
        ({"time_total_s": 4.5}, results(), (False, False)),
        ({"results": {"learners/a/b": 2}}, {**results(), "learners": {"a": {"b": 1.9}}}, None),
        ({"results": {"learners/a/b": 2}}, {**results(), "learners": {"a": {"b": 2.0}}}, (True, True)),
        ({"results": {"learners/a/b": 2, "time_total_s": 5}}, results(), (True, True)),
        ({"results": {"nowhere": 2}, "training_iteration": 3}, results(), (False, True)),
        ({"results": {"nowhere": 2}}, {**results(), "nowhere": float("nan")}, None),
    ],
)
def test_judge(rules, given, expected):
    verdict = judge(StopSettings(**rules), given)
    assert (verdict and (verdict.solved, verdict.has_goal)) == expected


def test_reasons_are_readable():
    assert (
        judge(StopSettings(episode_return_mean=90), results()).reason == "mean return 100.0 over the last 100 episodes"
    )
    measured = judge(StopSettings(evaluation_return_mean=90), results(measured=100))
    assert measured.reason == "mean return 100.0 over 10 episodes of evaluation"
    assert measured.setting == "evaluation_return_mean"
    limit = judge(StopSettings(num_env_steps_sampled_lifetime=1000), results())
    assert limit.reason == "the limit of 1,000 env steps is used up"
    assert limit.setting == "num_env_steps_sampled_lifetime"


# ----------------------------------------------------------------------------------------- metric rows


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
