"""Evaluations in processes of their own: beside training, and when a process is lost."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from epibatch.algorithms import PPOConfig


class Signed(CartPoleEnv):
    """Leaves a file with the number of its process in a folder."""

    def __init__(self, config):
        super().__init__()
        Path(config["folder"], str(os.getpid())).touch()


def is_alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def measured(results):
    return {name: {**part["env_runners"], "sample": None} for name, part in results.items()}


@pytest.mark.filterwarnings("ignore:(?s)env runners.*have not started yet")
def test_processes_that_evaluate_beside_training_and_are_lost(cluster, tmp_path):
    config = PPOConfig().environment("CartPole-v1").env_runners(env_to_module_connector=["mean_std_filter"])
    config.training(train_batch_size=200, minibatch_size=50, num_epochs=2, lr=1e-2).debugging(seed=3)
    config.evaluation(
        evaluation_interval=1,
        evaluation_duration=5,
        evaluation_num_env_runners=2,
        evaluation_parallel_to_training=True,
        evaluation_config={"env": Signed, "env_config": {"folder": str(tmp_path)}, "num_cpus_per_env_runner": 0},
        evaluation_sets={"greedy": {}, "drawn": {"explore": True}},
    )
    algo = config.build_algo()
    state = algo.get_state()
    first, second = measured(algo.evaluate()), measured(algo.evaluate())
    processes = {int(path.name) for path in tmp_path.iterdir()} - {os.getpid()}
    assert len(processes) == 4 and first["drawn"] != second["drawn"]

    algo.set_state(state)
    assert measured(algo.train()["evaluation"]) == first  # with the weights from before the iteration
    after = measured(algo.evaluate())
    assert after["greedy"]["episode_return_mean"] != second["greedy"]["episode_return_mean"]

    algo.set_state(state)
    os.kill(min(processes), signal.SIGKILL)
    with pytest.warns(UserWarning, match="replaced, 1 of 1000"):
        np.testing.assert_equal(measured(algo.train()["evaluation"]), first)
    algo.stop()
    processes = {int(path.name) for path in tmp_path.iterdir()} - {os.getpid()}
    end = time.monotonic() + 20
    while any(map(is_alive, processes)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not any(map(is_alive, processes))
