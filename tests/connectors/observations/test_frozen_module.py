"""A network that only encodes, and rewards for the way towards a goal."""

from __future__ import annotations

import pickle

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.connectors.env_to_module import BatchIndividualItems, EnvToModulePipeline
from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    AddObservationsFromEpisodesToBatch,
    AddOneTsToEpisodesAndTruncate,
    LearnerConnectorPipeline,
    NumpyToTensor,
)
from epibatch.connectors.observations import FrozenModule, GoalDistanceRewards
from epibatch.core.errors import ColumnError, ConfigError, PieceError, PieceOutputError, RegistryError, StateError
from epibatch.core.registry import build_piece, piece_to_dict
from fixture_pieces import Lab, played

SPACE = gym.spaces.Box(-9, 9, (4,), np.float64)


class Stub(torch.nn.Module):
    """Twice the first two numbers; random as long as it trains."""

    def __init__(self, width: int = 2) -> None:
        super().__init__()
        self.width = width
        self.factor = torch.nn.Parameter(torch.full((width,), 2.0))
        self.dropout = torch.nn.Dropout(0.5)
        self.sizes: list[int] = []

    def forward(self, x):
        self.sizes.append(len(x))
        return self.dropout(x[:, : self.width] * self.factor)


def episode(steps=5):
    rows = np.random.default_rng(steps).uniform(-9, 9, (steps + 1, 4))
    return played(list(rows))


def test_training_rows_and_acting_rows_are_the_networks_output_without_noise():
    one, stub = episode(), Stub()
    rows = one.get_observations().astype(np.float32)[:, :2] * 2
    training = LearnerConnectorPipeline(SPACE, None, connectors=[FrozenModule(module=stub), BatchIndividualItems()])
    acting = EnvToModulePipeline(SPACE, None, connectors=[FrozenModule(module=stub), BatchIndividualItems()])
    trained = training(rl_module=None, episodes=[one])["obs"]
    assert isinstance(trained, np.ndarray)
    assert np.array_equal(trained, rows[:-1])
    assert np.array_equal(acting(rl_module=None, episodes=[one])["obs"], rows[-1:])
    assert acting.observation_space == gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    assert stub.training
    assert stub.factor.requires_grad


def test_training_the_original_changes_nothing():
    stub = Stub()
    piece = FrozenModule(module=stub)
    with torch.no_grad():
        stub.factor.fill_(100.0)
    assert piece.transform(np.ones((1, 4))).tolist() == [[2.0, 2.0]]


def test_rows_go_through_a_few_at_a_time():
    piece = FrozenModule(module=Stub(), batch_size=3)
    rows = np.arange(32.0).reshape(8, 4)
    assert np.array_equal(piece.transform(rows), np.float32(rows[:, :2] * 2))
    assert piece._encoder._module.sizes == [3, 3, 2]
    assert piece.transform(rows[:0]).shape == (0, 2)


def test_tensors_stay_tensors_without_gradients():
    head = [AddObservationsFromEpisodesToBatch(as_learner_connector=True), BatchIndividualItems(), NumpyToTensor()]
    pipeline = LearnerConnectorPipeline(SPACE, None, connectors=[*head, FrozenModule(module=Stub())])
    found = pipeline(rl_module=Lab.module(), episodes=[episode()])["obs"]
    assert isinstance(found, torch.Tensor)
    assert not found.requires_grad
    assert np.array_equal(found.numpy(), episode().get_observations()[:-1, :2].astype(np.float32) * 2)


def test_import_paths_are_data_where_imports_are_allowed():
    spec = {"piece": "frozen_module", "module": "torch.nn:Flatten", "keywords": {"start_dim": 1}}
    piece = build_piece(spec, allow_imports=True)
    assert piece.transform(np.zeros((3, 2, 2), np.float32)).shape == (3, 4)
    assert piece_to_dict(piece) == spec
    with pytest.raises(PieceError, match=r"'torch.nn:Flatten' is an import path, which runs code; allow it"):
        build_piece(spec)
    with pytest.raises(PieceError, match="argument 'module'"):
        piece_to_dict(FrozenModule(module=Stub()))


def test_weights_are_saved_and_copies_go_on():
    first, second = FrozenModule(module=Stub()), FrozenModule(module=Stub())
    state = {"weights": {"factor": np.float32([3.0, 4.0])}}
    second.set_state(state)
    assert second.transform(np.ones((1, 4))).tolist() == [[3.0, 4.0]]
    assert second.get_state()["weights"]["factor"].tolist() == [3.0, 4.0]
    assert second.merge_states([second.get_state(), second.get_state()])["weights"].keys() == {"factor"}
    assert pickle.loads(pickle.dumps(second)).transform(np.ones((1, 4))).tolist() == [[3.0, 4.0]]
    assert first.transform(np.ones((1, 4))).tolist() == [[2.0, 2.0]]
    with pytest.raises(StateError, match="build the piece with the network that was saved"):
        first.set_state({"weights": {"other": np.zeros(2)}})
    with pytest.raises(StateError, match="expected: weights"):
        first.set_state({})


class Pair(torch.nn.Module):
    def forward(self, x):
        return x, x


class Fewer(torch.nn.Module):
    def forward(self, x):
        return x[1:]


@pytest.mark.parametrize("module", [Pair(), Fewer()])
def test_other_outputs_are_named(module):
    with pytest.raises(PieceOutputError, match="a tensor of 3 rows"):
        FrozenModule(module=module).transform(np.zeros((3, 4), np.float32))


def test_mistakes_are_named():
    with pytest.raises(ConfigError, match=r"found: +the class Stub[\s\S]*make an instance of it"):
        FrozenModule(module=Stub)
    with pytest.raises(ConfigError, match=r"found: +function"):
        FrozenModule(module=lambda x: x)
    with pytest.raises(RegistryError, match=r"FrozenModule.module"):
        FrozenModule(module="torch.nn:Lineer")
    with pytest.raises(ConfigError, match=r"FrozenModule.batch_size[\s\S]*at least 1"):
        FrozenModule(module=Stub(), batch_size=0)


def episodes(seed, lengths):
    rng = np.random.default_rng(seed)
    return [
        played(list(rng.normal(size=(steps + 1, 2, 2))), list(rng.normal(size=steps)), id_=f"{i}")
        for i, steps in enumerate(lengths)
    ]


def rewards_of(piece, made, *more):
    pieces = [*more, piece, AddObservationsFromEpisodesToBatch(as_learner_connector=True)]
    tail = [AddColumnsFromEpisodesToTrainBatch(), BatchIndividualItems()]
    return LearnerConnectorPipeline(connectors=[*pieces, *tail])(rl_module=None, episodes=made)["rewards"]


class Sums(torch.nn.Module):
    def forward(self, x):
        return x.reshape(len(x), -1).sum(1, keepdim=True)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 99), st.lists(st.integers(1, 5), min_size=1, max_size=3), st.booleans(), st.booleans(), st.booleans()
)
def test_each_reward_is_that_of_a_loop(seed, lengths, progress, added, encoded):
    goal = np.arange(4.0).reshape(2, 2)
    made = episodes(seed, lengths)

    def distance(row):
        difference = [(row - goal).sum()] if encoded else (row - goal).ravel()
        return sum(value**2 for value in difference) ** 0.5

    expected = []
    for one in made:
        for t in range(len(one)):
            reward = -distance(one.get_observations(t + 1))
            reward += distance(one.get_observations(t)) if progress else 0.0
            expected.append(reward + (one.get_rewards(t) if added else 0.0))
    piece = GoalDistanceRewards(goal=goal.tolist(), module=Sums() if encoded else None, progress=progress, added=added)
    np.testing.assert_allclose(rewards_of(piece, made), expected, atol=1e-5)
    assert [one.get_rewards().tolist() for one in made] == [
        one.get_rewards().tolist() for one in episodes(seed, lengths)
    ]


def test_bootstrap_rows_have_none():
    made = episodes(0, [2, 1])
    plain = rewards_of(GoalDistanceRewards(goal=np.zeros((2, 2))), made)
    longer = rewards_of(GoalDistanceRewards(goal=np.zeros((2, 2))), made, AddOneTsToEpisodesAndTruncate())
    assert longer.tolist() == [*plain[:2].tolist(), 0.0, plain[2], 0.0]


def test_data_form_and_state():
    piece = GoalDistanceRewards(goal=[1.0], module="torch.nn:Linear", keywords={"in_features": 1, "out_features": 1})
    again = build_piece(piece_to_dict(piece), allow_imports=True)
    assert again == piece
    again.set_state(piece.get_state())
    for name, weights in again.get_state()["weights"].items():
        assert np.array_equal(weights, piece.get_state()["weights"][name])
    assert GoalDistanceRewards(goal=[1.0]).get_state() == {}


@pytest.mark.parametrize("goal", [[0.0, 0.0], np.zeros((2, 3))])
def test_a_goal_of_another_shape_is_named(goal):
    with pytest.raises(ColumnError, match=r"GoalDistanceRewards[\s\S]*found: +shape \(2, 2\)"):
        rewards_of(GoalDistanceRewards(goal=goal), episodes(0, [1]))
