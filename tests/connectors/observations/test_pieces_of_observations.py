"""Fixed shifts, scales and limits, joined axes, counted steps, frozen networks and rewards for the way to a goal."""

from __future__ import annotations

import pickle

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.connectors.learner import AddColumnsFromEpisodesToTrainBatch, AddOneTsToEpisodesAndTruncate
from epibatch.connectors.observations import (
    Affine,
    Clip,
    CountSteps,
    FlattenAxes,
    FrozenModule,
    GoalDistanceRewards,
    MarkFirstSteps,
)
from epibatch.core.errors import ColumnError, ConfigError, PieceError, PieceOutputError, RegistryError, StateError
from epibatch.core.registry import build_piece, piece_to_dict
from epibatch.episodes import SingleAgentEpisode
from fixture_pieces import acted, played, trained

NUMBERS = st.floats(-20, 20, width=32)


SCALES = st.one_of(st.floats(-8, -0.125, width=32), st.floats(0.125, 8, width=32))


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=6), NUMBERS, SCALES, st.booleans())
def test_entries_and_the_way_back(rows, loc, scale, standard_form):
    x = np.float64(rows)
    piece = Affine(loc=[loc, 0.0], scale=[scale, 1.0], standard_form=standard_form)
    found = piece.transform(x)
    for row, (first, second) in zip(found, rows):
        assert row[0] == pytest.approx((first - loc) / scale if standard_form else first * scale + loc)
        assert row[1] == second
    np.testing.assert_allclose(piece.inverse(found), x, atol=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8", "int64", "bool"])
@pytest.mark.parametrize("standard_form", [True, False])
def test_types_of_arrays_and_tensors(dtype, standard_form):
    piece, x = Affine(loc=[1.0, 2.0], scale=4.0, standard_form=standard_form), np.array([[1, 0], [0, 1]], dtype)
    found, tensors = piece.transform(x), piece.transform(torch.from_numpy(x))
    assert found.tolist() == tensors.tolist() == ([[0, -0.5], [-0.25, -0.25]] if standard_form else [[5, 2], [1, 6]])
    assert found.dtype == (dtype if dtype == "float64" else np.float32)
    assert tensors.dtype is getattr(torch, found.dtype.name) and piece.inverse(tensors).tolist() == x.tolist()


def test_the_space_has_the_bounds_moved_along_and_turned_where_the_scale_is_negative():
    space = gym.spaces.Box(np.float32([0, -np.inf]), np.float32([2, 1]))
    piece = Affine(space, loc=1.0, scale=[-2.0, 3.0])
    assert piece.observation_space == gym.spaces.Box(np.float32([-3, -np.inf]), np.float32([1, 4]))
    pixels = Affine(gym.spaces.Box(0, 255, (1,), np.uint8), scale=255.0, standard_form=True)
    assert pixels.observation_space == gym.spaces.Box(0, 1, (1,), np.float32)


def episodes():
    rng, made = np.random.default_rng(0), []
    for steps in (3, 8, 1):
        rows = np.stack([rng.normal(3, 2, (steps + 1, 2)), np.full((steps + 1, 2), 7.0)], -1)
        made.append(played(list(rows), list(rng.normal(size=steps))))
    return made


@pytest.mark.parametrize("standard_form", [True, False])
def test_fitted_rows_have_mean_0_and_deviation_1(standard_form):
    given_episodes = episodes()
    piece = Affine(standard_form=standard_form).fit(given_episodes)
    rows = np.concatenate([episode.get_observations() for episode in given_episodes])
    found = piece.transform(rows)
    np.testing.assert_allclose(found.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(found[..., 0].std(0, ddof=1), 1)
    assert (found[..., 1] == 0).all()
    np.testing.assert_allclose(piece.inverse(found), rows)
    if standard_form:
        np.testing.assert_allclose(piece.loc, rows.mean(0))
    copy = Affine(standard_form=standard_form)
    copy.set_state(piece.get_state())
    assert copy == piece == build_piece(piece_to_dict(piece)) and Affine(scale=2.0).get_state() == {}
    assert piece.merge_states([piece.get_state()]).keys() == {"loc", "scale"}
    both = Affine(columns=("obs", "new_obs"), standard_form=standard_form).fit(given_episodes)
    assert both.loc == piece.loc and both.scale == piece.scale


def test_other_columns_and_parts_are_fitted():
    made = episodes()
    rewards = np.concatenate([episode.get_rewards() for episode in made])
    assert Affine(columns="rewards", standard_form=True).fit(made).loc == pytest.approx(rewards.mean())
    nested = [played([{"a": np.float32([t]), "b": 0} for t in range(3)])]
    assert Affine(columns="obs/a", standard_form=True).fit(nested).loc == [1.0]
    with pytest.raises(ColumnError, match="name one part"):
        Affine().fit(nested)


@pytest.mark.parametrize(
    ("mistake", "error", "words"),
    [
        (lambda: Affine(columns=("obs", "rewards")).fit(episodes()), ConfigError, "use one piece for each"),
        (lambda: Affine().fit([]), ColumnError, "rows of finite numbers"),
        (lambda: Affine().fit([played([np.float64([np.nan])])]), ColumnError, "rows of finite numbers"),
        (lambda: Affine().set_state({"mean": 0}), StateError, "the state of an Affine piece"),
    ],
)
def test_mistakes_with_statistics_are_named(mistake, error, words):
    with pytest.raises(error, match=words):
        mistake()


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
    for tensor in (torch.from_numpy(x), torch.from_numpy(x).long()):
        found = Clip(low=[-1.0, 0.0], high=2).transform(tensor)
        assert found.dtype == tensor.dtype and found.tolist() == [[-1, 2], [2, 0]]


def test_the_space_is_the_part_within_the_limits():
    assert Clip(gym.spaces.Box(-3, 0.5, (2,)), low=-1, high=1).observation_space == gym.spaces.Box(-1, 0.5, (2,))
    images = gym.spaces.Box(0, 255, (2, 2), np.uint8)
    assert Clip(images, low=-7, high=99.9).observation_space == gym.spaces.Box(0, 99, (2, 2), np.uint8)


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


@pytest.mark.parametrize(
    ("piece", "settings", "words"),
    [
        (Affine, {"scale": 0}, "Affine.scale"),
        (Affine, {"scale": [1, 0]}, "not 0"),
        (Affine, {"loc": "3"}, "Affine.loc"),
        (Affine, {"loc": np.inf}, "finite"),
        (Clip, {}, "low, high, or both"),
        (Clip, {"low": 2, "high": 1}, "exchange them"),
        (Clip, {"low": "a"}, "Clip.low"),
        (Clip, {"high": float("nan")}, "Clip.high"),
        (Clip, {"low": [1, 2], "high": [1, 2, 3]}, "limits of one shape"),
    ],
)
def test_settings_that_cannot_be_meant(piece, settings, words):
    with pytest.raises(ConfigError, match=words):
        piece(**settings)


X = np.arange(48).reshape(2, 2, 3, 4)


@pytest.mark.parametrize(
    ("axes", "shape"), [((0, 1), (6, 4)), ((1, 2), (2, 12)), ((0, -1), (24,)), ((-2, -1), (2, 12)), ((1, 1), (2, 3, 4))]
)
def test_rows_hold_the_same_values_in_the_same_order(axes, shape):
    piece = FlattenAxes(first_axis=axes[0], last_axis=axes[1])
    found = piece.transform(X)
    assert found.shape == (2, *shape)
    assert found.ravel().tolist() == X.ravel().tolist()
    assert piece.transform(torch.from_numpy(X)).tolist() == found.tolist()


def test_each_entry_keeps_its_bounds():
    low = np.arange(6, dtype=np.float32).reshape(2, 3)
    space = FlattenAxes(gym.spaces.Box(low, low + 10)).observation_space
    assert space == gym.spaces.Box(low.ravel(), low.ravel() + 10)


@pytest.mark.parametrize("axes", [(0, 3), (2, 1), (-4, -1)])
def test_axes_that_are_not_there_are_named(axes):
    with pytest.raises(ColumnError, match=r"rows of shape \(2, 3, 4\)[\s\S]*from -1"):
        FlattenAxes(first_axis=axes[0], last_axis=axes[1]).transform(X)


# -- steps and first steps -------------------------------------------------------------------------


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.booleans(), st.data())
def test_rows_of_chunks_count_from_the_episodes_start(lengths, bootstrap, data):
    chunks, expected = [], []
    for steps in lengths:
        cut = data.draw(st.integers(0, steps - 1))
        lookback = data.draw(st.integers(0, cut))
        chunks.append(played(range(steps + 1)).slice(slice(cut, steps), len_lookback_buffer=lookback))
        expected += range(cut, steps + bootstrap)
    pieces = [CountSteps(), MarkFirstSteps()]
    batch = trained([*pieces, *[AddOneTsToEpisodesAndTruncate()] * bootstrap], chunks)
    assert batch["t"].tolist() == expected and batch["t"].dtype == np.int64
    assert batch["is_first"].tolist() == [t == 0 for t in expected] and batch["is_first"].dtype == np.bool_
    newest = acted(pieces, [*chunks, SingleAgentEpisode(observations=[0])])
    assert newest["t"].tolist() == [*lengths, 0] and newest["is_first"].tolist() == [*[False] * len(lengths), True]


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


def walks(seed, lengths):
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
    made = walks(seed, lengths)

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
    assert [one.get_rewards().tolist() for one in made] == [one.get_rewards().tolist() for one in walks(seed, lengths)]


def test_bootstrap_rows_have_none():
    made = walks(0, [2, 1])
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
        *((lambda goal=goal: rewards_of(GoalDistanceRewards(goal=goal), walks(0, [1])), ColumnError,
           r"GoalDistanceRewards[\s\S]*found: +shape \(2, 2\)") for goal in ([0.0, 0.0], np.zeros((2, 3)))),
    ],
)  # fmt: skip
def test_mistakes_are_named(mistake, error, words):
    with pytest.raises(error, match=words):
        mistake()
