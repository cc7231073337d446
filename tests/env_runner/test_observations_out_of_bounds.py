"""An observation that is far out of its space's bounds is warned of once; Gymnasium says so of registered ids only."""

from __future__ import annotations

import warnings

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms import PPOConfig


class Scaled(gym.Env):
    """Observations that are all of one value, in a Box of [0, 1]."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, config):
        self.value, self.nested = config["value"], config.get("nested", False)
        box = gym.spaces.Box(0.0, config.get("high", 1.0), (2,), np.float32)
        self.observation_space = gym.spaces.Dict(picture=box) if self.nested else box

    def observation(self):
        row = np.full(2, self.value, np.float32)
        return {"picture": row} if self.nested else row

    def reset(self, *, seed=None, options=None):
        return self.observation(), {}

    def step(self, action):
        return self.observation(), 1.0, False, False, {}


def warnings_of(**env_config):
    config = PPOConfig().environment(Scaled, env_config=env_config).env_runners(num_envs_per_env_runner=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        algo = config.build_algo()
        algo.env_runner.sample(num_timesteps=8)
        algo.stop()
    return [str(each.message) for each in caught]


@pytest.mark.parametrize("value", [255.0, -3.0])
def test_far_out_of_bounds_is_warned_of_once(value):
    (text,) = warnings_of(value=value)
    assert "first observation of Scaled" in text and "from 0 to 1" in text and f"{value:g}" in text


def test_the_part_is_named():
    (text,) = warnings_of(value=255.0, nested=True)
    assert "picture" in text


@pytest.mark.parametrize("settings", [{"value": 1.5}, {"value": 0.5}, {"value": 1e6, "high": np.inf}])
def test_others_are_not(settings):
    assert warnings_of(**settings) == []
