"""BC, MARWIL, CQL and IQL learn to balance the pole from recorded episodes; slow."""

from __future__ import annotations

from functools import cache

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms import BCConfig, CQLConfig, IQLConfig, MARWILConfig
from epibatch.episodes import SingleAgentEpisode

SEEDS = range(3)  # tried in turn: what a seed reaches depends on the processor


def balance(observation, random):
    """A linear controller, which balances the pole for 500 steps."""
    position, velocity, angle, spin = observation
    return int(angle + 0.5 * spin + 0.05 * position + 0.1 * velocity > 0)


def anything(observation, random):
    return int(random.integers(2))


def recorded(act, num_steps, seed):
    """Episodes of CartPole with at least so many steps."""
    env, random, episodes, steps = gym.make("CartPole-v1"), np.random.default_rng(seed), [], 0
    while steps < num_steps:
        observation, _ = env.reset(seed=int(random.integers(2**31)))
        episode, done = SingleAgentEpisode(observations=[observation], len_lookback_buffer=0), False
        while not done:
            action = act(observation, random)
            observation, reward, terminated, truncated, _ = env.step(action)
            episode.add_env_step(observation, action, reward, terminated=terminated, truncated=truncated)
            done = terminated or truncated
        episodes.append(episode.to_numpy())
        steps += len(episode)
    return episodes


def half_and_half(seed):
    """10,000 steps of the controller, and as many of random actions."""
    return recorded(balance, 10_000, seed) + recorded(anything, 10_000, seed + 1000)


def return_of(config, data, iterations, seed):
    """The mean return of 20 episodes, with actions drawn from the policy that was learned."""
    config = config.offline_data(input_=data).rl_module(model_config={"fcnet_hiddens": [64, 64]}).debugging(seed=seed)
    config.evaluation(evaluation_config={"env": "CartPole-v1", "explore": True}, evaluation_duration=20)
    algo = config.build_algo()
    for _ in range(iterations):
        algo.train()
    mean = algo.evaluate()["env_runners"]["episode_return_mean"]
    algo.stop()
    return mean


def cloning():
    return BCConfig().training(lr=1e-3, train_batch_size=2000, minibatch_size=256)


def marwil():
    config = MARWILConfig().training(lr=1e-3, train_batch_size=2000, minibatch_size=256, beta=2.0, grad_clip=10.0)
    return config.training(moving_average_sqd_adv_norm_start=1e4, moving_average_sqd_adv_norm_update_rate=0.05)


def cql():
    config = CQLConfig().training(bc_iters=0, min_q_weight=1.0, initial_alpha=0.1, target_entropy=0.1)
    return config.training(actor_lr=1e-3, critic_lr=1e-3)


def iql():
    return IQLConfig().training(lr=1e-3, expectile=0.8)


@pytest.mark.slow
def test_bc_balances_the_pole_from_100_episodes_of_the_controller():
    assert any(return_of(cloning(), recorded(balance, 50_000, seed), 40, seed) >= 475 for seed in SEEDS)


@cache
def cloned(seed):
    """What BC reaches with half of the steps random."""
    return return_of(cloning(), half_and_half(seed), 100, seed)


@pytest.mark.slow
@pytest.mark.parametrize(("make", "iterations"), [(marwil, 150), (cql, 7), (iql, 6)])
def test_with_half_of_the_steps_random_it_is_better_than_bc_by_100(make, iterations):
    assert any(return_of(make(), half_and_half(seed), iterations, seed) >= cloned(seed) + 100 for seed in SEEDS)
