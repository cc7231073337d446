"""Metrics of sampling: steps, returns and lengths of episodes, agents and modules."""

from __future__ import annotations

import math

import numpy as np
import pytest

from epibatch.env_runner import EpisodeMetrics
from epibatch.env_runner.metrics import AgentMetrics, SamplingMetrics
from epibatch.episodes import MultiAgentEpisode


def mapped(agent_id, episode):
    return "even" if agent_id % 2 == 0 else "odd"


def game(steps, ended=True):
    """An episode in which agents 0, 1 and 2 get rewards, agent 1 after its second step, agent 2 without observing."""
    episode = MultiAgentEpisode(agent_to_module_mapping_fn=mapped)
    episode.add_env_reset(observations={0: 0.0, 1: 0.0})
    for t in range(steps):
        last = ended and t == steps - 1
        episode.add_env_step(
            {0: t + 1.0, 1: t + 1.0}, {0: 0, 1: 0}, {0: 1.0, 1: 0.5, 2: 0.25}, terminateds={"__all__": last}
        )
    return episode


def test_steps_are_counted_by_agent_and_by_module():
    metrics, episode = AgentMetrics(1), game(1, ended=False)
    metrics.add(episode, [0, 1])
    metrics.add(episode, [1])
    first = metrics.report()
    assert first["num_agent_steps_sampled"] == {"0": 1, "1": 2}
    assert first["num_module_steps_sampled"] == {"even": 1, "odd": 2}
    metrics.add(episode, [0])
    second = metrics.report()
    assert second["num_agent_steps_sampled"] == {"0": 1}
    assert second["num_agent_steps_sampled_lifetime"] == {"0": 2, "1": 2}
    assert second["num_module_steps_sampled_lifetime"] == {"even": 2, "odd": 2}
    assert metrics.steps == 4


def test_returns_of_a_cut_episode_are_those_of_the_whole():
    whole, parts = AgentMetrics(2), AgentMetrics(2)
    whole.end(0, game(5))
    episode = game(5)
    parts.cut(1, episode[:2])
    parts.cut(1, episode[2:3])
    parts.end(1, episode[3:])
    assert whole.report() == parts.report()


def test_rewards_of_no_step_count_for_their_agent():
    metrics = AgentMetrics(1)
    metrics.end(0, game(4))
    report = metrics.report()
    assert report["agent_episode_returns_mean"] == {"0": 4.0, "1": 2.0, "2": 1.0}
    assert report["module_episode_returns_mean"] == {"even": 4.0, "odd": 2.0}  # agent 2 never had a module
    assert report["agent_steps"] == {"0": 4, "1": 4, "2": 0}


def test_means_are_over_the_newest_episodes_of_each():
    metrics = AgentMetrics(1, window=2)
    for steps in (9, 1, 3):
        metrics.end(0, game(steps))
    assert metrics.report()["agent_episode_returns_mean"] == {"0": 2.0, "1": 1.0, "2": 0.5}
    alone = MultiAgentEpisode(agent_to_module_mapping_fn=mapped)
    alone.add_env_reset(observations={0: 0.0})
    alone.add_env_step({0: 1.0}, {0: 0}, {0: 10.0}, terminateds={"__all__": True})
    metrics.end(0, alone)
    assert metrics.report()["agent_episode_returns_mean"] == {"0": 6.5, "1": 1.0, "2": 0.5}


def test_agents_that_only_saw_the_end_are_left_out():
    episode = MultiAgentEpisode(agent_to_module_mapping_fn=mapped)
    episode.add_env_reset(observations={0: 0.0})
    episode.add_env_step({0: 1.0, 1: 0.0}, {0: 0}, {0: 1.0}, terminateds={"__all__": True})
    metrics = AgentMetrics(1)
    metrics.end(0, episode)
    assert metrics.report()["agent_episode_returns_mean"] == {"0": 1.0}


def test_running_episodes_are_forgotten_at_a_reset():
    metrics = AgentMetrics(1)
    metrics.cut(0, game(5, ended=False))
    metrics.forget()
    metrics.end(0, game(1))
    assert metrics.report()["agent_episode_returns_mean"]["0"] == 1.0


def test_a_state_gives_the_same_reports():
    one, other = AgentMetrics(1, window=3), AgentMetrics(1, window=3)
    for steps in (2, 5):
        one.add(game(1), [0, 1])
        one.end(0, game(steps))
    one.report()
    other.end(0, game(50))
    other.add(game(1), [1])
    other.set_state(one.get_state())
    for metrics in (one, other):
        metrics.end(0, game(3))
    assert one.report() == other.report() and one.steps == other.steps == 4


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
