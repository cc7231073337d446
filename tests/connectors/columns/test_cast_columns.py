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
        (gym.spaces.Discrete(3, start=1), "int64", gym.spaces.Discrete(3, start=1)),
        (gym.spaces.Discrete(3, start=-1), "uint8", gym.spaces.Box(0, 1, (), np.uint8)),
        (
            gym.spaces.MultiDiscrete([3, 2], start=[1, 0]),
            "int16",
            gym.spaces.MultiDiscrete([3, 2], start=[1, 0], dtype=np.int16),
        ),
        (gym.spaces.MultiBinary(2), "int32", gym.spaces.MultiDiscrete([2, 2], dtype=np.int32)),
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


def test_discrete_actions_stay_discrete():
    spaces = gym.spaces.Discrete(4)
    piece = CastColumns(None, spaces, columns="actions", dtype="int32")
    assert isinstance(piece.action_space, gym.spaces.Discrete) and piece.action_space.n == 4
    assert piece.action_space.contains(np.int32(3)) and not piece.action_space.contains(np.int32(4))
    assert piece.inverse(np.int32([3])).dtype == np.int64


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
@pytest.mark.parametrize("rows", [[300.0], [-1.0], [np.nan], [np.inf], [300], [-1]])
def test_numbers_that_the_type_cannot_hold_are_named(rows, kind):
    with pytest.raises(ColumnError, match="numbers from 0 to 255"):
        CastColumns(columns="obs", dtype="uint8").transform(kind(rows))


@pytest.mark.parametrize("kind", [np.float32, torch.tensor])
def test_the_number_next_to_the_greatest_is_too_large(kind):
    with pytest.raises(ColumnError, match=r"from 2147483648\.0 to"):
        CastColumns(columns="obs", dtype="int32").transform(kind([2147483648.0]))


def test_types_without_a_name_in_numpy_are_checked_too():
    rows = torch.tensor([2.0, 7.0], dtype=torch.bfloat16)
    assert CastColumns(columns="obs", dtype="int8").transform(rows).tolist() == [2, 7]
    with pytest.raises(ColumnError, match="numbers from -128 to 127"):
        CastColumns(columns="obs", dtype="int8").transform(rows * 100)


@pytest.mark.parametrize("kwargs", [{"dtype": "float"}, {"dtype": "float23"}, {"only": ["double"]}])
def test_types_that_are_none(kwargs):
    with pytest.raises(ConfigError, match="types among"):
        CastColumns(columns="obs", **kwargs)


def test_by_contract():
    piece = CastColumns(columns="obs", dtype="float32")
    assert build_piece(piece_to_dict(piece)) == piece
    check_connector(piece, spaces=DOUBLE, skip={"inverse": "its way back is to the type of the action space"})
