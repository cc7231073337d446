"""Previous actions and rewards as inputs of a default network."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.core.errors import ColumnError
from epibatch.core.rl_module import DefaultModelConfig
from epibatch.core.rl_module.observation_input import PreviousSteps, previous_step_views

BOTH = DefaultModelConfig(use_lstm=True, use_prev_action=True, use_prev_reward=True)


def test_actions_are_encoded_and_rewards_stand_beside_them():
    steps = PreviousSteps(gym.spaces.Discrete(3), BOTH)
    batch = {
        "prev_actions": torch.tensor([[0, 2]]),
        "prev_actions_mask": torch.tensor([[False, True]]),
        "prev_rewards": torch.tensor([[0.0, 1.5]]),
    }
    assert steps.size == 4
    assert steps(batch).tolist() == [[[0, 0, 0, 0], [0, 0, 1, 1.5]]]


def test_nested_actions():
    space = gym.spaces.Dict(a=gym.spaces.Box(-1, 1, (2,), np.float32), b=gym.spaces.Discrete(2))
    steps = PreviousSteps(space, DefaultModelConfig(use_lstm=True, use_prev_action=True))
    batch = {"prev_actions": {"a": torch.ones(1, 2), "b": torch.tensor([1])}, "prev_actions_mask": torch.ones(1)}
    assert steps(batch).tolist() == [[1, 1, 0, 1]]


def test_what_is_asked_for():
    assert list(previous_step_views(BOTH)) == ["prev_actions", "prev_rewards"]
    assert previous_step_views(DefaultModelConfig()) == {}
    assert PreviousSteps(gym.spaces.Discrete(3), DefaultModelConfig()).size == 0


def test_a_batch_without_them():
    with pytest.raises(ColumnError, match=r"'prev_actions_mask'[\s\S]*TrajectoryViews"):
        PreviousSteps(gym.spaces.Discrete(3), BOTH)({"obs": torch.zeros(1)})
