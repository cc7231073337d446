from __future__ import annotations

import math

import numpy as np
import pytest

from epibatch.env_runner import EpisodeMetrics


def ended(*episodes, window=100):
    """Metrics of one environment that played episodes with these rewards."""
    metrics = EpisodeMetrics(1, window)
    for rewards in episodes:
        for reward in rewards:
            metrics.add(np.array([reward]), [])
        metrics.end(0)
    return metrics


def test_nothing_ended_yet():
    metrics = EpisodeMetrics(2)
    metrics.add(np.array([1.0, 2.0]), [])
    report = metrics.report()
    assert (report["num_episodes"], report["num_episodes_lifetime"]) == (0, 0)
    assert all(math.isnan(report[f"episode_{n}_{k}"]) for n in ("return", "len") for k in ("mean", "min", "max"))


def test_returns_and_lengths():
    report = ended([1.0, 2.5], [-4.0], [0.0, 0.0, 1.0]).report()
    assert [report[f"episode_return_{k}"] for k in ("mean", "min", "max")] == [pytest.approx(0.5 / 3), -4.0, 3.5]
    assert [report[f"episode_len_{k}"] for k in ("mean", "min", "max")] == [2.0, 1.0, 3.0]


def test_episodes_are_counted_once_and_remembered():
    metrics = ended([1.0], [3.0])
    assert (metrics.report()["num_episodes"], metrics.report()["num_episodes"]) == (2, 0)
    assert metrics.report()["episode_return_mean"] == 2.0 and metrics.report()["num_episodes_lifetime"] == 2


def test_window():
    report = ended(*[[float(i)] for i in range(10)], window=3).report()
    assert (report["episode_return_mean"], report["episode_return_min"]) == (8.0, 7.0)
    assert report["num_episodes"] == 10


def test_environments_are_apart_and_skipped_steps_count_nothing():
    metrics = EpisodeMetrics(3)
    metrics.add(np.array([1.0, 10.0, 100.0]), [])
    metrics.end(1)
    metrics.add(np.array([1.0, 99.0, 100.0]), [1])
    metrics.add(np.array([1.0, 5.0, 100.0]), [])
    for env in (0, 1, 2):
        metrics.end(env)
    report = metrics.report()
    assert (report["episode_return_mean"], report["episode_return_max"]) == ((10 + 3 + 5 + 300) / 4, 300.0)
    assert report["episode_len_mean"] == (1 + 3 + 1 + 3) / 4


@pytest.mark.parametrize(("envs", "returns"), [(None, [0.0, 0.0]), ([1], [2.0, 0.0]), ([0], [0.0, 3.0])])
def test_forget(envs, returns):
    metrics = EpisodeMetrics(2)
    metrics.add(np.array([2.0, 3.0]), [])
    metrics.forget(envs)
    metrics.end(0)
    metrics.end(1)
    report = metrics.report()
    assert (report["episode_return_mean"], report["episode_return_max"]) == (np.mean(returns), max(returns))
    assert report["episode_len_mean"] == np.count_nonzero(returns) / 2


def test_state_has_what_ended_but_not_what_runs():
    metrics = ended([1.0], [2.0, 3.0])
    metrics.add(np.array([50.0]), [])
    other = EpisodeMetrics(1)
    other.add(np.array([9.0]), [])
    other.set_state(metrics.get_state())
    other.add(np.array([6.0]), [])
    other.end(0)
    report = other.report()
    assert (report["num_episodes"], report["num_episodes_lifetime"]) == (1, 3)
    assert (report["episode_return_mean"], report["episode_len_mean"]) == ((1 + 5 + 6) / 3, 4 / 3)


def test_state_of_nothing():
    other = ended([4.0])
    other.set_state(EpisodeMetrics(1).get_state())
    assert other.report()["num_episodes_lifetime"] == 0 and math.isnan(other.report()["episode_return_mean"])
