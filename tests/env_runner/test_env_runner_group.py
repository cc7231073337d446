"""Groups of runners: one in this process, or several, with a fake in place of Ray."""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest
from fake_actors import FakeActors

from epibatch.algorithms import PPOConfig
from epibatch.connectors import ConnectorV2
from epibatch.connectors.env_to_module import MeanStdFilter
from epibatch.core.errors import EpibatchWarning, RunnerError
from epibatch.env_runner import EnvRunnerGroup, SingleAgentEnvRunner
from fixture_envs import CountingEnv, FailingEnv


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


ACTORS = {}


def actors_of(group):
    """The fake actors of a group."""
    return ACTORS[group]


@pytest.fixture
def group_of():
    """Makes groups with fake actors, and stops them."""

    def make(config, **settings):
        made = []

        def make_actors(*args, **keywords):
            made.append(FakeActors(*args, **keywords, **settings))
            return made[0]

        group = EnvRunnerGroup(config=config, make_actors=make_actors)
        ACTORS[group] = made[0]
        return group

    yield make
    for group in list(ACTORS):
        group.stop()
        assert ACTORS.pop(group).stopped


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


# ------------------------------------------------------------------------------------ failures


class Scenario:
    """Lets chosen requests of chosen runners end with an event: {(index, number of the request): event}."""

    def __init__(self, events):
        self.events = events

    def __call__(self, actors, index, ran):
        return self.events.pop((index, ran), None)


def failing(step=5, **settings):
    """A config whose environments raise in this step of theirs."""
    config = config_of(2, envs=1, **settings)
    return config.environment(FailingEnv, env_config={"step": step, "length": 3})


def test_the_others_go_on_and_the_lost_one_comes_back(group_of):
    group = group_of(config_of(3, envs=1), scenario=Scenario({(2, 1): "die"}))
    actors = actors_of(group)
    assert sum(map(len, group.sample(num_timesteps=60))) == 60
    actors.slow_to_start.add(2)
    assert sum(map(len, group.sample(num_timesteps=60))) == 40
    assert group.healthy_env_runner_ids() == [1, 3] and group.num_healthy_env_runners() == 3
    assert sum(map(len, group.sample(num_timesteps=60))) == 60  # the two that run share it
    assert actors.ran[2] == 0
    actors.slow_to_start.clear()
    assert group.probe_unhealthy_env_runners() == [2]
    assert sum(map(len, group.sample(num_timesteps=60))) == 60 and actors.ran[2] == 1
    report = group.fault_report()
    assert (report["num_env_steps_lost"], report["num_episodes_lost"]) == (20, 1)
    assert (report["num_healthy_env_runners"], report["num_env_runner_restarts"]) == (3, 1)
    assert group.num_remote_worker_restarts() == 1


def test_if_all_are_lost_they_sample_again(group_of):
    group = group_of(config_of(2), scenario=Scenario({(1, 0): "die", (2, 0): "die"}))
    assert sum(map(len, group.sample(num_timesteps=20))) == 20


@pytest.mark.parametrize("settings", [{"restart_failed_env_runners": False}, {"max_num_env_runner_restarts": 0}])
def test_without_restarts_a_lost_runner_is_an_error_or_is_left_out(group_of, settings):
    strict = config_of(2).fault_tolerance(**settings)
    group = group_of(strict, scenario=Scenario({(1, 0): "die"}))
    with pytest.raises(RunnerError, match="restart_failed_env_runners") as caught:
        group.sample(num_timesteps=20)
    assert "env runner 1" in str(caught.value) and "death" in str(caught.value.__cause__)
    tolerant = strict.copy().fault_tolerance(ignore_env_runner_failures=True)
    group = group_of(tolerant, scenario=Scenario({(1, 1): "die", (2, 3): "die"}))
    assert sum(map(len, group.sample(num_timesteps=20))) == 20
    with pytest.warns(EpibatchWarning, match="env runner 1"):
        assert sum(map(len, group.sample(num_timesteps=20))) == 10
    assert sum(map(len, group.sample(num_timesteps=20))) == 20 and group.healthy_env_runner_ids() == [2]
    for _ in range(2):
        with pytest.raises(RunnerError):
            group.sample(num_timesteps=20)


def test_restarts_end_with_the_budget(group_of):
    config = config_of(1).fault_tolerance(max_num_env_runner_restarts=3)
    group = group_of(config, scenario=lambda actors, index, ran: "die")
    with pytest.raises(RunnerError, match="after 3 restarts"):
        group.sample(num_timesteps=10)


def test_a_runner_that_hangs_is_replaced(group_of):
    config = config_of(2, sample_timeout_s=0.05)
    group = group_of(config, scenario=Scenario({(1, 1): "hang"}))
    assert sum(map(len, group.sample(num_timesteps=20))) == 20
    assert sum(map(len, group.sample(num_timesteps=20))) == 10
    report = group.fault_report()
    assert (report["num_env_runner_restarts"], report["num_env_steps_lost"]) == (1, 10)
    assert sum(map(len, group.sample(num_timesteps=20))) == 20


def test_a_slow_runner_is_waited_for(group_of):
    config = config_of(1, sample_timeout_s=0.05)
    group = group_of(config, scenario=Scenario({(1, 0): "hang"}))
    steps = iter(range(1, 4))

    def progress(index, timeout):
        step = next(steps)
        if step == 3:
            actors_of(group).hanging.clear()
        return step

    actors_of(group).progress = progress
    with pytest.warns(EpibatchWarning, match="sample_timeout_s") as caught:
        assert sum(map(len, group.sample(num_timesteps=10))) == 10
    assert len(caught) == 1 and group.fault_report()["num_env_runner_restarts"] == 0


def test_a_runner_that_steps_no_more_is_replaced(group_of):
    group = group_of(config_of(1, sample_timeout_s=0.05), scenario=Scenario({(1, 0): "hang"}))
    actors_of(group).progress = lambda index, timeout: 7  # after the first look it has not gone on
    with pytest.warns(EpibatchWarning, match="sample_timeout_s"):
        assert sum(map(len, group.sample(num_timesteps=10))) == 10
    assert group.fault_report()["num_env_runner_restarts"] == 1


def test_an_environment_that_fails_is_warned_of_and_its_runner_goes_on(group_of):
    group = group_of(failing())
    with pytest.warns(EpibatchWarning, match="simulator lost") as caught:
        first = group.sample(num_timesteps=12)  # 6 steps each, and both fail in the fifth: they sample again
    assert len(caught) == 2 and "FailingEnv" in str(caught[0].message)  # once for each runner, with the traceback
    assert [len(episode) for episode in first if episode.is_done][:1] == [3]
    assert group.fault_report()["num_env_runner_failures"] == 2
    assert group.fault_report()["num_env_runner_restarts"] == 0
    assert sum(map(len, group.sample(num_timesteps=12))) == 12


def test_an_environment_that_fails_again_and_again_is_an_error(group_of):
    config = failing(step=1).fault_tolerance(num_consecutive_env_runner_failures_tolerance=3)
    config.environment(AlwaysFailing)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EpibatchWarning)
        group = group_of(config)
        with pytest.raises(ConnectionError, match="no simulator") as caught:
            group.sample(num_timesteps=10)
    assert any("num_consecutive_env_runner_failures_tolerance" in note for note in notes(caught.value))
    assert group.fault_report()["num_env_runner_failures"] in (7, 8)  # 4 of one, and 3 or 4 of the other
    group = group_of(config.copy().fault_tolerance(restart_failed_env_runners=False))
    with pytest.raises(ConnectionError, match="no simulator"):
        group.sample(num_timesteps=10)
    assert group.fault_report()["num_env_runner_failures"] <= 2


class AlwaysFailing(CountingEnv):
    def __init__(self, step=None, length=5):
        super().__init__(length)

    def step(self, action):
        raise ConnectionError("no simulator")


def notes(error):
    return getattr(error, "__notes__", [])


class FailsOnce(ConnectorV2):
    """Raises in one of its calls in runner 2, after which nothing is wrong."""

    def __call__(self, *, batch, episodes, metrics, **kwargs):
        calls = metrics.peek("calls", 0)
        metrics.log_value("calls", 1, reduce="lifetime_sum")
        if calls == 7 and metrics.peek("fails", 0):
            raise ValueError("a bug of the user")
        return batch


def with_bug(env=None, spaces=None, device=None):
    return [LogSeen(), MeanStdFilter(), FailsOnce()]


def tell(env_runner, metrics_logger, **kwargs):
    metrics_logger.log_value("fails", int(env_runner.worker_index == 2), reduce="item")


def test_a_users_error_is_raised_at_once_and_nothing_counts_twice_or_is_lost(group_of):
    config = config_of(3, envs=1, env_to_module_connector=with_bug).callbacks(on_environment_created=tell)
    group = group_of(config)
    statistics = Statistics(group)
    assert sum(map(len, group.sample(num_timesteps=9))) == 9
    with pytest.raises(ValueError, match="a bug of the user"):
        group.sample(num_timesteps=30)
    assert sum(map(len, group.sample(num_timesteps=30))) == 20  # what the others had sampled
    assert sum(map(len, group.sample(num_timesteps=30))) == 30
    statistics.check()
    assert group.fault_report()["num_env_runner_failures"] == 0
