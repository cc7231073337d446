"""Runners in real processes: some are killed, some stopped, and what was returned counts once."""

from __future__ import annotations

import os
import signal
import time

import numpy as np

from epibatch.algorithms import PPOConfig
from epibatch.connectors.env_to_module import MeanStdFilter
from epibatch.env_runner import EnvRunnerGroup
from fixture_pieces import LogSeen


def pieces(env=None, spaces=None, device=None):
    return [LogSeen(), MeanStdFilter()]


def pid_of(runner):
    return os.getpid()


def test_statistics_are_those_of_what_was_returned_though_runners_are_killed_or_hang(cluster):
    config = PPOConfig().environment("CartPole-v1").debugging(seed=0)
    config.env_runners(num_env_runners=2, num_envs_per_env_runner=2, num_cpus_per_env_runner=0)
    config.env_runners(env_to_module_connector=pieces, max_requests_in_flight_per_env_runner=2, sample_timeout_s=2)
    config.fault_tolerance(env_runner_health_probe_timeout_s=1)
    group = EnvRunnerGroup(config=config)
    piece, seen, steps = group.local_env_runner.pipelines["env_to_module"]["mean_std_filter"], [], 0

    def sample(signal_to_first=None):
        nonlocal steps
        group.request(num_timesteps=300)
        if signal_to_first is not None:
            os.kill(pids[0], signal_to_first)
        for _, episodes in group.ready():
            steps += sum(map(len, episodes))
        seen.extend(group.local_env_runner.get_metrics()["seen"])
        total = piece.merge_states([piece.get_state()])["synchronised"]
        assert total["count"] == len(seen)
        np.testing.assert_allclose(total["mean"], np.mean(seen, 0), rtol=1e-10)
        np.testing.assert_allclose(total["squares"], np.var(seen, 0) * len(seen), rtol=1e-10)

    try:
        pids = group.foreach_env_runner(pid_of, local_env_runner=False)
        assert len(set(pids)) == 2 and os.getpid() not in pids
        sample()
        sample(signal.SIGKILL)
        pids.pop(0)
        sample(signal.SIGSTOP)
        end = time.monotonic() + 60
        while group.fault_report()["num_env_runner_restarts"] < 2 or group.num_healthy_remote_env_runners() < 2:
            assert time.monotonic() < end
            sample()
        sample()
        assert group.local_env_runner.num_env_steps_sampled_lifetime == steps
        report = group.fault_report()
        assert (report["num_env_runner_restarts"], report["num_env_runner_failures"]) == (2, 2)
        assert 600 <= report["num_env_steps_lost"] <= 1200
        assert not {*pids} & {*group.foreach_env_runner(pid_of)}
    finally:
        group.stop()


def test_a_node_that_goes_away_while_its_runner_samples(cluster, add_node):
    nodes = [add_node(resources={"spare": 1}) for _ in range(2)]
    config = PPOConfig().environment("CartPole-v1").debugging(seed=0)
    config.env_runners(num_env_runners=2, num_cpus_per_env_runner=0, custom_resources_per_env_runner={"spare": 1})
    config.env_runners(env_to_module_connector=pieces, sample_timeout_s=20)
    group = EnvRunnerGroup(config=config)
    try:
        seen = sum(map(len, group.sample(num_timesteps=400)))
        group.request(num_timesteps=40_000)  # takes many seconds, so that the node goes away before its end
        time.sleep(1.0)
        cluster.remove_node(nodes[0])
        parts = group.ready(timeout=60.0)
        assert len(parts) == 1 and sum(map(len, parts[0][1])) >= 40_000
        seen += sum(map(len, parts[0][1]))
        assert group.local_env_runner.num_env_steps_sampled_lifetime == seen
        report = group.fault_report()
        assert (report["num_env_runner_failures"], report["num_env_steps_lost"]) == (1, 40_000)
        add_node(resources={"spare": 1})
        end = time.monotonic() + 60
        while group.num_healthy_remote_env_runners() < 2:
            assert time.monotonic() < end
            group.sample(num_timesteps=100)
    finally:
        group.stop()
