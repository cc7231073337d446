"""Runs with a replay buffer that are saved and restored: with it they go on bit for bit, without it with a warning."""

from __future__ import annotations

import os

import numpy as np
import pytest

from epibatch.algorithms import Algorithm, DQNConfig, SACConfig
from epibatch.core.errors import CheckpointError, EpibatchWarning

UNIFORM = {"type": "EpisodeReplayBuffer", "capacity": 150}
PRIORITIZED = {"type": "PrioritizedEpisodeReplayBuffer", "capacity": 150, "alpha": 0.6, "beta": [[0, 0.4], [300, 1.0]]}
KINDS = {"dqn": (DQNConfig, "CartPole-v1", UNIFORM), "prioritised": (DQNConfig, "CartPole-v1", PRIORITIZED),
         "sac": (SACConfig, "Pendulum-v1", PRIORITIZED)}  # fmt: skip


class ShortDQNConfig(DQNConfig):
    """Iterations of 24 steps."""

    min_env_steps_per_iteration = 24


class ShortSACConfig(SACConfig):
    """Iterations of 24 steps."""

    min_env_steps_per_iteration = 24


SHORT = {DQNConfig: ShortDQNConfig, SACConfig: ShortSACConfig}


def config_of(name, with_buffer=True):
    kind, env, buffer = KINDS[name]
    config = SHORT[kind]().environment(env)
    config = config.env_runners(num_envs_per_env_runner=2, rollout_fragment_length=3)
    return config.training(
        train_batch_size=8, training_intensity=5, num_steps_sampled_before_learning_starts=40,
        replay_buffer_config=buffer, store_buffer_in_checkpoints=with_buffer, n_step=2,
    ).rl_module(model_config={"fcnet_hiddens": [4]}).debugging(seed=3)  # fmt: skip


def learned(algo):
    results = algo.train()
    module = dict(results["learners"].get("default_policy", {}))
    weights = [np.array(value) for _, value in sorted(algo.get_module().get_state().items())]
    counts = results["replay_buffer"], results["num_env_steps_sampled_lifetime"]
    return module, weights, counts


def assert_resumes(name, folder, iterations, saves):
    """Save a run after some iterations; restored from each save it goes on as it did, and saves again itself."""
    algo, expected = config_of(name).build_algo(), []
    for iteration in range(1, iterations + 1):
        expected.append(learned(algo))
        if iteration in saves:
            algo.save_to_path(folder / f"{iteration}", end_episodes=True)
    algo.stop()
    for iteration in sorted(saves):
        again = Algorithm.from_checkpoint(folder / f"{iteration}", config=config_of(name))
        for number in range(iteration, iterations):
            np.testing.assert_equal(learned(again), expected[number])
            if number + 1 in saves:
                again.save_to_path(folder / f"{number + 1}", end_episodes=True)
        again.stop()


@pytest.mark.parametrize("name", KINDS)
def test_a_restored_run_is_the_run_that_did_not_stop(name, tmp_path):
    assert_resumes(name, tmp_path, 4, {3})


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_runs_that_are_restored_at_random_steps(name, tmp_path):
    """One of them before learning starts; the buffer overflows."""
    assert_resumes(name, tmp_path, 14, {1, *np.random.default_rng(0).permutation(13)[:5].tolist()} - {0})


def test_a_run_without_its_buffer_warms_up_again(tmp_path):
    algo = config_of("prioritised", with_buffer=False).build_algo()
    for _ in range(4):
        algo.train()
    folder = algo.save_to_path(tmp_path / "saved")
    assert not any(name.startswith("sealed") for name in os.listdir(folder))
    algo.stop()
    with pytest.warns(EpibatchWarning, match="40 steps with random actions"):
        again = Algorithm.from_checkpoint(folder, config=config_of("prioritised", with_buffer=False))
    first = again.train()
    assert first["num_env_steps_sampled_lifetime"] >= 5 * 24 and not first["learners"]
    assert 24 <= first["replay_buffer"]["num_env_steps_added_lifetime"] < 48
    again.train()
    assert again.train()["learners"]
    again.stop()


def test_a_state_that_is_refused_leaves_the_buffer(tmp_path):
    """Also where checkpoints do not have it."""
    algo = config_of("dqn", with_buffer=False).build_algo()
    algo.train()
    algo.train()
    state = algo.get_state()
    state["env_runner"]["reset_seeds"] = 3
    with pytest.raises(CheckpointError):
        algo.set_state(state)
    results = algo.train()["replay_buffer"]
    assert results["num_env_steps_added_lifetime"] >= 72 and results["num_env_steps_stored"] > 60
    algo.stop()


def test_a_damaged_buffer_is_named_and_nothing_is_taken_over(tmp_path):
    algo = config_of("dqn").build_algo()
    algo.train()
    folder = tmp_path / "saved"
    algo.save_to_path(folder)
    algo.train()
    before = algo.train()["replay_buffer"]["num_env_steps_added_lifetime"]
    path = next(folder.glob("sealed-*"))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match=path.name):
        algo.restore_from_path(folder)
    results = algo.train()
    assert (
        results["training_iteration"] == 4 and results["replay_buffer"]["num_env_steps_added_lifetime"] >= before + 24
    )
    algo.stop()
