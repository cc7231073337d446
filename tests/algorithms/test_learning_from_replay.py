"""What DQN and R2D2 learn; slow."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms import DQNConfig


class Positions(gym.ObservationWrapper):
    """CartPole without velocities: one observation does not say where the pole falls."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = gym.spaces.Box(-5, 5, (2,), np.float32)

    def observation(self, observation):
        return observation[[0, 2]]


def positions(env_config=None):
    return Positions(gym.make("CartPole-v1"))


def greedy_returns(config, num_steps, every, goal):
    """Greedy means of 20 episodes after every so many iterations, with the steps sampled until then; up to a goal."""
    config.evaluation(evaluation_config={"env": config.env, "explore": False}, evaluation_duration=20)
    algo, steps, found = config.build_algo(), 0, []
    while steps < num_steps and not (found and found[-1][1] >= goal):
        for _ in range(every):
            steps = algo.train()["num_env_steps_sampled_lifetime"]
        found.append((steps, algo.evaluate()["env_runners"]["episode_return_mean"]))
    algo.stop()
    return found


def without_velocities(seed, model, **training):
    config = DQNConfig().environment(positions).env_runners(num_envs_per_env_runner=16, rollout_fragment_length=4)
    config.training(lr=5e-4, train_batch_size=320, training_intensity=16.0, tau=0.01, target_network_update_freq=1)
    config.training(n_step=3, value_rescaling=True, grad_clip=10.0, epsilon=[[0, 1.0], [50_000, 0.02]], **training)
    config.training(num_steps_sampled_before_learning_starts=2000)
    options = {"fcnet_hiddens": [64], "fcnet_activation": "relu", **model}
    return config.rl_module(model_config=options).debugging(seed=seed)


@pytest.mark.slow
def test_r2d2_balances_a_pole_without_velocities_and_dqn_does_not():
    lstm = {"use_lstm": True, "lstm_cell_size": 64, "max_seq_len": 20}
    best = []
    for seed in range(5):
        found = greedy_returns(without_velocities(seed, lstm, burn_in_len=4), 500_000, every=10, goal=400)
        best.append(max(value for _, value in found))
        plain = greedy_returns(without_velocities(seed, {}), 200_000, every=20, goal=math.inf)
        assert max(value for _, value in plain) < 150
    assert sum(value >= 400 for value in best) >= 3, best


def acrobot(seed, **training):
    config = DQNConfig().environment("Acrobot-v1").env_runners(num_envs_per_env_runner=8, rollout_fragment_length=4)
    config.training(lr=5e-4, train_batch_size=128, training_intensity=8.0, tau=0.01, target_network_update_freq=1)
    config.training(epsilon=[[0, 1.0], [10_000, 0.05]], grad_clip=10.0, **training)
    options = {"fcnet_hiddens": [64, 64], "fcnet_activation": "relu"}
    return config.rl_module(model_config=options).debugging(seed=seed)


@pytest.mark.slow
def test_prioritised_n_step_learning_is_no_slower_than_plain_on_acrobot():
    prioritised = {"type": "PrioritizedEpisodeReplayBuffer", "capacity": 50_000, "alpha": 0.6, "beta": 0.4}
    kinds = {"plain": {}, "prioritised": {"n_step": 3, "replay_buffer_config": prioritised}}
    steps = {
        name: [greedy_returns(acrobot(seed, **kinds[name]), 60_000, every=4, goal=-100)[-1][0] for seed in range(5)]
        for name in kinds
    }
    assert np.median(steps["prioritised"]) <= 1.2 * np.median(steps["plain"]), steps
