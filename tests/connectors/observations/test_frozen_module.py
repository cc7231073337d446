"""A network that only encodes, and rewards for the way towards a goal."""

from __future__ import annotations

import pickle

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    AddOneTsToEpisodesAndTruncate,
)
from epibatch.connectors.observations import FrozenModule, GoalDistanceRewards
from epibatch.core.errors import ColumnError, ConfigError, PieceError, PieceOutputError, RegistryError, StateError
from epibatch.core.registry import build_piece, piece_to_dict
from fixture_pieces import acted, played, trained

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
    found = trained([piece := FrozenModule(module=stub)], [one], SPACE)["obs"]
    assert isinstance(found, np.ndarray) and np.array_equal(found, rows[:-1])
    assert np.array_equal(acted([FrozenModule(module=stub)], [one], SPACE)["obs"], rows[-1:])
    assert piece.observation_space == gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    assert stub.training and stub.factor.requires_grad
    tensors = piece.transform(torch.from_numpy(one.get_observations()))
    assert not tensors.requires_grad and np.array_equal(tensors.numpy(), rows)


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


def test_import_paths_are_data_where_imports_are_allowed():
    spec = {"piece": "frozen_module", "module": "torch.nn:Flatten", "keywords": {"start_dim": 1}}
    piece = build_piece(spec, allow_imports=True)
    assert piece.transform(np.zeros((3, 2, 2), np.float32)).shape == (3, 4)
    assert piece_to_dict(piece) == spec


def test_weights_are_saved_and_copies_go_on():
    first, second = FrozenModule(module=Stub()), FrozenModule(module=Stub())
    state = {"weights": {"factor": np.float32([3.0, 4.0])}}
    second.set_state(state)
    assert second.transform(np.ones((1, 4))).tolist() == [[3.0, 4.0]]
    assert second.get_state()["weights"]["factor"].tolist() == [3.0, 4.0]
    assert second.merge_states([second.get_state(), second.get_state()])["weights"].keys() == {"factor"}
    assert pickle.loads(pickle.dumps(second)).transform(np.ones((1, 4))).tolist() == [[3.0, 4.0]]
    assert first.transform(np.ones((1, 4))).tolist() == [[2.0, 2.0]]


def episodes(seed, lengths):
    rng = np.random.default_rng(seed)
    return [
        played(list(rng.normal(size=(steps + 1, 2, 2))), list(rng.normal(size=steps)), id_=f"{i}")
        for i, steps in enumerate(lengths)
    ]


def rewards_of(piece, made, *more):
    return trained([*more, piece, AddColumnsFromEpisodesToTrainBatch()], made)["rewards"]


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


class Returns(torch.nn.Module):
    """Applies a function to its rows."""

    def __init__(self, function):
        super().__init__()
        self.forward = function


def frozen(module, **settings):
    return FrozenModule(module=module, **settings)


def outputs(function):
    return frozen(Returns(function)).transform(np.zeros((3, 4), np.float32))


IMPORTED = {"piece": "frozen_module", "module": "torch.nn:Flatten"}


@pytest.mark.parametrize(
    ("mistake", "error", "words"),
    [
        (lambda: outputs(lambda x: (x, x)), PieceOutputError, "a tensor of 3 rows"),
        (lambda: outputs(lambda x: x[1:]), PieceOutputError, "a tensor of 3 rows"),
        (lambda: frozen(Stub), ConfigError, r"found: +the class Stub[\s\S]*make an instance of it"),
        (lambda: frozen(lambda x: x), ConfigError, r"found: +function"),
        (lambda: frozen("torch.nn:Lineer"), RegistryError, r"FrozenModule.module"),
        (lambda: frozen(Stub(), batch_size=0), ConfigError, r"FrozenModule.batch_size[\s\S]*at least 1"),
        (lambda: build_piece(IMPORTED), PieceError, "'torch.nn:Flatten' is an import path, which runs code; allow it"),
        (lambda: piece_to_dict(frozen(Stub())), PieceError, "argument 'module'"),
        (lambda: frozen(Stub()).set_state({"weights": {"x": 0}}), StateError, "build the piece with the network that"),
        (lambda: frozen(Stub()).set_state({}), StateError, "expected: weights"),
        *((lambda goal=goal: rewards_of(GoalDistanceRewards(goal=goal), episodes(0, [1])), ColumnError,
           r"GoalDistanceRewards[\s\S]*found: +shape \(2, 2\)") for goal in ([0.0, 0.0], np.zeros((2, 3)))),
    ],
)  # fmt: skip
def test_mistakes_are_named(mistake, error, words):
    with pytest.raises(error, match=words):
        mistake()
