"""Returns and lengths of episodes against a slow count; the runners' tests compare whole runs with what was played."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest

from epibatch.algorithms import PPOConfig
from epibatch.core.errors import ConfigError
from epibatch.core.metrics import MetricsLogger
from epibatch.env_runner import AgentMetrics, EpisodeMetrics, MultiAgentEnvRunner, SamplingMetrics
from epibatch.episodes import MultiAgentEpisode
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


# ------------------------------------------------------------------------------- metrics of several runners


def play(metrics, events):
    """Let metrics count rewards and ends of one environment: (reward, whether the episode ends, a logged value)."""
    for reward, ends, value in events:
        metrics.add(np.array([reward]), [])
        if ends:
            metrics.episodes.end(0)
        metrics.logged.log_value("mean", value)
        metrics.logged.log_value(("nested", "last"), value, reduce="item")
        metrics.logged.log_value("window", value, window=4)
        metrics.logged.log_value("ema", value, ema_coeff=0.3)
        metrics.logged.log_value("sum", int(reward), reduce="sum", clear_on_reduce=True)
        metrics.logged.log_value("lifetime", int(reward), reduce="lifetime_sum")
        metrics.logged.log_value("list", value, reduce=None, clear_on_reduce=True)
        metrics.logged.log_value("least", value, reduce="min")
        metrics.logged.log_value("most", value, reduce="max", clear_on_reduce=True)


@pytest.mark.parametrize("seed", range(8))
def test_metrics_of_several_runners_are_those_of_one(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 5))
    one, collected = SamplingMetrics(1, 7), SamplingMetrics(1, 7)
    runners = [SamplingMetrics(1, 7) for _ in range(count)]
    for _ in range(6):  # iterations; in each, runners are asked in turn, some of them twice or not at all
        for index in rng.integers(0, count, count + 1):
            events = [(float(rng.integers(0, 4)), rng.random() < 0.3, rng.random()) for _ in range(rng.integers(0, 9))]
            events = [*events, (1.0, True, 0.5)] if events else []  # whole episodes, as `one` has one environment
            play(runners[index], events)
            play(one, events)
            collected.add_from(pickle.loads(pickle.dumps(runners[index].take())))
        reports = collected.report(), one.report()
        assert flat(reports[0]) == pytest.approx(flat(reports[1]), nan_ok=True)
    states = [flat(metrics.get_state()["episode_metrics"]) for metrics in (collected, one)]
    assert states[0]["lifetime"] == states[1]["lifetime"] > 5
    np.testing.assert_array_equal(states[0]["ended"], states[1]["ended"])


def flat(results):
    """Results without nesting: name -> value, and each item of a list under its position."""
    out = {}
    for name, value in results.items():
        if isinstance(value, dict):
            out.update({f"{name}/{key}": item for key, item in flat(value).items()})
        elif isinstance(value, list):
            out.update({f"{name}/{position}": item for position, item in enumerate(value)})
        else:
            out[name] = value
    return out


def test_agents_metrics_of_several_runners_are_those_of_one():
    rng = np.random.default_rng(5)
    one, collected = AgentMetrics(1, 4), AgentMetrics(1, 4)
    runners = [AgentMetrics(1, 4) for _ in range(3)]
    for _ in range(4):
        for runner in runners:
            for _ in range(rng.integers(0, 7)):
                for metrics in (runner, one):
                    state = rng.bit_generator.state
                    episode = MultiAgentEpisode()
                    episode.add_env_reset(observations={"a": 0.0, "b": 1.0})
                    rewards = {"a": float(rng.integers(9)), "b": float(rng.integers(9))}
                    episode.add_env_step({"a": 1.0, "b": 2.0}, {"a": 0, "b": 0}, rewards, terminateds={"__all__": True})
                    metrics.add(episode, ["a", "b"][: rng.integers(1, 3)])
                    metrics.end(0, episode)
                    rng.bit_generator.state = state if metrics is runner else rng.bit_generator.state
            collected.add_from(runner.take())
        report = collected.report()
        assert report == one.report() and (collected.steps, one.steps) == (one.steps, collected.steps)
    assert report["num_agent_steps_sampled_lifetime"]["a"] > 5


def test_what_a_logger_restored_is_not_taken_again():
    logger, again = MetricsLogger(), MetricsLogger()
    logger.log_value("ends", 3, reduce="sum")
    again.set_state(logger.get_state())
    assert again.take()["metrics"]["ends",]["value"] == 0
    again.log_value("ends", 2, reduce="sum")
    logger.add_from(again.take())
    assert logger.reduce() == again.reduce() == {"ends": 5}


def test_runners_that_log_a_key_in_other_ways_are_refused():
    logger, other = MetricsLogger(), MetricsLogger()
    logger.log_value("x", 1.0)
    other.log_value("x", 1.0, reduce="sum")
    with pytest.raises(ConfigError, match="x"):
        logger.add_from(other.take())
