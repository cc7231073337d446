"""Fifteen bits to flip to a pattern: found with goals of hindsight only."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms import DQNConfig
from epibatch.connectors.replay import HindsightGoals


class Bits(gym.Env):
    """Each action flips a bit; the episode ends when all are as they should be (Andrychowicz et al. 2017)."""

    def __init__(self, config):
        self.count = config["bits"]
        bits = gym.spaces.Box(0, 1, (self.count,), np.float32)
        self.observation_space = gym.spaces.Dict(achieved_goal=bits, desired_goal=bits)
        self.action_space = gym.spaces.Discrete(self.count)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.bits, self.goal = self.np_random.integers(0, 2, (2, self.count)).astype(np.float32)
        self.steps = 0
        return self.seen(), {}

    def seen(self):
        return {"achieved_goal": self.bits.copy(), "desired_goal": self.goal.copy()}

    def step(self, action):
        self.bits[action] = 1 - self.bits[action]
        self.steps += 1
        done = bool((self.bits == self.goal).all())
        return self.seen(), done - 1.0, done, self.steps >= self.count, {}


def reached(achieved, desired, info):
    return (achieved == desired).all(-1)


def note_success(*, episode, metrics_logger, **kwargs):
    metrics_logger.log_value("success", float(episode.is_terminated), reduce="mean", clear_on_reduce=True)


def successes(with_goals, steps):
    """The share of successes in each evaluation, one each 4,000 steps, as long as none has all."""
    config = (
        DQNConfig()
        .environment(Bits, env_config={"bits": 15})
        .env_runners(num_envs_per_env_runner=8)
        .training(
            lr=1e-3,
            gamma=0.98,
            train_batch_size=128,
            training_intensity=32,
            epsilon=[[0, 1.0], [5000, 0.1]],
            target_network_update_freq=200,
        )
        .callbacks(on_episode_end=note_success)
        .evaluation(evaluation_duration=40)
        .debugging(seed=0)
    )
    if with_goals:
        config.training(
            learner_connector=lambda *_: HindsightGoals(
                compute_reward=lambda *goals: reached(*goals) - 1.0, compute_terminated=reached
            )
        )
    algorithm, found, sampled = config.build_algo(), [], 0
    while sampled < steps and (not found or found[-1] < 1):
        for _ in range(4):
            sampled = algorithm.train()["num_env_steps_sampled_lifetime"]
        found.append(algorithm.evaluate()["env_runners"]["success"])
    algorithm.stop()
    return found


@pytest.mark.slow
def test_fifteen_bits_are_found_with_goals_of_hindsight():
    assert max(successes(True, 24_000)) >= 0.95


@pytest.mark.slow
def test_and_not_without():
    assert max(successes(False, 12_000)) < 0.1
