"""Groups of runners: one in this process, or several, with a fake in place of Ray."""

from __future__ import annotations

import copy
import gc
import pickle
import random
import threading
import warnings
import weakref

import cloudpickle
import fake_actors
import numpy as np
import pytest
from fake_actors import FakeActors, sent
from fixture_cases import slow

from epibatch.algorithms import PPOConfig
from epibatch.connectors import ConnectorV2
from epibatch.connectors.env_to_module import MeanStdFilter
from epibatch.core.errors import ConfigError, EpibatchWarning, RunnerError
from epibatch.env_runner import EnvRunnerGroup, SingleAgentEnvRunner, make_multi_agent
from fixture_envs import CountingEnv, FailingEnv
from fixture_pieces import LogSeen

pytestmark = pytest.mark.filterwarnings("ignore:(?s)env runner .*; replaced, ")


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
    assert group.foreach_env(lambda env: env.unwrapped.spec.id) == [["CartPole-v1"] * 2]
    assert group.foreach_env_runner(lambda runner: runner.worker_index, local_env_runner=False) == []
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


@pytest.mark.parametrize("seed", [0, slow(1)])
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


@pytest.mark.parametrize("count", [slow(1), 2, slow(3)])
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


@pytest.mark.parametrize("seed", [0, *map(slow, (1, 2, 3))])
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


def test_a_runner_knows_all_that_it_saw_if_requests_pass_deliveries(group_of):
    rng = random.Random(0)
    group = group_of(config_of(1, envs=1, max_requests_in_flight_per_env_runner=3), order=rng)
    statistics = Statistics(group)
    for _ in range(12):
        group.request(num_timesteps=rng.randint(1, 9))
        for _ in range(rng.randint(1, 2)):
            group.ready()
            assert _total(actors_of(group).objects[1].runner) == statistics.check()


@pytest.mark.parametrize("seed", [0, *map(slow, (1, 2))])
def test_a_sample_does_not_depend_on_who_is_first(group_of, seed):
    groups = [group_of(config_of(3)), group_of(config_of(3), order=random.Random(seed))]
    for _ in range(3):
        parts = [facts(group.sample(num_timesteps=40)) for group in groups]
        assert parts[0] == parts[1]
    states = [group.local_env_runner.pipelines["env_to_module"].get_state()["mean_std_filter"] for group in groups]
    for part in ("mean", "squares"):
        np.testing.assert_array_equal(*[state["synchronised"][part] for state in states])
    metrics = [group.local_env_runner.get_metrics() for group in groups]
    np.testing.assert_array_equal(*[one["seen"] for one in metrics])


@pytest.mark.parametrize("seed", [0, *map(slow, (1, 2, 3))])
def test_statistics_are_those_of_deliveries_if_runners_die(group_of, seed):
    rng = random.Random(seed)

    def scenario(actors, index, ran):
        return "die" if rng.random() < 0.25 else None

    group = group_of(config_of(3, max_requests_in_flight_per_env_runner=2), order=rng, scenario=scenario)
    statistics, steps = Statistics(group), 0
    for _ in range(20):
        group.request(num_timesteps=rng.randint(1, 12))
        steps += sum(len(episode) for _, episodes in group.ready() for episode in episodes)
        statistics.check()
    report = group.fault_report()
    assert report["num_env_runner_restarts"] == report["num_env_runner_failures"] >= 1
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


def test_a_runner_that_is_lost_with_a_call_of_a_function_is_replaced(group_of):
    group = group_of(config_of(2))
    group.foreach_env_runner_async(lambda runner: runner.worker_index)
    actors_of(group).objects.pop(2).stop()
    assert sum(map(len, group.sample(num_timesteps=20))) == 20
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


def test_a_loss_is_warned_of_once_for_each_kind(group_of):
    config = config_of(2, sample_timeout_s=0.05).fault_tolerance(max_num_env_runner_restarts=7)
    group = group_of(config, scenario=Scenario({(1, 0): "die", (2, 1): "die", (1, 2): "hang"}))
    with pytest.warns(EpibatchWarning) as caught:
        run(group, 5)
    died, hung = [warning.message for warning in caught]
    assert (died.where, died.found.partition(" times")[0]) == ("env runner 1", "death; replaced, 1 of 7")
    assert (hung.where, hung.found.partition(" times")[0]) == (
        "env runner 1",
        "no step for 0.05 s (sample_timeout_s); replaced, 2 of 7",
    )
    assert "max_num_env_runner_restarts" in str(died) and group.num_remote_worker_restarts() == 3


@pytest.mark.parametrize(("given", "most"), [({}, 20), ({"num_consecutive_env_runner_failures_tolerance": 3}, 6)])
def test_runners_that_are_all_lost_again_and_again_are_an_error(group_of, given, most):
    """At the most 10 losses of each runner, or as many as are asked for, if none of them delivers anything."""
    config = config_of(2).fault_tolerance(**given)
    group = group_of(config, order=random.Random(0), scenario=lambda actors, index, ran: "die")
    with pytest.raises(RunnerError, match=r"(?s)env runner [12].*death.*num_consecutive_env_runner_failures_tol"):
        group.sample(num_timesteps=10)
    assert 0 < group.num_remote_worker_restarts() <= most
    assert group.num_in_flight_async_reqs() and group.get_state() == {"runners": {}}  # the run saves


def test_one_runner_that_is_lost_again_and_again_does_not_end_the_others(group_of):
    group = group_of(config_of(2), scenario=lambda actors, index, ran: "die" if index == 1 else None)
    for _ in range(25):
        assert 10 <= sum(map(len, group.sample(num_timesteps=20))) < 20
    assert group.num_remote_worker_restarts() == 25


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


def test_a_runner_that_cannot_be_made_again_is_tried_again(group_of):
    Flaky.failures = 0
    group = group_of(config_of(2, envs=1).environment(Flaky), scenario=Scenario({(1, 1): "die"}))
    group.sample(num_timesteps=20)
    Flaky.failures = 3
    for _ in range(6):
        assert sum(map(len, group.sample(num_timesteps=20))) >= 10
    report = group.fault_report()
    assert (report["num_env_runner_restarts"], report["num_healthy_env_runners"]) == (4, 2)
    config = config_of(2, envs=1).environment(Flaky)
    Flaky.failures = 0
    config.fault_tolerance(num_consecutive_env_runner_failures_tolerance=5)
    group = group_of(config, scenario=Scenario({(1, 1): "die"}))
    group.sample(num_timesteps=20)
    Flaky.failures = 1000
    with pytest.raises(RunnerError, match="6 failures in a row") as caught:
        run(group, 9)
    assert "licence" in str(caught.value)


class Flaky(CountingEnv):
    """Cannot be made a number of times."""

    failures = 0

    def __init__(self):
        super().__init__()
        if Flaky.failures:
            Flaky.failures -= 1
            raise OSError("no licence is free")


@pytest.mark.parametrize("told", [(1, 2, 3), (9, 3, 5)])  # a function that it calls may set its count back
def test_a_slow_runner_is_waited_for(group_of, told):
    config = config_of(1, sample_timeout_s=0.05)
    group = group_of(config, scenario=Scenario({(1, 0): "hang"}))
    steps = iter(told)

    def progress(indexes, timeout):
        step = next(steps)
        if step == told[-1]:
            actors_of(group).hanging.clear()
        return dict.fromkeys(indexes, step)

    actors_of(group).progress = progress
    with pytest.warns(EpibatchWarning, match="sample_timeout_s") as caught:
        assert sum(map(len, group.sample(num_timesteps=10))) == 10
    assert len(caught) == 1 and group.fault_report()["num_env_runner_restarts"] == 0


def test_a_runner_that_steps_no_more_is_replaced(group_of):
    group = group_of(config_of(1, sample_timeout_s=0.05), scenario=Scenario({(1, 0): "hang"}))
    actors_of(group).progress = lambda indexes, timeout: dict.fromkeys(
        indexes, 7
    )  # after the first look it has not gone on
    with pytest.warns(EpibatchWarning) as caught:
        assert sum(map(len, group.sample(num_timesteps=10))) == 10
    (warning,) = caught  # none says that it steps
    assert "no step for 0.05 s (sample_timeout_s); replaced, 1 of 1000" in str(warning.message)
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


# ------------------------------------------------------------------------------------ what travels


def test_if_statistics_cannot_be_merged_nothing_counts_twice_or_is_lost(group_of, monkeypatch):
    group = group_of(config_of(2))
    statistics = Statistics(group)
    group.request(num_timesteps=20)
    last = list(group.local_env_runner.pipelines.values())[-1]
    with monkeypatch.context() as patch:
        patch.setattr(last, "merge_states", lambda states: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            group.ready()
    assert sum(len(episode) for _, episodes in group.ready() for episode in episodes) == 40
    assert statistics.check() >= 40


def log_speed(metrics_logger, env_runner, samples, **kwargs):
    metrics_logger.log_value("speed", 1.0, reduce="sum" if env_runner.worker_index == 2 else "mean")


def test_deliveries_whose_metrics_do_not_fit_count_once_and_their_episodes_are_kept(group_of):
    group = group_of(config_of(2).callbacks(on_sample_end=log_speed))
    for _ in range(2):
        with pytest.raises(ConfigError, match="speed"):
            group.sample(num_timesteps=20)
        assert sum(map(len, group.sample(num_timesteps=20))) == 20
    state = group.local_env_runner.pipelines["env_to_module"].get_state()["mean_std_filter"]
    assert 40 <= state["synchronised"]["count"] + state["since"]["count"] < 60
    assert group.local_env_runner.num_env_steps_sampled_lifetime == 40


class HasLock(ConnectorV2):
    """Cannot be sent to another process."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.lock = threading.Lock()

    def __call__(self, *, batch, **kwargs):
        return batch


def test_an_edit_that_cannot_be_sent_is_an_error_each_time_until_it_is_undone(group_of):
    group = group_of(config_of(2))
    group.sample(num_timesteps=20)
    pipeline = group.local_env_runner.pipelines["env_to_module"]
    pipeline.prepend(HasLock())
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"(?s)env_to_module, has_lock.*lock at env_to_module, has_lock > lock"):
            group.sample(num_timesteps=20)
    pipeline.remove("has_lock")
    assert sum(map(len, group.sample(num_timesteps=20))) > 0


def test_a_runner_that_hangs_while_the_group_is_saved_is_replaced(group_of):
    group = group_of(config_of(2, sample_timeout_s=0.1))
    group.sample(num_timesteps=20)
    actors_of(group).hanging.add(1)
    assert list(group.get_state()["runners"]) == ["2"]
    assert group.num_remote_worker_restarts() == 1
    assert sum(map(len, group.sample(num_timesteps=20))) > 0


def test_a_runner_that_is_stuck_in_a_function_while_the_group_is_saved_is_replaced(group_of):
    group = group_of(config_of(1, sample_timeout_s=0.1))
    group.sample(num_timesteps=20)
    actors_of(group).hanging.add(1)
    actors_of(group).progress = lambda indexes, timeout: dict.fromkeys(indexes, 20)  # its other thread answers
    assert group.get_state()["runners"] == {} and group.num_remote_worker_restarts() == 1


def test_runners_that_hang_are_looked_at_together(group_of):
    hangs = Scenario({(1, 0): "hang", (2, 0): "hang", (3, 0): "hang"})
    group = group_of(config_of(3, sample_timeout_s=0.1), scenario=hangs)
    group.sample(num_timesteps=30)
    assert len(actors_of(group).probes) <= 2 and group.num_remote_worker_restarts() == 3  # the first, and all others


def requests_of(group):
    """The arguments of the requests for episodes, by runner."""
    sent = [(index, args) for index, method, args in actors_of(group).sent if method == "sample"]
    return {index: [args for i, args in sent if i == index] for index in range(1, 4)}


def sequence_numbers(episodes):
    return {int(n) for e in episodes for n in np.asarray(e.get_extra_model_outputs("weights_seq_no"))}


def test_restored_weights_reach_runners_that_have_others_of_the_same_number(group_of):
    group = group_of(config_of(2))
    local = group.local_env_runner
    group.sync_weights()
    assert sequence_numbers(group.sample(num_timesteps=20)) == {1}
    zeros = {name: np.zeros_like(value) for name, value in local.module.get_state().items()}
    local.set_state({**local.get_state(), "rl_module": zeros})
    group.set_state(group.get_state())
    assert sequence_numbers(group.sample(num_timesteps=20)) == {1}
    for weights in group.foreach_env_runner(lambda runner: runner.module.get_state()):
        assert all((value == 0).all() for value in weights.values())


def test_weights_are_sent_once_for_each_update(group_of):
    group = group_of(config_of(2))
    local, seen = group.local_env_runner, []
    for update in range(4):
        for _ in range(2):
            seen.append(sequence_numbers(group.sample(num_timesteps=20)))
        bias = next(name for name in local.module.get_state() if name.endswith("bias"))
        local.module.set_state({**local.module.get_state(), bias: local.module.get_state()[bias] + update})
        local.weights_updated()
    assert seen == [{0}, {0}, {1}, {1}, {2}, {2}, {3}, {3}]
    for requests in list(requests_of(group).values())[:2]:
        assert [weights is not None for _, _, weights, _, _ in requests] == [True, False] * 4
    refs = [args[2] for index, _, args in actors_of(group).sent if args[2] is not None]
    assert len(set(map(id, refs))) == 4  # one put for all runners
    group.sample(num_timesteps=10)
    for weights in group.foreach_env_runner(lambda runner: runner.module.get_state()):
        for name, value in local.module.get_state().items():
            np.testing.assert_array_equal(weights[name], value)


def test_a_lower_sequence_number_is_taken_too(group_of):
    group = group_of(config_of(1))
    local = group.local_env_runner
    saved = local.get_state()
    for _ in range(3):
        local.weights_updated()
    assert sequence_numbers(group.sample(num_timesteps=10)) == {3}
    local.set_state(saved)
    assert sequence_numbers(group.sample(num_timesteps=10)) == {0}


def test_changed_pipelines_and_settings_reach_the_runners(group_of):
    group = group_of(config_of(2))
    local, config = group.local_env_runner, None
    statistics = Statistics(group)
    group.sample(num_timesteps=20)
    local.pipelines["env_to_module"].prepend(LogDoubled())
    episodes = group.sample(num_timesteps=20)
    assert sequence_numbers(episodes) == {0, 1}  # an edit counts from the first observation that it changed
    metrics = local.get_metrics()
    assert metrics["doubled"] == len(metrics["seen"][-metrics["doubled"] :]) >= 20
    statistics.rows += metrics["seen"]
    group.sample(num_timesteps=20)
    statistics.check()
    assert [args[1] is not None for args in requests_of(group)[1]] == [False, True, False]
    local.pipelines["env_to_module"].remove("log_doubled")
    assert sequence_numbers(group.sample(num_timesteps=20)) == {1, 2}
    statistics.check()
    config = group.foreach_env_runner(lambda runner: runner.config, local_env_runner=False)[0]
    assert config.num_envs_per_env_runner == 2


class Scaled(ConnectorV2):
    """Multiplies observations by a setting, and remembers for itself how often."""

    lookback = 0

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.factor, self._calls = 1.0, 0

    def __call__(self, *, batch, episodes, **kwargs):
        self._calls += 1
        for episode in episodes:
            episode.set_observations(new_data=self.factor * episode.get_observations(-1), at_indices=-1)
        return batch


def scaled(env=None, spaces=None, device=None):
    return [Scaled(), MeanStdFilter()]


def test_edits_and_settings_of_pieces_change_what_runners_do_as_in_one_process(group_of):
    config = config_of(1, env_to_module_connector=scaled)
    group, alone = group_of(config), SingleAgentEnvRunner(config=config, worker_index=1)
    alone.module.set_state(group.local_env_runner.module.get_state())
    changes = [
        lambda pipeline: None,
        lambda pipeline: setattr(pipeline["scaled"], "factor", 5.0),
        lambda pipeline: pipeline.append(LogDoubled()),
        lambda pipeline: None,
        lambda pipeline: pipeline["mean_std_filter"].freeze(),
    ]
    for change in changes:
        episodes = []
        for runner, pipelines in ((group, group.local_env_runner.pipelines), (alone, alone.pipelines)):
            change(pipelines["env_to_module"])
            sample = runner.sample(num_timesteps=30)
            rows = [(e.get_observations(), e.get_extra_model_outputs("weights_seq_no")) for e in sample]
            episodes.append((facts(sample), [np.asarray(column).tolist() for row in rows for column in row]))
        assert episodes[0] == episodes[1]
    assert [args[1] is not None for args in requests_of(group)[1]] == [False, True, True, False, True]


class LogDoubled(ConnectorV2):
    """Counts its episodes."""

    def __call__(self, *, batch, episodes, metrics, **kwargs):
        metrics.log_value("doubled", len(episodes), reduce="sum", clear_on_reduce=True)
        return batch


class Draws(ConnectorV2):
    """Has a random generator."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seed(0)

    def seed(self, seed):
        self.rng = np.random.default_rng(seed)

    def __call__(self, *, batch, **kwargs):
        return batch


def test_new_pieces_draw_other_numbers_in_each_runner(group_of):
    numbers = []
    for _ in range(2):
        group = group_of(config_of(2))
        group.sample(num_timesteps=20)
        group.local_env_runner.pipelines["env_to_module"].prepend(Draws())
        group.sample(num_timesteps=20)
        numbers += group.foreach_env_runner(lambda runner: runner.pipelines["env_to_module"][0].rng.random())
    assert len(set(numbers)) == 3 and numbers[:3] == numbers[3:]  # here, in runner 1 and in runner 2


def test_settings_of_runners_reach_them_and_others_end_no_episodes(group_of):
    config = config_of(2, envs=1)
    group = group_of(config)
    group.sample(num_timesteps=4)
    config.training(lr=0.1)
    assert {episode.t_started for episode in group.sample(num_timesteps=4)} == {2}
    config.training(train_batch_size=20)
    assert sum(map(len, group.sample())) == 20
    config.env_runners(explore=False)
    group.sample(num_timesteps=4)
    explores = group.foreach_env_runner(lambda runner: runner.config.explore, local_env_runner=False)
    assert explores == [False, False]
    assert [args[1] is not None for args in requests_of(group)[1]] == [False, False, True, True]


def test_a_replaced_runner_gets_changed_pipelines_too(group_of):
    group = group_of(config_of(2), scenario=Scenario({(2, 2): "die"}))
    group.sample(num_timesteps=20)
    group.local_env_runner.pipelines["env_to_module"].prepend(LogDoubled())
    for _ in range(3):
        group.sample(num_timesteps=20)
    assert group.fault_report()["num_env_runner_restarts"] == 1
    names = group.foreach_env_runner(lambda runner: runner.pipelines["env_to_module"].names)
    assert [name[0] for name in names] == ["log_doubled"] * 3


def test_history_that_pieces_read_is_known_here(group_of):
    group = group_of(config_of(2))
    assert not group.local_env_runner.pipelines["env_to_module"].lookback_known
    group.sample(num_timesteps=20)
    assert group.local_env_runner.pipelines["env_to_module"].lookback_known
    group.local_env_runner.require_lookback(3)
    group.sample(num_timesteps=20)
    group.sample(num_timesteps=20)
    assert set(group.foreach_env_runner(lambda runner: runner.lookback, local_env_runner=False)) == {3}


class Watch:
    """Has what a pipeline's watch has, and keeps what is added."""

    def __init__(self):
        self.added = []

    def stepped(self, step, seconds, batch):
        raise AssertionError("the pipelines here do not run")

    def add(self, seconds):
        self.added.append(seconds)


def test_seconds_of_pieces_add_up(group_of):
    group = group_of(config_of(2).debugging(time_pieces=True))
    group.local_env_runner.pipelines["env_to_module"].watch = watch = Watch()
    group.sample(num_timesteps=20)
    assert len(watch.added) == 2
    assert all(seconds["mean_std_filter"] > 0 for seconds in watch.added)


@pytest.mark.parametrize("amount", [1, 3])
def test_requests_in_flight_are_bounded(group_of, amount):
    group = group_of(config_of(2, envs=1, max_requests_in_flight_per_env_runner=amount), order=random.Random(0))
    assert group.request(num_timesteps=8) == group.num_in_flight_async_reqs() == 2 * amount
    for _ in range(5):
        ((index, episodes),) = group.ready()
        assert index in (1, 2) and sum(map(len, episodes)) == 8
        assert group.request(num_timesteps=8) == 1


def test_bytes_in_flight_are_bounded(group_of):
    config = config_of(3, envs=1, max_requests_in_flight_per_env_runner=3, max_bytes_in_flight=1)
    group = group_of(config, order=random.Random(0))
    assert group.request(num_timesteps=100) == 3  # their sizes are not known
    sizes = [len(pickle.dumps(group.ready()[0][1])) for _ in range(3)]
    for _ in range(3):
        assert (group.request(num_timesteps=100), group.request(num_timesteps=100)) == (1, 0)
        group.ready()
    config = config.copy().env_runners(max_bytes_in_flight=5 * max(sizes))
    group = group_of(config, order=random.Random(0))
    group.request(num_timesteps=100)
    for _ in range(3):
        group.ready()
    group.request(num_timesteps=100)
    assert 4 <= group.num_in_flight_async_reqs() <= 6


def test_few_bytes_in_flight_starve_no_runner(group_of):
    group = group_of(config_of(3, envs=1, max_bytes_in_flight=1))
    assert [sum(map(len, group.sample(num_timesteps=30))) for _ in range(3)] == [30, 30, 30]
    asked = []
    for _ in range(4):
        assert group.request(num_timesteps=10) == 1
        asked += [index for index, _ in group.ready()]
    assert asked == [1, 2, 3, 1]


def test_requests_can_be_few(group_of):
    group = group_of(config_of(3, max_requests_in_flight_per_env_runner=2))
    assert [group.request(num_timesteps=4, at_most=most) for most in (0, 2, 2, None)] == [0, 2, 2, 2]


def test_requests_that_run_are_what_sample_returns(group_of):
    group = group_of(config_of(2))
    assert group.request(num_timesteps=6) == 2
    assert sum(map(len, group.sample())) == 12
    assert group.num_in_flight_async_reqs() == 0


def test_functions_run_in_each_runner(group_of):
    group = group_of(config_of(2))
    index = lambda runner, plus=0: runner.worker_index + plus  # noqa: E731
    assert group.foreach_env_runner(index) == [0, 1, 2]
    assert group.foreach_env_runner(index, local_env_runner=False, remote_worker_ids=[2], kwargs={"plus": 5}) == [7]
    assert group.foreach_env(lambda env: env.unwrapped.spec.id) == [[], *[["CartPole-v1"] * 2] * 2]
    assert group.foreach_env_runner_async(index, tag="one") == 2
    assert group.foreach_env_runner_async(index, tag="two", kwargs={"plus": 10}) == 2
    assert (group.num_in_flight_async_reqs("one"), group.num_in_flight_async_reqs()) == (2, 0)
    assert group.fetch_ready_async_reqs(tags="two", timeout_seconds=None) == [(1, 11), (2, 12)]
    assert group.fetch_ready_async_reqs() == [(1, 1), (2, 2)]
    assert group.fetch_ready_async_reqs() == []
    assert group.num_remote_env_runners() == 2 and group.healthy_env_runner_ids() == [1, 2]


# ------------------------------------------------------------------------------------ states of other kinds


class Counter(ConnectorV2):
    """Counts its calls; the counts of copies cannot be merged."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.calls = 0

    def __call__(self, *, batch, **kwargs):
        self.calls += 1
        return batch

    def get_state(self, *args, **kwargs):
        return {"calls": self.calls} if self.calls else {}

    def set_state(self, state):
        self.calls = state["calls"]

    def reset_state(self):
        self.calls = 0


class AddedCounter(Counter):
    """Counts the calls of all copies: `synchronised` are those of all at the last merge, `since` are new."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.before = 0

    def get_state(self, *args, **kwargs):
        return {"synchronised": self.before, "since": self.calls} if self.before + self.calls else {}

    def set_state(self, state):
        self.before, self.calls = state["synchronised"], state["since"]

    def reset_state(self):
        self.before = self.calls = 0

    def merge_states(self, states):
        before = max(state["synchronised"] for state in states)
        return {"synchronised": before + sum(state["since"] for state in states), "since": 0}


def test_of_several_deliveries_the_newest_state_that_cannot_be_merged_is_shown(group_of):
    runners = {"max_requests_in_flight_per_env_runner": 2, "env_to_module_connector": counters}
    group = group_of(config_of(1, envs=1, **runners))
    group.request(num_timesteps=5)
    with pytest.warns(EpibatchWarning, match="states of counter\n"):
        group.ready()
    assert counts(group.local_env_runner)[0] == group.foreach_env_runner(counts, local_env_runner=False)[0][0]


def counters(env=None, spaces=None, device=None):
    return [Counter(), AddedCounter()]


def counts(runner):
    return [piece.get_state() for piece in list(runner.pipelines["env_to_module"])[:2]]


def test_states_that_cannot_be_merged_stay_those_of_each_runner(group_of):
    config = config_of(2, envs=1, env_to_module_connector=counters)
    group = group_of(config, scenario=Scenario({(1, 3): "die"}))
    with pytest.warns(EpibatchWarning, match="states of counter\n"):
        group.sample(num_timesteps=20)
    for _ in range(2):
        group.sample(num_timesteps=20)  # warnings are errors: it is said once
    own = group.foreach_env_runner(counts)
    calls = [state[0]["calls"] for state in own]
    assert calls[0] == calls[1] >= 31 and calls[2] >= 31
    assert own[0][1] == {"synchronised": calls[1] + calls[2], "since": 0}
    group.sample(num_timesteps=20)
    assert group.fault_report()["num_env_runner_restarts"] == 1
    group.sample(num_timesteps=20)  # the new one goes on from what the old one delivered last
    again = [state[0]["calls"] for state in group.foreach_env_runner(counts)]
    assert calls[1] + 10 <= again[1] <= calls[1] + 15
    group.sample(num_timesteps=20)
    assert group.foreach_env_runner(counts)[1][0]["calls"] >= calls[1] + 20


@pytest.mark.parametrize("setting", ["merge_env_runner_states", "broadcast_env_runner_states"])
def test_without_merging_or_broadcasting_each_runner_goes_by_its_own(group_of, setting):
    config = config_of(2, envs=1, **{setting: False})
    group = group_of(config, scenario=Scenario({(2, 3): "die"}))
    statistics = Statistics(group)
    for _ in range(3):
        group.sample(num_timesteps=20)
    own = group.foreach_env_runner(_total)
    if setting == "merge_env_runner_states":
        assert own[0] == own[1]  # here are those of the first one
    else:
        assert own[0] == own[1] + own[2] == statistics.check()
    assert all(30 < seen < 40 for seen in own[1:])
    group.sample(num_timesteps=20)
    group.sample(num_timesteps=20)
    after = group.foreach_env_runner(_total, local_env_runner=False)
    assert after[0] >= own[1] + 20 and own[2] + 10 <= after[1] <= own[2] + 15  # as delivered last, and 10 steps


def test_forgotten_statistics_are_forgotten_by_all(group_of):
    group = group_of(config_of(2))
    group.sample(num_timesteps=50)
    group.local_env_runner.get_metrics()
    group.local_env_runner.pipelines["env_to_module"]["mean_std_filter"].reset_state()
    statistics = Statistics(group)
    group.sample(num_timesteps=10)
    assert 10 <= statistics.check() <= 20
    assert max(group.foreach_env_runner(_total)) <= 20


# ------------------------------------------------------------------------------------ saving


def run(group, count=2):
    return [facts(group.sample(num_timesteps=30)) for _ in range(count)]


def test_a_restored_group_goes_on_as_the_one_that_saved(group_of):
    first = group_of(config_of(2))
    run(first)
    saved, local = first.get_state(), first.local_env_runner.get_state()
    first.checkpoint_reset()
    second = group_of(config_of(2))
    second.local_env_runner.set_state(local)
    second.set_state(sent(saved))
    second.checkpoint_reset()
    assert run(first) == run(second)
    totals = [group.local_env_runner.pipelines["env_to_module"].get_state() for group in (first, second)]
    assert np.array_equal(*[total["mean_std_filter"]["synchronised"]["mean"] for total in totals])


def test_saving_changes_nothing(group_of):
    groups = [group_of(config_of(2)) for _ in range(2)]
    results = [[], []]
    for _ in range(3):
        for position, group in enumerate(groups):
            results[position].append(run(group, 1))
            if position:
                group.get_state()
    assert results[0] == results[1]


@pytest.mark.parametrize(("before", "after"), [(2, 3), slow(3, 2), slow(0, 2), slow(2, 0)])
def test_a_group_is_restored_with_another_number_of_runners(group_of, before, after):
    first = group_of(config_of(before)) if before else EnvRunnerGroup(config=config_of(0))
    statistics = Statistics(first)
    run(first)
    count = statistics.check()
    second = group_of(config_of(after)) if after else EnvRunnerGroup(config=config_of(0))
    run(second)
    states = sent((first.get_state(), first.local_env_runner.get_state()))
    second.local_env_runner.set_state(states[1])
    second.set_state(states[0])
    fresh = Statistics(second)
    fresh.rows = list(statistics.rows)
    second.local_env_runner.get_metrics()
    run(second)
    assert fresh.check() > count
    if before and after:
        entropies = [group.get_state()["runners"]["2"]["runner"]["reset_seeds"]["entropy"] for group in (first, second)]
        assert entropies[0] == entropies[1]
    for group, number in ((first, before), (second, after)):
        if not number:
            group.stop()


def test_dropped_requests_leave_nothing_behind(group_of):
    group = group_of(config_of(2))
    statistics = Statistics(group)
    group.sample(num_timesteps=20)
    group.request(num_timesteps=40)
    group.checkpoint_reset()
    steps = group.local_env_runner.num_env_steps_sampled_lifetime
    assert 20 <= steps <= 24
    assert all(episode.t_started == 0 for episode in group.sample(num_timesteps=20))
    statistics.check()
    assert max(group.foreach_env_runner(_total, local_env_runner=False)) <= len(statistics.rows)


def test_episodes_that_were_dropped_are_not_lost_again(group_of):
    group = group_of(config_of(2), scenario=Scenario({(2, 1): "die"}))
    group.sample(num_timesteps=20)
    group.checkpoint_reset()
    group.sample(num_timesteps=20)
    assert group.fault_report()["num_env_runner_restarts"] == 1
    assert group.fault_report()["num_episodes_lost"] == 0


def test_nothing_keeps_the_memory_of_samples(group_of, monkeypatch):
    config = config_of(2, merge_env_runner_states=False, env_to_module_connector=lambda *_, **__: [MeanStdFilter()])
    group, memories = group_of(config), []

    class Memory(bytearray):
        """Memory of the object store, of which a test sees whether it is in use."""

    def sent_in_memory(value):
        buffers = []
        data = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        used = [Memory(buffer.raw()) for buffer in buffers]
        memories.extend(map(weakref.ref, used))
        return pickle.loads(data, buffers=[memoryview(memory).toreadonly() for memory in used])

    monkeypatch.setattr(fake_actors, "sent", sent_in_memory)
    group.sample(num_timesteps=20)
    gc.collect()
    assert memories and not any(memory() is not None for memory in memories)


def test_metrics_are_those_of_all_runners(group_of):
    group, lengths = group_of(config_of(3, envs=1)), []
    for _ in range(4):
        episodes = group.sample(num_timesteps=90)
        by_id = {}
        for episode in episodes:
            by_id[episode.id_] = by_id.get(episode.id_, 0) + len(episode)
        metrics = group.local_env_runner.get_metrics()
        lengths += [episode.t for episode in episodes if episode.is_done]
        assert metrics["num_env_steps_sampled"] == sum(map(len, episodes)) == 90
        assert metrics["num_episodes_lifetime"] == len(lengths)
        assert metrics["episode_len_mean"] == pytest.approx(np.mean(lengths[-100:]))
        assert metrics["episode_return_max"] == max(lengths[-100:])
        assert metrics["sample"] > 0 and metrics["env_step_timer"] > 0


# ------------------------------------------------------------------------------------ several agents


def agents_config(count, **settings):
    config = PPOConfig().environment(make_multi_agent("CartPole-v1"), env_config={"num_agents": 2})
    mapping = {"0": "a", "1": "b"}
    config.multi_agent(policies=["a", "b"], policy_mapping_fn=mapping, **settings)
    config.env_runners(num_env_runners=count, num_envs_per_env_runner=2)
    return config.env_runners(env_to_module_connector=[{"piece": "mean_std_filter"}]).debugging(seed=1)


@pytest.mark.parametrize("count_steps_by", ["env_steps", "agent_steps"])
def test_several_agents(group_of, count_steps_by):
    group = group_of(agents_config(2, count_steps_by=count_steps_by))
    rows, steps = {"0": 0, "1": 0}, 0
    for _ in range(3):
        episodes = group.sample(num_timesteps=40)
        steps += sum(episode.agent_steps() for episode in episodes)
    metrics = group.local_env_runner.get_metrics()
    assert sum(metrics["num_agent_steps_sampled_lifetime"].values()) >= steps > 100
    assert set(metrics["module_episode_returns_mean"]) == {"a", "b"}
    agents = group.local_env_runner.pipelines["env_to_module"].get_state()["mean_std_filter"]["agents"]
    assert {str(agent) for agent in agents} == set(rows)
    counted = sum(state["synchronised"]["count"] for state in agents.values())
    assert steps + 2 * 4 <= counted <= steps + 2 * (4 + metrics["num_episodes_lifetime"])  # and first observations


def test_a_new_module_reaches_the_runners(group_of):
    config = agents_config(2)
    group = group_of(config)
    local = group.local_env_runner
    group.sample(num_timesteps=20)
    module = copy.deepcopy(local.module["a"])
    local.module.add_module("c", module)
    spec = dict(local.config.policies)
    config.multi_agent(policies=[*spec, "c"], policy_mapping_fn={"0": "a", "1": "c"})
    config.update_modules(local.pipelines["env_to_module"])
    local.get_spaces()["c"] = local.get_spaces()["a"]
    local.weights_updated()
    episodes = group.sample(num_timesteps=20, force_reset=True)
    assert {episode.module_for(agent) for episode in episodes for agent in episode.agent_ids} == {"a", "c"}
    for names in group.foreach_env_runner(lambda runner: list(runner.module)):
        assert names == ["a", "b", "c"]


# ------------------------------------------------------------------------------------ bad input


def test_a_constructor_that_fails_leaves_nothing_running(group_of):
    with pytest.raises(ValueError, match="no room"):
        group_of(config_of(2).environment(Picky, env_config={"here": True}))
    assert Picky.open == 0


class Picky(CountingEnv):
    """Can only be made once."""

    open = 0

    def __init__(self, here=False):
        super().__init__()
        if Picky.open:
            raise ValueError("no room")
        Picky.open += 1

    def close(self):
        Picky.open -= 1


def test_a_stopped_group_is_an_error(group_of):
    group = group_of(config_of(2))
    group.stop()
    with pytest.raises(RunnerError, match="stopped"):
        group.sample()


def test_a_setting_that_cannot_be_sent_is_named(tmp_path):
    pytest.importorskip("ray")
    with (tmp_path / "log").open("w") as log:
        config = config_of(2).callbacks(on_sample_end=lambda **_: log.write("sampled"))
        with pytest.raises(ConfigError, match=r"callbacks.on_sample_end"):
            EnvRunnerGroup(config=config)
