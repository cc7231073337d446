"""IMPALA and APPO with runners and learners in processes: what is learned from, waits, ages, and kills."""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import pytest

from epibatch.algorithms import APPOConfig, IMPALAConfig
from fixture_configs import best_return, pole_of_fragments
from fixture_envs import CountingEnv


def small(kind, num_runners=2, num_learners=0):
    return (
        kind()
        .environment(CountingEnv, env_config={"length": 9})
        .env_runners(num_env_runners=num_runners, num_cpus_per_env_runner=0, rollout_fragment_length=20)
        .learners(num_learners=num_learners, num_cpus_per_learner=0)
        .training(train_batch_size=60 // max(1, num_learners))
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .debugging(seed=3)
    )


class Sleepy(CountingEnv):
    """The first environment of a runner sleeps in each step; ten times as long with the runner of one number."""

    def __init__(self, config):
        super().__init__(length=9)
        is_first, is_slow = config.vector_index == 0, config.worker_index == config["slow"]
        self.seconds = 0.1 * is_first * (10 if is_slow else 1)

    def step(self, action):
        time.sleep(self.seconds)
        return super().step(action)


class Noted:
    """What each update of an algorithm was given, in place of its own `update`."""

    def __init__(self, algo):
        self.batches, self._update = [], algo.learner_group.update
        algo.learner_group.update = self

    def __call__(self, *, episodes, **keywords):
        self.batches.append([(chunk.id_, t) for chunk in episodes for t in range(chunk.t_started, chunk.t)])
        return self._update(episodes=episodes, **keywords)

    @property
    def steps(self):
        return [step for batch in self.batches for step in batch]


@pytest.mark.parametrize(("kind", "num_learners"), [(IMPALAConfig, 0), (APPOConfig, 2)])
def test_runners_sample_while_the_modules_learn(cluster, kind, num_learners):
    config = small(kind, 2, num_learners)
    if kind is APPOConfig:
        config.training(circular_buffer_iterations_per_batch=1, target_network_update_freq=0.25, use_kl_loss=True)
    algo = config.build_algo()
    noted = Noted(algo)
    for _ in range(2):
        results = algo.train()
    assert len(set(noted.steps)) == len(noted.steps), "no step twice"
    dropped, waiting = results["queue"]["num_env_steps_dropped_lifetime"], results["queue"]["num_batches"]
    sampled = results["num_env_steps_sampled_lifetime"]
    assert 0 <= sampled - len(noted.steps) - dropped < 60 * (waiting + 2), "the rest waits"
    assert results["learners"]["default_policy"]["num_rows"] >= 60
    assert results["queue"]["age_of_rows_mean"] > 0.5, "each has acted with weights of before the last update"
    assert set(results["waiting"]) == {"env_runners_s", "learner_s"} and min(results["waiting"].values()) >= 0
    assert algo.env_runner_group.num_in_flight_async_reqs() > 0, "they go on"
    algo.stop()


def test_weights_are_sent_after_as_many_updates_as_is_said(cluster):
    algo = small(IMPALAConfig).training(broadcast_interval=4).build_algo()
    versions = set()
    update = algo.learner_group.update

    def noted(*, episodes, **keywords):
        versions.update(int(chunk.get_extra_model_outputs("weights_seq_no", -1)) for chunk in episodes)
        return update(episodes=episodes, **keywords)

    algo.learner_group.update = noted
    algo.train()
    first, *others = sorted(versions)
    assert first == 0 and len(others) > 2
    assert min(after - before for before, after in zip(sorted(versions), others)) >= 4
    algo.stop()


@pytest.mark.filterwarnings("ignore:(?s)env runner .*; replaced, ")
def test_killed_runners_lose_and_double_nothing_that_was_delivered(cluster):
    config = small(APPOConfig).training(circular_buffer_iterations_per_batch=1)
    algo = config.fault_tolerance(max_num_env_runner_restarts=100).build_algo()
    noted, rng, kills = Noted(algo), random.Random(0), 0
    while kills < 5:
        pids = algo.env_runner_group.foreach_env_runner(lambda runner: os.getpid(), local_env_runner=False)

        thread = threading.Timer(rng.uniform(0, 0.5), os.kill, [rng.choice(pids), signal.SIGKILL])
        thread.start()
        results = algo.train()
        thread.join()
        kills += 1
    results = algo.train()
    assert results["fault_tolerance"]["num_env_runner_restarts"] == kills
    assert len(set(noted.steps)) == len(noted.steps), "no step twice"
    dropped, waiting = results["queue"]["num_env_steps_dropped_lifetime"], results["queue"]["num_batches"]
    left = results["num_env_steps_sampled_lifetime"] - len(noted.steps) - dropped
    assert 0 <= left < 60 * (waiting + 2), "the rest waits"
    algo.stop()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:(?s).*that start within")  # on a busy machine
def test_a_slow_runner_holds_no_other_up(cluster):
    rates = []
    for num_runners, slow in ((3, None), (4, 1)):
        config = small(APPOConfig, num_runners).environment(Sleepy, env_config={"slow": slow})
        algo = config.env_runners(num_envs_per_env_runner=10, rollout_fragment_length=5).build_algo()
        algo.train()
        before, began = algo.env_runner.num_env_steps_sampled_lifetime, time.perf_counter()
        while time.perf_counter() - began < 10:
            algo.train()
        steps = algo.env_runner.num_env_steps_sampled_lifetime - before
        rates.append(steps / (time.perf_counter() - began))
        algo.stop()
    assert rates[1] > 0.8 * rates[0], rates


@pytest.mark.slow
@pytest.mark.parametrize("kind", [IMPALAConfig, APPOConfig])
def test_the_pole_is_balanced_by_two_runners(cluster, kind):
    best = []
    for seed in range(3):
        config = pole_of_fragments(kind, seed, num_env_runners=2, num_cpus_per_env_runner=0)
        best.append(best_return(config, 150_000, 475, iterations=5))
        if best[-1] >= 475:
            break
    assert max(best) >= 475, best
