"""Limits of columns, in every type, and of actions."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors.env_to_module import BatchIndividualItems, EnvToModulePipeline
from epibatch.connectors.learner import LearnerConnectorPipeline
from epibatch.connectors.observations import Clip
from epibatch.core.errors import ConfigError
from epibatch.core.registry import build_piece, piece_to_dict
from epibatch.env_runner import SingleAgentEnvRunner
from epibatch.episodes import SingleAgentEpisode


@given(
    st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=8),
    st.floats(-9, 9),
    st.floats(0, 9),
    st.sampled_from([np.float32, np.float64, np.int16, np.uint8]),
)
def test_each_entry_is_limited_in_its_own_type(values, low, width, dtype):
    high = low + width + 1
    x = np.abs(values).astype(dtype) if dtype is np.uint8 else np.asarray(values).astype(dtype)
    found = Clip(low=low, high=high).transform(x)
    assert found.dtype == dtype
    for before, after in zip(x.tolist(), found.tolist()):
        if np.issubdtype(dtype, np.floating):
            assert after == min(max(before, float(dtype(low))), float(dtype(high)))
        else:
            smallest, largest = max(np.iinfo(dtype).min, int(np.ceil(low))), max(0, int(np.floor(high)))
            assert after == min(max(before, smallest), largest if dtype is np.uint8 else int(np.floor(high)))


def test_limits_of_single_entries_and_one_side_only():
    x = np.float32([[-5, 5], [5, -5]])
    assert Clip(low=[-1, -2], high=[1, 2]).transform(x).tolist() == [[-1, 2], [1, -2]]
    assert Clip(high=0).transform(x).tolist() == [[-5, 0], [0, -5]]
    assert Clip(low=np.array([0.0, 1.0])).transform(x).tolist() == [[0, 5], [5, 1]]


def test_the_space_is_the_part_within_the_limits():
    assert Clip(gym.spaces.Box(-3, 0.5, (2,)), low=-1, high=1).observation_space == gym.spaces.Box(-1, 0.5, (2,))
    images = gym.spaces.Box(0, 255, (2, 2), np.uint8)
    assert Clip(images, low=-7, high=99.9).observation_space == gym.spaces.Box(0, 99, (2, 2), np.uint8)


def test_tensors_are_limited_as_arrays_are():
    piece = Clip(low=[-1.0, 0.0], high=2)
    for x in (torch.tensor([[-3.0, -3.0], [5.0, 1.0]]), torch.tensor([[-3, -3], [5, 1]])):
        found = piece.transform(x)
        assert found.dtype == x.dtype
        assert found.tolist() == [[-1, 0], [2, 1]]


def test_acting_and_training_rows_are_equal_and_episodes_stay_as_they_are():
    space = gym.spaces.Box(-9, 9, (2,), np.float32)
    rows = np.float32([[5, -5], [0, 1], [-3, 3]])
    episode = SingleAgentEpisode(
        observations=list(rows), actions=[0, 1], rewards=[0.0, 0.0], len_lookback_buffer=0, terminated=True
    )
    pieces = lambda: [Clip(low=-2, high=2), BatchIndividualItems()]  # noqa: E731
    trained = LearnerConnectorPipeline(space, None, connectors=pieces())(rl_module=None, episodes=[episode])
    acting = EnvToModulePipeline(space, None, connectors=pieces())(rl_module=None, episodes=[episode])
    assert trained["obs"].tolist() == [[2, -2], [0, 1]]
    assert acting["obs"].tolist() == [[-2, 2]]
    assert episode.get_observations().tolist() == rows.tolist()


class Reaches(gym.Env):
    """Remembers the actions that reach it."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Box(-10, 10, (2,), np.float32)
    seen: list = []  # noqa: RUF012

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.seen.append(np.array(action))
        return np.zeros(2, np.float32), 0.0, False, False, {}


def test_clipped_actions_reach_the_environment_and_the_module_acts_in_the_narrow_space():
    config = (
        PPOConfig()
        .environment(Reaches)
        .env_runners(env_to_module_connector=lambda env, spaces, device: Clip(columns="actions", low=-0.5, high=0.5))
    )
    Reaches.seen = []
    runner = SingleAgentEnvRunner(config=config)
    (episode,) = runner.sample(num_timesteps=20, explore=True)
    assert runner.module.action_space == gym.spaces.Box(-0.5, 0.5, (2,), np.float32)
    given_by_module = episode.get_actions()
    assert np.abs(given_by_module).max() > 0.5
    assert np.array_equal(np.stack(Reaches.seen)[:20], np.clip(given_by_module, -0.5, 0.5))


@pytest.mark.parametrize(
    ("space", "low", "high", "expected"),
    [
        (gym.spaces.Discrete(5), 1, 2, gym.spaces.Discrete(2, start=1)),
        (gym.spaces.Discrete(5, start=-2), None, 0.5, gym.spaces.Discrete(3, start=-2)),
        (gym.spaces.MultiDiscrete([5, 3]), [1, 0], [2, 9], gym.spaces.MultiDiscrete([2, 3], start=[1, 0])),
        (gym.spaces.MultiBinary(2), 0, 0, gym.spaces.Box(0, 0, (2,), np.int8)),
    ],
)
def test_choices_stay_choices(space, low, high, expected):
    acting = Clip(None, space, columns="actions", low=low, high=high)
    assert acting.action_space == expected and Clip(space, low=low, high=high).observation_space == expected
    rows = np.stack([space.sample() for _ in range(20)])
    assert all(expected.contains(row) for row in acting.transform(rows))


def test_data_form():
    piece = Clip(low=np.float32([0, 1]), high=2)
    assert piece_to_dict(piece) == {"piece": "clip", "low": [0.0, 1.0], "high": 2}
    assert build_piece(piece_to_dict(piece)) == piece


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({}, "low, high, or both"),
        ({"low": 2, "high": 1}, "exchange them"),
        ({"low": "a"}, "Clip.low"),
        ({"high": float("nan")}, "Clip.high"),
        ({"low": [1, 2], "high": [1, 2, 3]}, "limits of one shape"),
    ],
)
def test_mistakes_are_named(limits, message):
    with pytest.raises(ConfigError, match=message):
        Clip(**limits)
