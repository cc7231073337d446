from __future__ import annotations

import numpy as np

from epibatch.env_runner.metrics import SamplingMetrics


def test_steps_that_belong_to_no_episode_are_not_counted():
    metrics = SamplingMetrics(3)
    for skipped in ([], [0], [1, 2]):
        metrics.add(np.array([1.0, 2.0, 4.0]), skipped)
    assert metrics.steps == 3 + 2 + 1
    metrics.episodes.end(0)  # a step of reward 1; counting began anew at the second one
    report = metrics.report()
    assert (report["num_env_steps_sampled"], report["episode_return_mean"], report["episode_len_mean"]) == (6, 1.0, 1.0)


def test_reports_count_from_the_last_one():
    metrics = SamplingMetrics(2)
    metrics.add(np.zeros(2), [])
    metrics.seconds += 1.5
    first = metrics.report()
    metrics.add(np.zeros(2), [])
    second = metrics.report()
    assert [first[key] for key in ("num_env_steps_sampled", "num_env_steps_sampled_lifetime", "sample")] == [2, 2, 1.5]
    assert [second[key] for key in ("num_env_steps_sampled", "num_env_steps_sampled_lifetime", "sample")] == [2, 4, 0.0]


def test_a_part_of_the_state_leaves_the_rest():
    one, other = SamplingMetrics(2), SamplingMetrics(2)
    one.add(np.ones(2), [])
    one.episodes.end(0)
    other.set_state({"num_env_steps_sampled_lifetime": 40})
    assert (other.steps, other.episodes.lifetime, other.report()["num_env_steps_sampled"]) == (40, 0, 0)
    other.set_state(one.get_state())
    assert (other.steps, other.episodes.lifetime) == (2, 1)
