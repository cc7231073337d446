"""Vectors of rewards become weighted sums."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    AddObservationsFromEpisodesToBatch,
    BatchIndividualItems,
    ComputeReturnsToGo,
    LearnerConnectorPipeline,
)
from epibatch.connectors.rewards import LineariseRewards
from epibatch.core.errors import ColumnError, ConfigError
from epibatch.core.registry import build_piece, piece_to_dict
from epibatch.episodes import SingleAgentEpisode, VectorRecorder


def episode(rewards, id_="e"):
    made = SingleAgentEpisode(id_=id_)
    made.add_env_reset(0)
    for t, reward in enumerate(rewards):
        made.add_env_step(t + 1, 0, np.array(reward))
    return made


def batch_of(pieces, episodes):
    pieces = [*pieces, AddObservationsFromEpisodesToBatch(as_learner_connector=True)]
    pieces += [AddColumnsFromEpisodesToTrainBatch(), BatchIndividualItems()]
    return LearnerConnectorPipeline(connectors=pieces)(rl_module=None, batch={}, episodes=episodes)


VECTOR = st.lists(st.integers(-50, 50), min_size=3, max_size=3)


@settings(max_examples=40, deadline=None)
@given(chunks=st.lists(st.lists(VECTOR, min_size=1, max_size=4), min_size=1, max_size=3), weights=VECTOR)
def test_equals_the_sum_over_objectives(chunks, weights):
    episodes = [episode(rewards, f"e{i}") for i, rewards in enumerate(chunks)]
    expected = [sum(w * r for w, r in zip(weights, row)) for rows in chunks for row in rows]
    assert batch_of([LineariseRewards(weights=weights)], episodes)["rewards"].tolist() == expected
    assert episodes[0].get_rewards().tolist() == chunks[0]


@pytest.mark.parametrize("objective", range(3))
def test_one_hot_weights_pick_an_objective(objective):
    rewards = [[0.5, -1.0, 2.0], [0.25, 4.0, 8.0]]
    weights = np.eye(3)[objective].tolist()
    found = batch_of([LineariseRewards(weights=weights)], [episode(rewards)])["rewards"]
    assert found.tolist() == [row[objective] for row in rewards]


def test_a_cut_chunk_and_returns_behind():
    whole = episode([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
    rest = whole.cut(len_lookback_buffer=2)
    rest.add_env_step(9, 0, np.array([4.0, 40.0]))
    pieces = [LineariseRewards(weights=[1.0, 0.1]), ComputeReturnsToGo(gamma=1.0)]
    batch = batch_of(pieces, [whole, rest])
    np.testing.assert_allclose(batch["rewards"], [2, 4, 6, 8])
    np.testing.assert_allclose(batch["returns_to_go"], [12, 10, 6, 8])


@pytest.mark.parametrize("kind", [torch.float32, torch.int64])
def test_tensors_as_arrays(kind):
    piece = LineariseRewards(weights=[0.5, 2.0])
    assert piece.transform(torch.tensor([[2, 1], [4, 3]], dtype=kind)).tolist() == [3.0, 8.0]
    assert piece.transform(np.float32([[2, 1]])).dtype == np.float32


@pytest.mark.parametrize("weights", [[], "ab", 3.0, [1.0, float("nan")], [[1.0]], None])
def test_weights_that_are_none(weights):
    with pytest.raises(ConfigError, match="one per objective"):
        LineariseRewards(weights=weights)


def test_rewards_that_do_not_fit_are_named():
    with pytest.raises(ColumnError, match=r"vectors of 2 entries[\s\S]*\(3,\)[\s\S]*a weight for each"):
        batch_of([LineariseRewards(weights=[1, 2])], [episode([[1, 2, 3]])])
    with pytest.raises(ColumnError, match="leave the piece out"):
        batch_of([LineariseRewards(weights=[1, 2])], [episode([1.0])])


def test_data_form():  # the kit's environment has one reward per step
    assert build_piece(piece_to_dict(LineariseRewards(weights=[1.0, 2.0]))) == LineariseRewards(weights=[1.0, 2.0])


def test_runners_take_one_reward_per_step():
    recorder = VectorRecorder(1, gym.spaces.Discrete(9), gym.spaces.Discrete(2))
    recorder.reset(np.zeros(1, int))
    no = np.zeros(1, bool)
    with pytest.raises(ColumnError, match=r"column 'rewards'"):
        recorder.step(np.zeros(1, int), np.zeros((1, 2)), no, no, np.zeros(1, int))
