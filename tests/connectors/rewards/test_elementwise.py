"""Rewards clipped, scaled, summed up and made signs of: against a loop, on either layout, for several agents."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    AddObservationsFromEpisodesToBatch,
    BatchIndividualItems,
    ComputeReturnsToGo,
    LearnerConnectorPipeline,
    NumpyToTensor,
)
from epibatch.connectors.rewards import BinarizeReward, LineariseRewards, RewardClipping, RewardScaling, RewardSign
from epibatch.core.errors import ColumnError, ConfigError
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode, VectorRecorder
from fixture_pieces import played


def clipped(reward, low=-1.0, high=1.0):
    return low if reward < low else high if reward > high else reward


PIECES = [
    (RewardClipping(), clipped),
    (RewardClipping(low=None, high=0.25), lambda reward: min(reward, 0.25)),
    (RewardClipping(low=0.5, high=None), lambda reward: max(reward, 0.5)),
    (RewardScaling(scale=0.5), lambda reward: reward * 0.5),
    (RewardScaling(scale=-2.0, loc=1.0), lambda reward: reward * -2.0 + 1.0),
    (RewardScaling(scale=4.0, loc=3.0, standard_normal=True), lambda reward: (reward - 3.0) / 4.0),
    (RewardSign(), lambda reward: 0.0 if reward == 0 else math.copysign(1.0, reward)),
    (BinarizeReward(), lambda reward: 0.0 if reward == 0 else 1.0),
]


def episode(rewards, id_="e", lookback=0):
    steps = len(rewards)
    return SingleAgentEpisode(
        id_=id_,
        observations=[np.float32([t]) for t in range(steps + 1)],
        actions=[0] * steps,
        rewards=rewards,
        len_lookback_buffer=lookback,
        t_started=lookback,
    )


def rewards_of(pieces, episodes):
    pieces = [*(piece.clone() for piece in pieces), AddObservationsFromEpisodesToBatch(as_learner_connector=True)]
    pieces += [AddColumnsFromEpisodesToTrainBatch(), BatchIndividualItems()]
    return LearnerConnectorPipeline(connectors=pieces)(rl_module=None, batch={}, episodes=episodes)["rewards"]


NUMBERS = st.one_of(st.just(0.0), st.floats(-100, 100, width=32))


@pytest.mark.parametrize(("piece", "alone"), PIECES, ids=lambda one: repr(one) if hasattr(one, "columns") else "")
@settings(max_examples=30, deadline=None)
@given(chunks=st.lists(st.lists(NUMBERS, min_size=1, max_size=5), min_size=1, max_size=4))
def test_each_reward_by_itself(piece, alone, chunks):
    episodes = [episode(rewards, f"e{i}") for i, rewards in enumerate(chunks)]
    expected = [alone(reward) for rewards in chunks for reward in rewards]
    assert rewards_of([piece], episodes).tolist() == expected
    assert [one.get_rewards().tolist() for one in episodes] == chunks


@pytest.mark.parametrize(("piece", "alone"), PIECES, ids=lambda one: repr(one) if hasattr(one, "columns") else "")
def test_a_chunks_lookback_is_no_reward_of_its_own(piece, alone):
    chunk = episode([9.0, -7.0, 0.0, 2.0], lookback=2)
    assert rewards_of([piece], [chunk]).tolist() == [alone(0.0), alone(2.0)]


@pytest.mark.parametrize(("piece", "alone"), PIECES, ids=lambda one: repr(one) if hasattr(one, "columns") else "")
def test_rows_of_a_recorder(piece, alone):
    recorder = VectorRecorder(2, gym.spaces.Box(-9, 9, (1,)), gym.spaces.Discrete(2))
    recorder.reset(np.zeros((2, 1), np.float32))
    rewards = np.array([[-3.0, 0.0], [0.5, 8.0]])
    for row in rewards:
        recorder.step(np.zeros(2, int), row, np.zeros(2, bool), np.zeros(2, bool), np.zeros((2, 1), np.float32))
        recorder.commit()
    assert rewards_of([piece], recorder.flush(0)).tolist() == [alone(one) for one in rewards.T.ravel().tolist()]


@pytest.mark.parametrize(("piece", "alone"), PIECES, ids=lambda one: repr(one) if hasattr(one, "columns") else "")
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_tensors_as_arrays(piece, alone, dtype):
    numbers = np.array([-3, 0, 1, 7], dtype)
    array, tensor = piece.transform(numbers), piece.transform(torch.from_numpy(numbers))
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_allclose(tensor.numpy(), array)
    assert array.tolist() == [alone(one) for one in numbers.tolist()]
    assert numbers.tolist() == [-3, 0, 1, 7]
    assert array.dtype == dtype or dtype is np.int64


def test_behind_numpy_to_tensor():
    pieces = [AddColumnsFromEpisodesToTrainBatch(), BatchIndividualItems(), NumpyToTensor(as_learner_connector=True)]
    pipeline = LearnerConnectorPipeline(connectors=[*pieces, RewardSign()])
    module = torch.nn.Linear(1, 1)
    module.is_stateful = lambda: False
    found = pipeline(rl_module=module, batch={}, episodes=[episode([-3.0, 0.0, 7.0])])["rewards"]
    assert isinstance(found, torch.Tensor) and found.tolist() == [-1.0, 0.0, 1.0]


def test_each_agents_rewards():
    both = MultiAgentEpisode(agent_to_module_mapping_fn=lambda agent, episode: agent)
    both.add_env_reset(observations={"a": np.float32([0]), "b": np.float32([0])})
    both.add_env_step(
        observations={"a": np.float32([1]), "b": np.float32([1])},
        actions={"a": 0, "b": 0},
        rewards={"a": -5.0, "b": 0.5},
    )
    spaces = [gym.spaces.Dict(a=own, b=own) for own in (gym.spaces.Box(-9, 9, (1,)), gym.spaces.Discrete(2))]
    config = PPOConfig().multi_agent(policies=["a", "b"], policy_mapping_fn={"a": "a", "b": "b"})
    config.learners(learner_connector=lambda o, a: RewardClipping())
    batch = config.build_learner_connector(*spaces)(rl_module=None, batch={}, episodes=[both])
    assert {module: np.asarray(own["rewards"]).tolist() for module, own in batch.items()} == {"a": [-1.0], "b": [0.5]}


def test_other_columns():
    pipeline = LearnerConnectorPipeline(
        connectors=[AddColumnsFromEpisodesToTrainBatch(), RewardSign(columns="bonus"), BatchIndividualItems()]
    )
    made = played([0, 1], [2.0], extra_model_outputs={"bonus": [-4.0]})
    found = pipeline(rl_module=None, batch={}, episodes=[made])
    assert (found["bonus"].tolist(), found["rewards"].tolist()) == ([-1.0], [2.0])


def test_scaling_is_undone_by_its_inverse():
    numbers = np.array([-3.0, 0.0, 8.0])
    for piece in (RewardScaling(scale=4.0, loc=2.0), RewardScaling(scale=4.0, loc=2.0, standard_normal=True)):
        assert piece.inverse(piece.transform(numbers)).tolist() == numbers.tolist()


@pytest.mark.parametrize(
    ("piece", "settings", "words"),
    [
        *((RewardClipping, own, r"low=-1.0, high=1.0") for own in
          ({"low": 1.0, "high": -1.0}, {"low": None, "high": None}, {"low": math.nan})),
        *((RewardScaling, own, "a scale other than 0") for own in
          ({"scale": 0.0}, {"scale": math.inf}, {"loc": math.nan})),
        *((LineariseRewards, {"weights": own}, "one per objective") for own in
          ([], "ab", 3.0, [1.0, float("nan")], [[1.0]], None)),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_meant(piece, settings, words):
    with pytest.raises(ConfigError, match=words):
        piece(**settings)


def of_vectors(rewards, id_="e"):
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
    episodes = [of_vectors(rewards, f"e{i}") for i, rewards in enumerate(chunks)]
    expected = [sum(w * r for w, r in zip(weights, row)) for rows in chunks for row in rows]
    assert batch_of([LineariseRewards(weights=weights)], episodes)["rewards"].tolist() == expected
    assert episodes[0].get_rewards().tolist() == chunks[0]


@pytest.mark.parametrize("objective", range(3))
def test_one_hot_weights_pick_an_objective(objective):
    rewards = [[0.5, -1.0, 2.0], [0.25, 4.0, 8.0]]
    weights = np.eye(3)[objective].tolist()
    found = batch_of([LineariseRewards(weights=weights)], [of_vectors(rewards)])["rewards"]
    assert found.tolist() == [row[objective] for row in rewards]


def test_a_cut_chunk_and_returns_behind():
    whole = of_vectors([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
    rest = whole.cut(len_lookback_buffer=2)
    rest.add_env_step(9, 0, np.array([4.0, 40.0]))
    pieces = [LineariseRewards(weights=[1.0, 0.1]), ComputeReturnsToGo(gamma=1.0)]
    batch = batch_of(pieces, [whole, rest])
    np.testing.assert_allclose(batch["rewards"], [2, 4, 6, 8])
    np.testing.assert_allclose(batch["returns_to_go"], [12, 10, 6, 8])


@pytest.mark.parametrize("kind", [torch.float32, torch.int64])
def test_sums_of_tensors(kind):
    piece = LineariseRewards(weights=[0.5, 2.0])
    assert piece.transform(torch.tensor([[2, 1], [4, 3]], dtype=kind)).tolist() == [3.0, 8.0]
    assert piece.transform(np.float32([[2, 1]])).dtype == np.float32


def test_rewards_that_do_not_fit_are_named():
    with pytest.raises(ColumnError, match=r"vectors of 2 entries[\s\S]*\(3,\)[\s\S]*a weight for each"):
        batch_of([LineariseRewards(weights=[1, 2])], [of_vectors([[1, 2, 3]])])
    with pytest.raises(ColumnError, match="leave the piece out"):
        batch_of([LineariseRewards(weights=[1, 2])], [of_vectors([1.0])])


def test_runners_take_one_reward_per_step():
    recorder = VectorRecorder(1, gym.spaces.Discrete(9), gym.spaces.Discrete(2))
    recorder.reset(np.zeros(1, int))
    no = np.zeros(1, bool)
    with pytest.raises(ColumnError, match=r"column 'rewards'"):
        recorder.step(np.zeros(1, int), np.zeros((1, 2)), no, no, np.zeros(1, int))
