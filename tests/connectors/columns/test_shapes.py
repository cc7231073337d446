"""Axes of rows moved about, and back again."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors.columns import PermuteColumns, ReshapeColumns, SqueezeColumns, UnsqueezeColumns
from epibatch.core.errors import ColumnError, ConfigError, PieceOutputError, SpaceError
from epibatch.core.registry import build_piece, piece_to_dict
from epibatch.env_runner import SingleAgentEnvRunner
from epibatch.testing import check_connector

CASES = [
    (SqueezeColumns(columns="obs", axis=1), (3, 1, 2), lambda x: np.squeeze(x, 2)),
    (SqueezeColumns(columns="obs", axis=-1), (3, 1), lambda x: np.squeeze(x, -1)),
    (UnsqueezeColumns(columns="obs", axis=0), (3, 2), lambda x: np.expand_dims(x, 1)),
    (UnsqueezeColumns(columns="obs", axis=-1), (3, 2), lambda x: np.expand_dims(x, -1)),
    (UnsqueezeColumns(columns="obs", axis=-2), (3, 2), lambda x: np.expand_dims(x, -2)),
    (UnsqueezeColumns(columns="obs", axis=0), (), lambda x: np.expand_dims(x, 1)),
    (PermuteColumns(columns="obs", axes=[2, 0, 1]), (3, 1, 2), lambda x: np.moveaxis(x, -1, 1)),
    (PermuteColumns(columns="obs", axes=[1, 0]), (3, 2), lambda x: np.swapaxes(x, 1, 2)),
    (ReshapeColumns(columns="obs", shape=[2, 3], back=[6]), (6,), lambda x: x.reshape(len(x), 2, 3)),
    (ReshapeColumns(columns="obs", shape=[-1], back=[3, 2]), (3, 2), lambda x: x.reshape(len(x), 6)),
    (ReshapeColumns(columns="obs", shape=[], back=[1]), (1,), lambda x: x.reshape(len(x))),
]
IDS = [repr(piece) for piece, _, _ in CASES]


@pytest.mark.parametrize(("piece", "shape", "expected"), CASES, ids=IDS)
@settings(max_examples=10, deadline=None)
@given(rows=st.integers(0, 5))
def test_rows_and_back(piece, shape, expected, rows):
    x = np.arange(rows * int(np.prod(shape, dtype=int)), dtype=np.int16).reshape(rows, *shape)
    y = piece.transform(x)
    assert np.array_equal(y, expected(x)) and y.dtype == np.int16
    assert np.array_equal(piece.inverse(y), x)
    tensor = piece.transform(torch.from_numpy(x))
    assert torch.equal(tensor, torch.from_numpy(np.ascontiguousarray(expected(x))))
    assert torch.equal(piece.inverse(tensor), torch.from_numpy(x))


@pytest.mark.parametrize(("piece", "shape", "expected"), CASES, ids=IDS)
def test_bounds_move_with_the_entries(piece, shape, expected):
    low = np.random.default_rng(0).uniform(-2, -1, shape).astype(np.float32)
    space = gym.spaces.Box(low, low + 3, dtype=np.float32)
    derived = type(piece)(space, **piece.get_ctor_args_and_kwargs()[1]).observation_space
    assert derived == gym.spaces.Box(
        np.asarray(expected(low[None])[0]), np.asarray(expected(low[None] + 3)[0]), np.shape(expected(low[None]))[1:]
    )


@pytest.mark.parametrize(
    ("space", "box"),
    [
        (gym.spaces.Discrete(4, start=2), gym.spaces.Box(2, 5, (1,), np.int64)),
        (gym.spaces.MultiDiscrete([3, 4]), gym.spaces.Box(np.int64([[0, 0]]), np.int64([[2, 3]]), dtype=np.int64)),
        (gym.spaces.MultiBinary(2), gym.spaces.Box(0, 1, (1, 2), np.int8)),
    ],
)
def test_other_spaces_become_boxes(space, box):
    assert UnsqueezeColumns(space, columns="obs", axis=0).observation_space == box


@pytest.mark.parametrize("column", ["obs/a", "rewards", "obs"])
def test_any_column(column, nested):
    if column == "rewards":
        with pytest.raises(PieceOutputError, match=r"found:    shape \(2, 1\)"):  # there is one number for each step
            nested.train([UnsqueezeColumns(columns=column, axis=0)], [nested.episode(2)])
    else:
        path = "obs/info/gear" if "/" in column else "obs"
        batch = nested.train([UnsqueezeColumns(columns=path, axis=-1)], [nested.episode(2)])
        assert batch["obs"]["info"]["gear"].tolist() == [[0], [1]]
        assert batch["obs"]["pose"].shape == ((2, 2) if "/" in column else (2, 2, 1))


def test_actions_reach_the_environment_in_its_shape():
    made = (
        PPOConfig()
        .environment("Pendulum-v1")
        .env_runners(env_to_module_connector=lambda env, spaces, device: SqueezeColumns(columns="actions", axis=0))
        .debugging(seed=0)
    )
    runner = SingleAgentEnvRunner(config=made)
    episodes = runner.sample(num_timesteps=3, random_actions=True)
    assert all(episode.get_actions().ndim == 1 for episode in episodes)
    assert episodes[0].action_space == gym.spaces.Box(-2.0, 2.0, (), np.float32)
    runner.stop()
    piece = ReshapeColumns(None, gym.spaces.Box(-1, 1, (2, 2)), columns="actions", shape=[4])
    assert piece.action_space.shape == (4,)
    assert piece.inverse(np.zeros((3, 4))).shape == (3, 2, 2)


@pytest.mark.parametrize(
    ("piece", "shape", "match"),
    [
        (SqueezeColumns(columns="obs", axis=0), (3, 1), "an axis of length 1"),
        (SqueezeColumns(columns="obs", axis=2), (3, 1), "an axis from -2 to 1"),
        (SqueezeColumns(columns="obs", axis=0), (), "rows of one axis at least"),
        (UnsqueezeColumns(columns="obs", axis=2), (3,), "an axis from -2 to 1"),
        (PermuteColumns(columns="obs", axes=[1, 0]), (3,), "rows of 2 axes"),
        (ReshapeColumns(columns="obs", shape=[4]), (3,), "of as many entries"),
        (ReshapeColumns(columns="obs", shape=[2, -1]), (3,), "of as many entries"),
    ],
)
def test_rows_that_do_not_fit_are_named(piece, shape, match):
    with pytest.raises(ColumnError, match=match):
        piece.transform(np.zeros((5, *shape)))


def test_arguments_that_cannot_be_meant():
    for axes in ([], [1, 2], [0, 0], "01", [0.0]):
        with pytest.raises(ConfigError, match=r"PermuteColumns\.axes"):
            PermuteColumns(columns="obs", axes=axes)
    for shape in (3, [-1, -1], [2.0], [-2]):
        with pytest.raises(ConfigError, match=r"ReshapeColumns\.shape"):
            ReshapeColumns(columns="obs", shape=shape)
    with pytest.raises(ColumnError, match="back=\\[6\\]"):
        ReshapeColumns(columns="obs", shape=[2]).inverse(np.zeros((1, 2)))
    with pytest.raises(SpaceError, match="Text"):
        UnsqueezeColumns(gym.spaces.Text(3), columns="obs", axis=0).observation_space  # noqa: B018


@pytest.mark.parametrize(("piece", "shape", "expected"), CASES[:2] + CASES[6:9], ids=IDS[:2] + IDS[6:9])
def test_by_contract(piece, shape, expected):
    assert build_piece(piece_to_dict(piece)) == piece
    check_connector(piece, spaces=gym.spaces.Box(-1, 1, shape))
