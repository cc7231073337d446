"""Choosing a default module from the spaces."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.core.errors import ConfigError, SpaceError
from epibatch.core.rl_module import (
    DefaultActorCritic,
    DefaultLSTMActorCritic,
    DefaultModelConfig,
    default_module_spec,
)

BOX, CHOICE = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2)


@pytest.mark.parametrize(
    ("config", "cls"),
    [
        (None, DefaultActorCritic),
        ({}, DefaultActorCritic),
        ({"use_lstm": True}, DefaultLSTMActorCritic),
        (DefaultModelConfig(use_lstm=True), DefaultLSTMActorCritic),
    ],
)
def test_choice(config, cls):
    spec = default_module_spec(BOX, CHOICE, config)
    assert spec.module_class is cls
    assert type(spec.build()) is cls
    assert spec.model_config == (DefaultModelConfig() if config is None else config)


@pytest.mark.parametrize(
    ("observation_space", "action_space", "config", "error", "message"),
    [
        (gym.spaces.Dict(a=gym.spaces.Text(3)), CHOICE, None, SpaceError, "encode the text as an array"),
        (gym.spaces.Sequence(BOX), CHOICE, None, SpaceError, "pad the sequence"),
        (gym.spaces.Tuple([gym.spaces.Graph(BOX, None)]), CHOICE, None, SpaceError, "pad nodes and edges"),
        (gym.spaces.OneOf([BOX, CHOICE]), CHOICE, None, SpaceError, "TransformObservation"),
        (BOX, gym.spaces.Text(3), None, SpaceError, "get_exploration_action_dist_cls"),
        (BOX, gym.spaces.Box(-np.inf, 5, (2,), np.int64), None, SpaceError, "bound the environment's actions"),
        (BOX, CHOICE, {"uselstm": True}, ConfigError, "did you mean 'use_lstm'"),
    ],
)
def test_errors_come_before_building(observation_space, action_space, config, error, message):
    with pytest.raises(error, match=message):
        default_module_spec(observation_space, action_space, config)
