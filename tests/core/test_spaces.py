"""Dummy values and one-hot encoding."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from gymnasium import spaces

from epibatch.core.errors import SpaceError
from epibatch.core.spaces import (
    fill_row,
    flatten_inputs_to_1d_tensor,
    get_base_struct_from_space,
    get_dummy_batch_for_space,
    one_hot,
    one_hot_column,
    one_hot_multidiscrete,
)

BOX = spaces.Box(np.array([-2, 0], np.float32), np.array([4, 1], np.float32))
HALF = spaces.Box(np.array([-np.inf, 0, -np.inf, -2], np.float32), np.array([4, np.inf, np.inf, 2], np.float32))
INT_BOX = spaces.Box(-2, 5, (2,), np.int32)


def test_importing_spaces_loads_no_torch():
    code = "import sys, epibatch.core.spaces; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_base_struct_opens_dict_and_tuple():
    space = spaces.Dict(b=spaces.Discrete(3), a=spaces.Tuple([BOX, spaces.Dict(c=BOX)]))
    struct = get_base_struct_from_space(space)
    assert struct == {"a": (BOX, {"c": BOX}), "b": spaces.Discrete(3)}
    assert type(struct) is dict
    assert type(struct["a"]) is tuple
    assert get_base_struct_from_space(BOX) is BOX


@pytest.mark.parametrize(
    ("space", "value", "expected"),
    [
        (spaces.Box(-1, 1, (2,)), 0.5, np.array([0.5, 0.5], np.float32)),
        (spaces.Box(0, 255, (1,), np.uint8), 1.7, np.array([1], np.uint8)),
        (spaces.Box(-1, 1, ()), 2, np.float32(2.0)),
        (spaces.Discrete(3), 1.7, np.int64(1)),
        (spaces.Discrete(3, start=2), 0, np.int64(0)),
        (spaces.MultiDiscrete([2, 3]), 1.0, np.array([1, 1])),
        (spaces.MultiBinary(2), 1, np.array([1, 1], np.int8)),
    ],
)
def test_fill_row_casts_the_value_to_the_leaf_type(space, value, expected):
    row = fill_row(space, value)
    assert row.dtype == expected.dtype
    assert np.array_equal(row, expected)
    assert type(row) is type(expected)


def test_fill_row_mirrors_nesting():
    row = fill_row(spaces.Dict(a=spaces.Tuple([BOX]), b=spaces.Discrete(2)), 0.0)
    assert row["a"][0].tolist() == [0.0, 0.0]
    assert row["b"] == 0


def test_fill_row_refuses_spaces_without_type():
    with pytest.raises(SpaceError, match="found:    Text space"):
        fill_row(spaces.Dict(a=spaces.Text(3)), 0.0)


@pytest.mark.parametrize(
    ("space", "keywords", "dtype", "shape"),
    [
        (spaces.Discrete(3), {}, np.int64, (2,)),
        (spaces.Discrete(3), {"one_hot_discrete": True}, np.float32, (2, 3)),
        (spaces.Discrete(3), {"fill_value": "random", "one_hot_discrete": True}, np.float32, (2, 3)),
        (spaces.Discrete(3), {"time_size": 4}, np.int64, (2, 4)),
        (spaces.Discrete(3), {"time_size": 4, "time_major": True}, np.int64, (4, 2)),
        (spaces.Discrete(3), {"time_size": 4, "one_hot_discrete": True}, np.float32, (2, 4, 3)),
        (spaces.MultiDiscrete([2, 3]), {"time_size": 4}, np.int64, (2, 4, 2)),
        (spaces.MultiDiscrete([2, 3]), {"one_hot_discrete": True}, np.float32, (2, 5)),
        (spaces.MultiDiscrete(np.array([[2, 3], [2, 2]])), {"one_hot_discrete": True}, np.float32, (2, 9)),
        (spaces.MultiBinary(3), {"one_hot_discrete": True}, np.int8, (2, 3)),
        (spaces.Box(-1, 1, (5,)), {"fill_value": "random", "time_size": 4}, np.float32, (2, 4, 5)),
        (spaces.Box(0, 255, (5,), np.uint8), {"fill_value": 1.7}, np.uint8, (2, 5)),
    ],
)
def test_dummy_batch_shapes_and_types(space, keywords, dtype, shape):
    result = get_dummy_batch_for_space(space, 2, **keywords)
    assert result.dtype == dtype
    assert result.shape == shape
    value = keywords.get("fill_value", 0.0)
    if value != "random":
        assert np.array_equal(result, np.full(shape, value, dtype))


def test_random_dummy_batches_lie_in_the_space():
    space = spaces.Discrete(3, start=2)
    assert all(space.contains(value) for value in get_dummy_batch_for_space(space, 20, fill_value="random"))
    encoded = get_dummy_batch_for_space(space, 20, fill_value="random", one_hot_discrete=True)
    assert encoded.sum(axis=1).tolist() == [1.0] * 20


def test_dummy_batch_default_size_and_size_zero():
    assert get_dummy_batch_for_space(BOX).shape == (32, 2)
    assert get_dummy_batch_for_space(BOX, 0).shape == (2,)
    nested = get_dummy_batch_for_space(spaces.Dict(a=spaces.Tuple([BOX])), 3)
    assert nested["a"][0].shape == (3, 2)


def test_one_hot_with_values_and_type():
    result = one_hot(np.array([[0, 2]]), 3, on_value=5, off_value=-1, dtype=np.int8)
    assert result.tolist() == [[[5, -1, -1], [-1, -1, 5]]]
    assert result.dtype == np.int8
    assert one_hot(1, 2).tolist() == [0.0, 1.0]
    assert one_hot(np.array([0, 2])).shape == (2, 3)
    assert one_hot(np.zeros(0, int), 3).shape == (0, 3)
    assert one_hot(np.array([True, False]), 2).tolist() == [[0.0, 1.0], [1.0, 0.0]]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0, 5], "found:    values from 0 to 5"),
        ([-1], r"expected: integers in \[0, 3\)"),
        ([0.0], "found:    type float64"),
    ],
)
def test_one_hot_refuses_what_it_cannot_encode(values, message):
    with pytest.raises(SpaceError, match=message):
        one_hot(np.array(values), 3)


def test_one_hot_multidiscrete_concatenates():
    assert one_hot_multidiscrete(np.array([[1, 2], [0, 0]]), [2, 3]).tolist() == [[0, 1, 0, 0, 1], [1, 0, 1, 0, 0]]
    with pytest.raises(SpaceError, match="expected: a last axis of 2 entries"):
        one_hot_multidiscrete(np.array([1, 2, 3]), [2, 3])


def test_one_hot_column_respects_starts_and_leaves_the_rest():
    space = spaces.Dict(
        a=spaces.Discrete(2, start=5),
        b=spaces.MultiDiscrete([2, 3], start=[1, 0]),
        c=BOX,
        d=spaces.MultiDiscrete(np.array([[2], [2]])),
        e=spaces.MultiBinary(1),
    )
    floats, bits = np.ones((2, 2)), np.ones((2, 1), np.int8)
    data = {
        "a": np.array([6, 5]),
        "b": np.array([[1, 2], [2, 0]]),
        "c": floats,
        "d": np.array([[[0], [1]], [[1], [1]]]),
        "e": bits,
    }
    result = one_hot_column(data, space)
    assert result["a"].tolist() == [[0, 1], [1, 0]]
    assert result["b"].tolist() == [[1, 0, 0, 0, 1], [0, 1, 1, 0, 0]]
    assert result["d"].tolist() == [[1, 0, 0, 1], [0, 1, 0, 1]]
    assert {result[key].dtype for key in "abd"} == {np.dtype(np.float32)}
    assert result["c"] is floats
    assert result["e"] is bits
    assert one_hot_column(6, spaces.Discrete(2, start=5)).tolist() == [0.0, 1.0]


def test_flatten_inputs_joins_sorted_leaves():
    inputs = {"b": np.array([[7.0], [8.0]]), "a": np.array([0, 1])}
    space = spaces.Dict(a=spaces.Discrete(2), b=spaces.Box(0, 9, (1,)))
    result = flatten_inputs_to_1d_tensor(inputs, get_base_struct_from_space(space))
    assert result.tolist() == [[1.0, 0.0, 7.0], [0.0, 1.0, 8.0]]
    assert result.dtype == np.float32
    assert flatten_inputs_to_1d_tensor(inputs).tolist() == [[0.0, 7.0], [1.0, 8.0]]


def test_flatten_inputs_with_time_axis_and_without_batch_axis():
    inputs = (np.zeros((2, 4, 3)), np.zeros((2, 4)))
    assert flatten_inputs_to_1d_tensor(inputs, time_axis=True).shape == (2, 4, 4)
    assert flatten_inputs_to_1d_tensor((np.zeros((3, 2)), 1.0), batch_axis=False).shape == (7,)
