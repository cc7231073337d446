"""Columns joined, split, in other shapes and in other types, and the way back."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.connectors.columns import (
    CastColumns,
    ConcatenateColumns,
    PermuteColumns,
    ReshapeColumns,
    SplitColumn,
    SqueezeColumns,
    UnsqueezeColumns,
)
from epibatch.core.errors import ColumnError, ConfigError, PieceOutputError, SpaceError
from fixture_pieces import played, trained

FLAT = ConcatenateColumns(columns=["obs/pose", "obs/info"], to="obs")


def flat(t):
    """`obs/pose`, then what is in `obs/info`, by key."""
    return [float(t), float(-t), float(t % 5), t / 8]


def test_a_nested_observation_becomes_a_vector_on_both_sides(nested):
    batch = nested.train([FLAT], [nested.episode(4), nested.episode(4, "f")])
    assert batch["obs"].tolist() == [flat(t) for t in range(4)] * 2
    assert batch["obs"].dtype == np.float32
    for t in range(4):
        acting, pipeline = nested.act([FLAT], [nested.episode(t)])
        assert acting["obs"].tolist() == [flat(t)]
        assert pipeline.observation_space.contains(acting["obs"][0])
    expected = gym.spaces.Box(np.float32([-9, -9, 0, 0]), np.float32([9, 9, 4, 2]))
    assert pipeline.observation_space == expected


def test_to_a_part_or_a_column_of_its_own(nested):
    piece = ConcatenateColumns(columns=["obs/info/speed", "obs/pose"], to="obs/state")
    batch = nested.train([piece], [nested.episode(2)])
    assert batch["obs"]["state"].tolist() == [[0, 0, 0], [0.125, 1, -1]]
    assert batch["obs"]["info"]["gear"].tolist() == [0, 1] and "pose" not in batch["obs"]
    piece = ConcatenateColumns(columns=["obs/pose", "rewards"], to="features", keep=True)
    batch = nested.train([piece], [nested.episode(2)])
    assert batch["features"].tolist() == [[0, 0, 0.5], [1, -1, 1.5]]
    assert batch["obs"]["pose"].tolist() == [[0, 0], [1, -1]] and batch["rewards"].tolist() == [0.5, 1.5]
    piece = ConcatenateColumns(columns=["vf_preds", "rewards"], to="both")
    batch = nested.train([], [nested.episode(2)], behind=[piece])
    assert batch["both"].tolist() == [[0.0, 0.5], [10.0, 1.5]] and "rewards" not in batch


IMAGES = gym.spaces.Dict(a=gym.spaces.Box(0, 255, (4, 4, 3), np.uint8), b=gym.spaces.Box(0, 9, (4, 4, 1), np.uint8))


@pytest.mark.parametrize(("axis", "shape"), [(-1, (4, 4, 4)), (2, (4, 4, 4)), (None, (64,))])
def test_along_an_axis(axis, shape):
    piece = ConcatenateColumns(IMAGES, columns=["obs/a", "obs/b"], to="obs", axis=axis)
    assert piece.observation_space.shape == shape and piece.observation_space.dtype == np.uint8
    parts = [*(images := IMAGES.sample()).values()]
    (found,) = trained([piece], [played([images, images])])["obs"]
    expected = np.concatenate(parts, -1) if axis else np.concatenate([part.ravel() for part in parts])
    assert np.array_equal(found, expected)


def test_splitting_is_the_way_back(nested):
    sizes = {"obs/pose": 2, "obs/info/gear": 1, "obs/info/speed": 1}
    split = SplitColumn(column="obs", sizes=sizes)
    batch = nested.train([FLAT, split], [nested.episode(3)])
    assert batch["obs"]["pose"].tolist() == [[0, 0], [1, -1], [2, -2]]
    assert batch["obs"]["info"]["gear"].tolist() == [[0], [1], [2]]
    acting, pipeline = nested.act([FLAT, split], [nested.episode(1)])
    assert pipeline.observation_space["info"]["speed"] == gym.spaces.Box(0, 2, (1,), np.float32)
    assert acting["obs"]["pose"].tolist() == [[1, -1]]
    again = nested.train([FLAT, split, FLAT], [nested.episode(3)])
    assert again["obs"].tolist() == [flat(t) for t in range(3)]


@pytest.mark.parametrize(
    ("piece", "error", "match"),
    [
        (ConcatenateColumns(columns=["obs/pose"], to="obs"), ColumnError, "info would be lost"),
        (ConcatenateColumns(columns=["obs/pose", "rewards"], to="obs", keep=True), SpaceError, "found:    rewards"),
        (ConcatenateColumns(columns=["obs/pose", "obs/info"], to="x"), ColumnError, "a part of 'obs' that stays"),
        (ConcatenateColumns(columns=["obs/pose", "obs/info/gear"], to="obs/x", axis=1), ColumnError, "leave axis out"),
        (ConcatenateColumns(columns=["obs/pose", "obs/pos"], to="x"), ColumnError, "did you mean 'pose'"),
        (ConcatenateColumns(columns=["obs/pose"], to="obs/info"), ColumnError, "one that is taken"),
        (SplitColumn(column="obs/pose", sizes={"obs/x": 3}), ColumnError, r"3 entries[\s\S]*shape \(2,\)"),
        (SplitColumn(column="obs", sizes={"obs/x": 3}), SpaceError, "name the parts"),
        (SplitColumn(column="obs/pose", sizes={"obs/x": 1, "obs/info": 1}), ColumnError, "one that is taken"),
    ],
)
def test_mistakes_are_named(piece, error, match, nested):
    with pytest.raises(error, match=match):  # while it runs, or of the space
        assert [nested.train([piece], [nested.episode(2)]), nested.act([piece], [])[1].observation_space]


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


@pytest.mark.parametrize(("column", "shape"), [("obs/info/gear", (2, 2)), ("obs", (2, 2, 1))])
def test_any_column(column, shape, nested):
    batch = nested.train([UnsqueezeColumns(columns=column, axis=-1)], [nested.episode(2)])
    assert batch["obs"]["info"]["gear"].tolist() == [[0], [1]] and batch["obs"]["pose"].shape == shape
    with pytest.raises(PieceOutputError, match=r"found:    shape \(2, 1\)"):  # there is one number for each step
        nested.train([UnsqueezeColumns(columns="rewards", axis=0)], [nested.episode(2)])


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


@pytest.mark.parametrize(
    ("cls", "arguments", "match"),
    [
        (ConcatenateColumns, {"columns": ["a", "b"], "to": "a", "keep": True}, "a new name"),
        *((SplitColumn, {"column": "a", "sizes": own}, r"SplitColumn\.sizes") for own in
          ({}, {"a": 0}, {"a": 1.5}, [1, 2])),
        *((PermuteColumns, {"axes": own}, r"PermuteColumns\.axes") for own in ([], [1, 2], [0, 0], "01", [0.0])),
        *((ReshapeColumns, {"shape": own}, r"ReshapeColumns\.shape") for own in (3, [-1, -1], [2.0], [-2])),
        *((CastColumns, own, "types among") for own in
          ({"dtype": "float"}, {"dtype": "float23"}, {"only": ["double"]})),
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_meant(cls, arguments, match):
    with pytest.raises(ConfigError, match=match):
        cls(**(arguments if cls in (ConcatenateColumns, SplitColumn) else {"columns": "obs", **arguments}))


def test_shapes_without_a_way_back_and_spaces_without_axes_are_named():
    with pytest.raises(ColumnError, match="back=\\[6\\]"):
        ReshapeColumns(columns="obs", shape=[2]).inverse(np.zeros((1, 2)))
    with pytest.raises(SpaceError, match="Text"):
        UnsqueezeColumns(gym.spaces.Text(3), columns="obs", axis=0).observation_space  # noqa: B018


DOUBLE, START = gym.spaces.Box(-1.0, 1.0, (3,), np.float64), gym.spaces.MultiDiscrete([3, 2], start=[1, 0])


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
        (START, "int16", gym.spaces.MultiDiscrete([3, 2], start=[1, 0], dtype=np.int16)),
        (gym.spaces.MultiBinary(2), "int32", gym.spaces.MultiDiscrete([2, 2], dtype=np.int32)),
    ],
)
def test_spaces(space, dtype, expected):
    assert CastColumns(space, columns="obs", dtype=dtype).observation_space == expected


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


def test_the_way_back_has_the_environments_type_and_shape():
    piece = CastColumns(None, gym.spaces.Box(-2.0, 2.0, (1,), np.float32), columns="actions", dtype="float64")
    assert piece.inverse(piece.transform(np.float32([[0.1]]))).tolist() == np.float32([[0.1]]).tolist()
    assert piece.inverse(np.zeros((1, 1))).dtype == np.float32
    flat = ReshapeColumns(None, gym.spaces.Box(-1, 1, (2, 2)), columns="actions", shape=[4])
    assert flat.action_space.shape == (4,) and flat.inverse(np.zeros((3, 4))).shape == (3, 2, 2)
