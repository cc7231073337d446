from __future__ import annotations

import pytest

from epibatch.algorithms.settings import StopSettings
from epibatch.algorithms.stop_rules import judge


def results(mean=100.0, steps=1000, iteration=3, seconds=5.0, episodes=200):
    return {
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
        ({"training_iteration": 3}, results(), (False, False)),
        ({"time_total_s": 4.5}, results(), (False, False)),
    ],
)
def test_judge(rules, given, expected):
    verdict = judge(StopSettings(**rules), given)
    assert (verdict and (verdict.solved, verdict.has_goal)) == expected


def test_reasons_are_readable():
    assert (
        judge(StopSettings(episode_return_mean=90), results()).reason == "mean return 100.0 over the last 100 episodes"
    )
    limit = judge(StopSettings(num_env_steps_sampled_lifetime=1000), results())
    assert limit.reason == "the limit of 1,000 env steps is used up"
    assert limit.setting == "num_env_steps_sampled_lifetime"
