"""Groups of runners: one in this process, or several, with a fake in place of Ray."""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import pytest
from fake_actors import FakeActors

from epibatch.algorithms import PPOConfig
from epibatch.connectors import ConnectorV2
from epibatch.connectors.env_to_module import MeanStdFilter
from epibatch.core.errors import RunnerError
from epibatch.env_runner import EnvRunnerGroup, SingleAgentEnvRunner

pytest.importorskip("ray")


class LogSeen(ConnectorV2):
    """Logs each observation that the pipeline sees, so that the runner's metrics have a list of them."""

    def __call__(self, *, batch, episodes, metrics, **kwargs):
        for episode in episodes:
            seen = np.array(episode.get_observations(-1), np.float64)
            metrics.log_value("seen", seen, reduce=None, clear_on_reduce=True)
        return batch


def pieces(env=None, spaces=None, device=None):
    return [LogSeen(), MeanStdFilter()]


def config_of(num_env_runners=0, seed=3, envs=2, **settings):
    runners = {"num_env_runners": num_env_runners, "num_envs_per_env_runner": envs, **settings}
    runners.setdefault("env_to_module_connector", pieces)
    return PPOConfig().environment("CartPole-v1").env_runners(**runners).debugging(seed=seed)


@pytest.fixture
def group_of():
    """Makes groups with fake actors, and stops them."""
    groups = []

    def make(config, **actors):
        groups.append(EnvRunnerGroup(config=config, make_actors=partial(FakeActors, **actors)))
        return groups[-1]

    yield make
    for group in groups:
        group.stop()


def actors_of(group):
    """The fake actors of a group, through a function that runs in each: objects are all in this process."""
    return group._actors


def facts(episodes):
    return [(len(episode), episode.get_return(), episode.t_started, episode.is_done) for episode in episodes]


class Statistics:
    """The statistics of a group's filter beside those of all observations that its metrics list, counted at once."""

    def __init__(self, group):
        self.local, self.rows = group.local_env_runner, []

    def check(self):
        self.rows += self.local.get_metrics()["seen"]
        rows = np.array(self.rows)
        piece = self.local.pipelines["env_to_module"]["mean_std_filter"]
        total = piece.merge_states([piece.get_state()])["synchronised"]
        assert total["count"] == len(rows)
        np.testing.assert_allclose(total["mean"], rows.mean(0), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(total["squares"], ((rows - rows.mean(0)) ** 2).sum(0), rtol=1e-10)
        return len(rows)


# ------------------------------------------------------------------------------------ one process


def test_without_processes_a_group_samples_as_its_runner():
    group, runner = EnvRunnerGroup(config=config_of()), SingleAgentEnvRunner(config=config_of())
    arguments = ({"num_timesteps": 40}, {"num_episodes": 3}, {"num_timesteps": 8, "random_actions": True}, {})
    for keywords in arguments:
        runner.module.set_state(group.local_env_runner.module.get_state())
        assert facts(group.sample(**keywords)) == facts(runner.sample(**keywords))
    assert group.foreach_env_runner(lambda runner: runner.worker_index) == [0]
    assert (group.num_remote_env_runners(), group.num_healthy_env_runners()) == (0, 1)
    assert group.num_in_flight_async_reqs() == 0 and group.get_state() == {}
    runner.stop()
    group.stop()
    with pytest.raises(RunnerError, match="stopped"):
        group.sample()


def test_requests_need_processes():
    group = EnvRunnerGroup(config=config_of())
    for call in (group.request, group.ready):
        with pytest.raises(RunnerError, match="num_env_runners > 0"):
            call()
    group.stop()


# ------------------------------------------------------------------------------------ several


def test_runners_sample_as_single_runners_of_their_seeds(group_of):
    config = config_of(2)
    group = group_of(config)
    weights = group.local_env_runner.module.get_state()
    expected = []
    for index in (1, 2):
        runner = SingleAgentEnvRunner(config=config, worker_index=index)
        runner.module.set_state(weights)
        expected += facts(runner.sample(num_timesteps=15 if index == 1 else 14))
        runner.stop()
    assert facts(group.sample(num_timesteps=29)) == expected


def test_shares_of_a_sample(group_of):
    group = group_of(config_of(3, envs=1))
    for amount in (10, 2, 1):
        assert sum(map(len, group.sample(num_timesteps=amount))) == amount
    assert len(group.sample(num_episodes=4)) == 4
    assert len(group.sample(num_episodes=0)) == len(group.sample(num_timesteps=0)) == 0
    with pytest.raises(RunnerError, match="num_timesteps=3, num_episodes=3"):
        group.sample(num_timesteps=3, num_episodes=3)
    fragments = group_of(config_of(3, envs=2, rollout_fragment_length=5))
    assert sum(map(len, fragments.sample())) == 3 * 2 * 5


@pytest.mark.parametrize("seed", [0, 1])
def test_runs_are_repeated_by_their_seed(group_of, seed):
    runs = [[facts(group.sample(num_timesteps=40)) for _ in range(3)] for group in
            [group_of(config_of(3, seed=seed)) for _ in range(2)]]  # fmt: skip
    assert runs[0] == runs[1]


def test_seeds_of_runners_and_their_restarts_differ(group_of):
    group = group_of(config_of(3))
    entropies = []
    for _ in range(3):
        states = group.get_state()["runners"]
        entropies += [tuple(states[index]["runner"]["reset_seeds"]["entropy"]) for index in states]
        for index in (1, 2, 3):
            actors_of(group).replace(index)
    assert len(set(entropies)) == 9


# ------------------------------------------------------------------------------------ statistics


@pytest.mark.parametrize("count", [1, 2, 3])
def test_statistics_are_those_of_all_episodes(group_of, count):
    group = group_of(config_of(count))
    statistics = Statistics(group)
    for amount in (24, 7, 40, 40):
        steps = sum(map(len, group.sample(num_timesteps=amount)))
        assert statistics.check() >= steps
    group.sample(num_timesteps=6)
    known = group.foreach_env_runner(_total, local_env_runner=False)
    assert min(known) >= len(statistics.rows)  # each runner knows what all saw, and what is new to it


def _total(runner):
    state = runner.pipelines["env_to_module"].get_state()["mean_std_filter"]
    return state["synchronised"]["count"] + state["since"]["count"]


@pytest.mark.parametrize("seed", range(6))
def test_statistics_are_exact_if_requests_pass_deliveries(group_of, seed):
    rng = random.Random(seed)
    group = group_of(config_of(3, envs=1, max_requests_in_flight_per_env_runner=3), order=rng)
    statistics, steps = Statistics(group), 0
    for _ in range(25):
        group.request(num_timesteps=rng.randint(1, 9))
        for _ in range(rng.randint(1, 4)):
            steps += sum(len(episode) for _, episodes in group.ready() for episode in episodes)
        assert statistics.check() >= steps
    while group.num_in_flight_async_reqs():
        group.ready()
        statistics.check()
    group.sample(num_timesteps=3)
    known = group.foreach_env_runner(_total, local_env_runner=False)
    assert min(known) >= len(statistics.rows)


@pytest.mark.parametrize("seed", range(6))
def test_statistics_are_those_of_deliveries_if_runners_die(group_of, seed):
    rng = random.Random(seed)

    def scenario(actors, index, ran):
        return "die" if rng.random() < 0.2 else None

    group = group_of(config_of(3, max_requests_in_flight_per_env_runner=2), order=rng, scenario=scenario)
    statistics, steps = Statistics(group), 0
    for _ in range(20):
        group.request(num_timesteps=rng.randint(1, 12))
        steps += sum(len(episode) for _, episodes in group.ready() for episode in episodes)
        statistics.check()
    report = group.fault_report()
    assert report["num_env_runner_restarts"] == report["num_env_runner_failures"] >= 3
    assert report["num_env_steps_lost"] > 0 and report["num_episodes_lost"] > 0
    assert group.local_env_runner.num_env_steps_sampled_lifetime == steps > 50
