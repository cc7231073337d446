"""Columns in other types, both ways."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors.columns import CastColumns
from epibatch.core.errors import ColumnError, ConfigError
from epibatch.core.registry import build_piece, piece_to_dict
from epibatch.env_runner import SingleAgentEnvRunner
from epibatch.testing import check_connector

DOUBLE = gym.spaces.Box(-1.0, 1.0, (3,), np.float64)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "uint8", "bool"])
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64, np.bool_])
def test_types_of_arrays_and_tensors(dtype, kind):
    x = np.array([[0, 1]], kind)
    piece = CastColumns(columns="obs", dtype=dtype)
    assert piece.transform(x).dtype == dtype and piece.transform(x).tolist() == x.astype(dtype).tolist()
    tensor = piece.transform(torch.from_numpy(x))
    assert tensor.dtype is getattr(torch, dtype) and tensor.tolist() == x.astype(dtype).tolist()


def test_only_some_types(nested):
    piece = CastColumns(columns=["obs", "rewards"], dtype="float32", only=["float64", "int64"])
    batch = nested.train([piece], [nested.episode(2)])
    assert batch["rewards"].dtype == batch["obs"]["info"]["gear"].dtype == np.float32
    assert batch["rewards"].tolist() == [0.5, 1.5]
    assert piece.transform(np.uint8([1])).dtype == np.uint8
    assert piece.transform(torch.tensor([1], dtype=torch.int16)).dtype is torch.int16
    space = gym.spaces.Dict(a=DOUBLE, b=gym.spaces.Box(0, 255, (2,), np.uint8))
    derived = CastColumns(space, columns="obs", only=["float64"]).observation_space
    assert derived == gym.spaces.Dict(a=gym.spaces.Box(-1, 1, (3,), np.float32), b=space["b"])


@pytest.mark.parametrize(
    ("space", "dtype", "expected"),
    [
        (DOUBLE, "float32", gym.spaces.Box(-1, 1, (3,), np.float32)),
        (gym.spaces.Box(-np.inf, np.inf, (1,)), "int16", gym.spaces.Box(-32768, 32767, (1,), np.int16)),
        (gym.spaces.Box(-9, 300, (1,)), "uint8", gym.spaces.Box(0, 255, (1,), np.uint8)),
        (gym.spaces.Discrete(3, start=1), "float32", gym.spaces.Box(1, 3, (), np.float32)),
    ],
)
def test_spaces(space, dtype, expected):
    assert CastColumns(space, columns="obs", dtype=dtype).observation_space == expected


def test_actions_reach_the_environment_in_its_type():
    spaces = gym.spaces.Box(-2.0, 2.0, (1,), np.float32)
    made = PPOConfig().environment("Pendulum-v1").debugging(seed=0)
    made.env_runners(env_to_module_connector=lambda env: CastColumns(columns="actions", dtype="float64"))
    runner = SingleAgentEnvRunner(config=made)
    (episode,) = runner.sample(num_timesteps=3, random_actions=True)
    assert episode.action_space == gym.spaces.Box(-2.0, 2.0, (1,), np.float64)
    assert episode.get_actions().dtype == np.float64
    runner.stop()
    piece = CastColumns(None, spaces, columns="actions", dtype="float64")
    assert piece.inverse(piece.transform(np.float32([[0.1]]))).tolist() == np.float32([[0.1]]).tolist()
    assert piece.inverse(np.zeros((1, 1))).dtype == np.float32


@pytest.mark.parametrize("rows", [[300.0], [-1.0], [np.nan], [np.inf]])
def test_numbers_that_the_type_cannot_hold_are_named(rows):
    with pytest.raises(ColumnError, match="numbers from 0 to 255"):
        CastColumns(columns="obs", dtype="uint8").transform(np.array(rows))


@pytest.mark.parametrize("kwargs", [{"dtype": "float"}, {"dtype": "float23"}, {"only": ["double"]}])
def test_types_that_are_none(kwargs):
    with pytest.raises(ConfigError, match="types among"):
        CastColumns(columns="obs", **kwargs)


def test_by_contract():
    piece = CastColumns(columns="obs", dtype="float32")
    assert build_piece(piece_to_dict(piece)) == piece
    check_connector(piece, spaces=DOUBLE, skip={"inverse": "its way back is to the type of the action space"})
