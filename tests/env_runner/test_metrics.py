"""Returns and lengths of episodes against a slow count; the runners' tests compare whole runs with what was played."""

from __future__ import annotations

import math

import numpy as np
import pytest

from epibatch.algorithms import PPOConfig
from epibatch.env_runner import EpisodeMetrics, MultiAgentEnvRunner
from fixture_envs import ScriptedMultiAgentEnv


def ended(*episodes, window=100):
    """Metrics of one environment that played episodes with these rewards."""
    metrics = EpisodeMetrics(1, window)
    for rewards in episodes:
        for reward in rewards:
            metrics.add(np.array([reward]), [])
        metrics.end(0)
    return metrics


@pytest.mark.parametrize("window", [3, 100])
@pytest.mark.parametrize("seed", range(5))
def test_random_steps_ends_and_resets(seed, window):
    rng, metrics = np.random.default_rng(seed), EpisodeMetrics(3, window)
    running, finished, reported = [[] for _ in range(3)], [], 0
    for _ in range(60):
        rewards, skipped = rng.integers(-4, 9, 3) / 4, [env for env in range(3) if rng.random() < 0.2]
        metrics.add(rewards, skipped)
        for env in range(3):
            running[env] = [] if env in skipped else [*running[env], rewards[env]]
            if rng.random() < 0.2:
                metrics.end(env)
                finished.append((sum(running[env]), len(running[env])))
                running[env] = []
        if rng.random() < 0.1:
            envs = [None, [0], [1, 2]][rng.integers(3)]
            metrics.forget(envs)
            for env in range(3) if envs is None else envs:
                running[env] = []
        if rng.random() < 0.2 and len(finished) > reported:
            report, new = metrics.report(), finished[reported:]
            assert (report["num_episodes"], report["num_episodes_lifetime"]) == (len(new), len(finished))
            assert report["episode_return_mean_this_iter"] == pytest.approx(np.mean([value for value, _ in new]))
            for name, values in zip(("return", "len"), zip(*finished[-window:])):
                found = [report[f"episode_{name}_{kind}"] for kind in ("mean", "min", "max")]
                assert found == pytest.approx([np.mean(values), min(values), max(values)])
            reported = len(finished)
    assert reported > 10
    again = metrics.report()
    assert again["num_episodes"] == len(finished) - reported and again["num_episodes_lifetime"] == len(finished)


def test_nothing_ended_yet():
    metrics = EpisodeMetrics(2)
    metrics.add(np.array([1.0, 2.0]), [])
    report = metrics.report()
    assert (report["num_episodes"], report["num_episodes_lifetime"]) == (0, 0)
    assert "episode_return_mean_this_iter" not in report
    assert all(math.isnan(report[f"episode_{n}_{k}"]) for n in ("return", "len") for k in ("mean", "min", "max"))


def test_state_has_what_ended_but_not_what_runs():
    metrics = ended([1.0], [2.0, 3.0])
    metrics.add(np.array([50.0]), [])
    other = ended([4.0])
    other.add(np.array([9.0]), [])
    other.set_state(metrics.get_state())
    other.add(np.array([6.0]), [])
    other.end(0)
    report = other.report()
    assert (report["num_episodes"], report["num_episodes_lifetime"]) == (1, 3)
    assert (report["episode_return_mean"], report["episode_len_mean"]) == ((1 + 5 + 6) / 3, 4 / 3)
    other.set_state(EpisodeMetrics(1).get_state())
    assert other.report()["num_episodes_lifetime"] == 0 and math.isnan(other.report()["episode_return_mean"])


def test_an_agents_return_has_the_reward_that_is_in_none_of_its_steps():
    """Agent b ends, and returns in the last step: no step of its second life ends, but the reward counts."""
    steps = [
        ({"a": 1, "b": 1}, {"a": 1.0, "b": 2.0}, {"b": True, "__all__": False}, {}, {}),
        ({"a": 2}, {"a": 4.0}, {"__all__": False}, {}, {}),
        ({"a": 3, "b": 3}, {"a": 16.0, "b": 32.0}, {"__all__": True}, {}, {}),
    ]
    config = PPOConfig().environment(lambda _: ScriptedMultiAgentEnv(*steps, reset=({"a": 0, "b": 0}, {})))
    runner = MultiAgentEnvRunner(config=config.multi_agent(policies={"p"}, policy_mapping_fn=lambda *_, **__: "p"))
    runner.sample(num_episodes=1)
    found = runner.get_metrics()
    runner.stop()
    assert found["agent_episode_returns_mean"] == {"a": 1.0 + 4.0 + 16.0, "b": 2.0 + 32.0}
    assert found["agent_steps"] == {"a": 3, "b": 1}
