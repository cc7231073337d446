"""Huge numbers never make statistics that are not finite, and are not counted without a word."""

from __future__ import annotations

import warnings

import gymnasium as gym
import numpy as np
import pytest

from epibatch.connectors.env_to_module import EnvToModulePipeline, MeanStdFilter
from epibatch.connectors.learner import BatchIndividualItems, LearnerConnectorPipeline
from epibatch.connectors.rewards import NormalizeReward
from epibatch.core import load_state, save_state
from epibatch.core.errors import ColumnError
from epibatch.core.tensors import convert_to_torch_tensor
from epibatch.episodes import SingleAgentEpisode

SPACE = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)


def filtered(pipeline, *row):
    episode = SingleAgentEpisode(observations=[np.array(row)])
    pipeline(episodes=[episode], batch={})
    return episode.get_observations(-1)


def scaled(pipeline, *rewards, id_="e", start=0, done=True):
    chunk = SingleAgentEpisode(
        id_=id_,
        observations=list(range(len(rewards) + 1)),
        actions=[0] * len(rewards),
        rewards=list(rewards),
        terminated=done,
        t_started=start,
        len_lookback_buffer=0,
    )
    return pipeline(episodes=[chunk])["rewards"]


def reward_pipeline(**settings):
    piece = NormalizeReward(**settings)
    return piece, LearnerConnectorPipeline(connectors=[piece, BatchIndividualItems()])


def warned(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(each.message) for each in caught]


@pytest.mark.parametrize("value", [1e200, -1e101, np.inf, np.nan])
def test_values_that_no_statistics_have_room_for_are_refused(value):
    piece = MeanStdFilter()
    pipeline = EnvToModulePipeline(SPACE, gym.spaces.Discrete(2), connectors=[piece])
    filtered(pipeline, 1.0, 2.0)
    before = piece.get_state()
    with pytest.raises(ColumnError, match=r"MeanStdFilter, observation of[\s\S]*at most 1e\+100"):
        filtered(pipeline, 1.0, value)
    np.testing.assert_equal(piece.get_state(), before)
    piece, pipeline = reward_pipeline()
    scaled(pipeline, 1.0, 2.0)
    before = piece.get_state()
    with pytest.raises(ColumnError, match=r"finite rewards of at most 1e\+100"):
        scaled(pipeline, 1.0, value, 3.0)
    np.testing.assert_equal(piece.get_state(), before)


@pytest.mark.parametrize("value", [1e99, 3.4e38, -1e16])
def test_huge_values_are_warned_of_once_and_can_be_saved(tmp_path, value):
    piece = MeanStdFilter()
    pipeline = EnvToModulePipeline(SPACE, gym.spaces.Discrete(2), connectors=[piece])

    def twice():
        for number in range(4):
            filtered(pipeline, float(number), value if number % 2 else 0.0)

    (text,) = warned(twice)
    assert "observations of at most 1e+15" in text and "MeanStdFilter" in text
    state = load_state(save_state(tmp_path / "filter", piece.get_state()))
    MeanStdFilter(SPACE).set_state(state)
    rows = np.array([[0.0, 0.0], [1.0, value], [2.0, 0.0], [3.0, value]])
    np.testing.assert_allclose(state["since"]["mean"], rows.mean(0))
    np.testing.assert_allclose(state["since"]["squares"], rows.var(0) * 4)

    piece, pipeline = reward_pipeline(gamma=None)
    (text,) = warned(lambda: [scaled(pipeline, 1.0, value) for _ in range(3)])
    assert "rewards of at most 1e+15" in text
    NormalizeReward(gamma=None).set_state(load_state(save_state(tmp_path / "rewards", piece.get_state())))


def test_ordinary_values_are_not_warned_of():
    _, rewards = reward_pipeline()
    observations = EnvToModulePipeline(SPACE, gym.spaces.Discrete(2), connectors=[MeanStdFilter()])
    assert warned(lambda: (scaled(rewards, 1e14, -1e14), filtered(observations, 1e14, 0.0))) == []


def test_a_number_too_large_for_float32_is_warned_of():
    with pytest.warns(RuntimeWarning, match="overflow encountered in cast"):
        tensor = convert_to_torch_tensor(np.array([1e300]))
    assert np.isinf(tensor.numpy()).all()


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.int8])
def test_rewards_of_small_types_are_compared_without_a_warning(kind):
    _, pipeline = reward_pipeline(gamma=None)
    assert warned(lambda: scaled(pipeline, kind(1), kind(2), kind(3))) == []
