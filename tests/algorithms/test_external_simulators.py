"""Algorithms learn from the client of docs/external-environments.md, in processes of its own."""

from __future__ import annotations

import gymnasium as gym
import pytest
from fixture_cases import slow_but
from fixture_simulators import clients_of_page

from epibatch.algorithms import DQNConfig, PPOConfig
from epibatch.env_runner import ExternalEnvRunner
from fixture_configs import same_weights, weights


def served(config, num_envs=2):
    env = gym.make("CartPole-v1")
    config.environment(observation_space=env.observation_space, action_space=env.action_space, env_config={"port": 0})
    return config.env_runners(env_runner_cls=ExternalEnvRunner, num_envs_per_env_runner=num_envs).debugging(seed=0)


def ppo(**training):
    settings = {"train_batch_size": 256, "minibatch_size": 64, "num_epochs": 6, "lr": 0.001, **training}
    return served(PPOConfig()).training(**settings)


def dqn():
    config = served(DQNConfig()).training(num_steps_sampled_before_learning_starts=50, train_batch_size=16)
    return config.rl_module(model_config={"fcnet_hiddens": [16]})


@pytest.mark.parametrize("config", slow_but([ppo], [ppo, dqn]))
def test_it_learns_from_simulators_of_other_processes(tmp_path, config):
    algo = config().build_algo()
    before = weights(algo)
    with clients_of_page(tmp_path, algo.env_runner.server, 2):
        steps = 0
        while steps < 100:
            results = algo.train()
            steps = results["env_runners"]["num_env_steps_sampled_lifetime"]
        assert not same_weights(before, weights(algo)) and results["env_runners"]["num_episodes_lifetime"] > 0
    algo.stop()


@pytest.mark.slow
def test_dqn_learns_what_simulators_play(tmp_path):
    best = []
    for seed in range(3):
        config = served(DQNConfig()).training(lr=1e-3, train_batch_size=64, training_intensity=16)
        algo = config.rl_module(model_config={"fcnet_hiddens": [64, 64]}).debugging(seed=seed).build_algo()
        best.append(0.0)
        with clients_of_page(tmp_path, algo.env_runner.server, 2, seed):
            while best[-1] <= 100 and algo.env_runner.num_env_steps_sampled_lifetime < 40_000:
                best[-1] = max(best[-1], algo.train()["env_runners"]["episode_return_mean"])
        algo.stop()
        if best[-1] > 100:
            break
    assert max(best) > 100, best  # at random 22


@pytest.mark.slow
def test_ppo_solves_what_simulators_play(tmp_path):
    algo = ppo(train_batch_size=1000).build_algo()
    with clients_of_page(tmp_path, algo.env_runner.server, 2):
        for _ in range(12):
            results = algo.train()["env_runners"]
            if results["episode_return_mean"] > 100:  # at random 22
                break
    algo.stop()
    assert results["episode_return_mean"] > 100
