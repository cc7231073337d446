"""Spaces: rows that fit them, fill values, dummy rows, one-hot, and spaces as JSON."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch
from gymnasium import spaces

from epibatch.core.errors import ColumnError, SpaceError
from epibatch.core.spaces import (
    check_row,
    encoding_advice,
    exact_fill_value,
    fill_row,
    fill_value,
    fitting_action,
    flatten_inputs_to_1d_tensor,
    get_dummy_batch_for_space,
    infer_spaces,
    one_hot,
    one_hot_column,
    one_hot_multidiscrete,
    space_from_dict,
    space_to_dict,
    unbatch,
)

BOX = spaces.Box(-1, 1, (2,))
NESTED = spaces.Dict(a=spaces.Discrete(3), b=spaces.Tuple([BOX, spaces.MultiBinary(2)]))


@pytest.mark.parametrize(
    ("space", "row"),
    [
        (BOX, np.full(2, 99.0)),
        (BOX, np.zeros(2, np.int64)),
        (BOX, [0.0, 0.5]),
        (spaces.Discrete(3), 7),
        (spaces.Discrete(3), np.array(1)),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 2])),
        (spaces.MultiBinary(2), np.array([True, False])),
        (spaces.MultiBinary([2, 2]), np.zeros((2, 2), np.int8)),
        (NESTED, {"b": (np.zeros(2), np.zeros(2, np.int8)), "a": 0}),
        (spaces.Text(5), "abc"),
    ],
)
def test_fitting_rows_pass(space, row):
    assert check_row(space, row, "observation") is None


@pytest.mark.parametrize("whole", [int, np.float32])
def test_usable_actions_get_the_nesting_and_shape_of_their_space(whole):
    two, pair = spaces.Tuple((spaces.Discrete(2), spaces.Discrete(3))), spaces.MultiDiscrete([2, 3])
    for action in (np.array([1, 2], whole), torch.tensor([1, 2]), [1, 2]):
        converted = fitting_action(two, action, "action")
        assert type(converted) is tuple and converted == (1, 2) and two.contains(tuple(map(int, converted)))
    for space in (pair, spaces.MultiBinary(2)):
        for shape in ((1, 2), (2, 1), (1, 1, 2)):
            converted = fitting_action(space, np.array([1, 0], whole).reshape(shape), "action")
            assert converted.shape == (2,) and converted.tolist() == [1, 0]
    square = spaces.MultiDiscrete([[2, 3, 4], [2, 3, 4]])
    for space, action in ((square, np.zeros((3, 2), whole)), (square, np.zeros(6, whole)), (pair, np.zeros(3, whole))):
        with pytest.raises(SpaceError, match=r"do: *give the action in shape") as raised:
            fitting_action(space, action, "action")
        assert "order" not in str(raised.value)


@pytest.mark.parametrize(
    ("space", "row", "message"),
    [
        (
            BOX,
            np.zeros(3),
            r"(?s)^observation\n.*numbers of shape \(2,\).*float64 array of shape \(3,\)\n.*environment",
        ),
        (BOX, np.array(["a", "b"]), r"<U1 array of shape \(2,\)"),
        (BOX, np.array([None, None]), "object array"),
        (BOX, 1.0, "found:    float"),
        (BOX, [[1.0], [1.0, 2.0]], "found:    ragged list"),
        (BOX, {"a": np.zeros(2)}, "found:    dict"),
        (spaces.Discrete(3), 1.0, r"expected: integer of shape \(\), as in Discrete\(3\)"),
        (spaces.Discrete(3), np.array([1]), r"int64 array of shape \(1,\)"),
        (spaces.MultiDiscrete([2, 3]), np.zeros(2), r"expected: integers of shape \(2,\)"),
        (NESTED, {"a": 0}, r"expected: dict with keys \['a', 'b'\]"),
        (NESTED, {"a": 0, "b": (np.zeros(2),)}, r"^observation\['b'\]\n  expected: tuple of 2"),
        (NESTED, {"a": 0, "b": (np.zeros(3), np.zeros(2, np.int8))}, r"^observation\['b'\]\[0\]\n"),
    ],
)
def test_unfit_rows_are_explained(space, row, message):
    with pytest.raises(SpaceError, match=message):
        check_row(space, row, "observation")


@pytest.mark.parametrize(
    ("space", "advice"),
    [
        (spaces.Text(5), "encode the text"),
        (spaces.Sequence(BOX), "put PadRaggedRows"),
        (spaces.Graph(BOX, None), "pad nodes and edges"),
        (spaces.OneOf([BOX]), "replace it by a space of one shape"),
    ],
)
def test_advice_names_what_to_add(space, advice):
    assert encoding_advice(space).startswith(advice)
    assert "gymnasium.wrappers.TransformObservation" in encoding_advice(space)


@pytest.mark.parametrize("number", [np.int64, np.float64, np.array])
@pytest.mark.parametrize("fill", [-1, 300, -1.0, 300.0, np.nan])
def test_a_fill_value_that_does_not_fit_is_refused_as_a_number_of_numpy_too(number, fill):
    if number is np.int64 and np.isnan(fill):
        fill = -7
    for value in (fill, number(fill)):
        with pytest.raises(ColumnError, match="column of uint8 can hold"):
            fill_value(np.dtype(np.uint8), value)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: fill_row(spaces.Discrete(3), np.nan), ColumnError, "can hold"),
        (lambda: fill_row(spaces.Dict(a=spaces.Text(3)), 0.0), SpaceError, "found:    Text space"),
        (lambda: exact_fill_value(np.dtype(np.int8), -1.5, "here"), ColumnError, "mask=True"),
        (lambda: one_hot(np.array([0, 5]), 3), SpaceError, "found:    values from 0 to 5"),
        (lambda: one_hot(np.array([-1]), 3), SpaceError, r"expected: integers in \[0, 3\)"),
        (lambda: one_hot(np.array([0.0]), 3), SpaceError, "found:    type float64"),
        (lambda: one_hot_multidiscrete(np.array([1, 2, 3]), [2, 3]), SpaceError, "a last axis of 2 entries"),
        (lambda: space_to_dict(spaces.Dict(a=spaces.Text(3))), SpaceError, r"gymnasium\.spaces\.text\.Text"),
        (lambda: space_to_dict(spaces.Dict({(1, b"a"): spaces.Discrete(2)})), SpaceError, r"found: +\(1, b'a'\)"),
    ],
)
def test_what_cannot_be_filled_encoded_or_described(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("fill", [0.5, np.float32(0.5), np.array([0.5, 2.75])])
def test_a_fill_value_that_fits_is_of_the_columns_type(fill):
    for dtype in (np.uint8, np.float32, np.float64):
        found = fill_value(np.dtype(dtype), fill)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, np.trunc(fill) if dtype is np.uint8 else fill)
    assert fill_value(np.dtype(np.int8), -1.5) == exact_fill_value(np.dtype(np.int8), -1.0, "here") == -1


@pytest.mark.parametrize("fill", [1e300, -1e300, np.float64(1e39), np.array([1.0, 1e300])])
def test_numbers_that_are_too_large_for_a_float_are_refused_and_infinity_is_not(fill):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for cast in (fill_value, lambda dtype, own: exact_fill_value(dtype, own, "here")):
            with pytest.raises(ColumnError, match="column of float32 can hold"):
                cast(np.dtype(np.float32), fill)
            assert cast(np.dtype(np.float32), -np.inf) == -np.inf
            assert cast(np.dtype(np.float32), 3e38) == np.float32(3e38)
        np.testing.assert_array_equal(fill_value(np.dtype(np.float32), np.array([np.inf, 2.0])), [np.inf, 2.0])
        np.testing.assert_array_equal(fill_value(np.dtype(np.float64), fill), fill)


@pytest.mark.parametrize(
    ("space", "value", "expected"),
    [
        (spaces.Box(0, 255, (1,), np.uint8), 1.7, np.array([1], np.uint8)),
        (spaces.Box(-1, 1, ()), 2, np.float32(2.0)),
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


@pytest.mark.parametrize(
    ("space", "keywords", "dtype", "shape"),
    [
        (spaces.Discrete(3), {"one_hot_discrete": True}, np.float32, (2, 3)),
        (spaces.Discrete(3), {"fill_value": "random", "one_hot_discrete": True}, np.float32, (2, 3)),
        (spaces.Discrete(3), {"time_size": 4, "one_hot_discrete": True}, np.float32, (2, 4, 3)),
        (spaces.MultiDiscrete([2, 3]), {"one_hot_discrete": True}, np.float32, (2, 5)),
        (spaces.MultiDiscrete(np.array([[2, 3], [2, 2]])), {"one_hot_discrete": True}, np.float32, (2, 9)),
        (spaces.Box(-1, 1, (5,)), {"fill_value": "random", "time_size": 4}, np.float32, (2, 4, 5)),
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


def test_one_hot_with_values_and_type():
    assert one_hot(np.array([0, 2]), 3, on_value=5, off_value=-1, dtype=np.int8).dtype == np.int8
    assert one_hot(np.zeros(0, int), 3).shape == (0, 3)
    assert one_hot(np.array([True, False]), 2).tolist() == [[0.0, 1.0], [1.0, 0.0]]


def test_one_hot_column_respects_starts_and_leaves_the_rest():
    space = spaces.Dict(
        a=spaces.Discrete(2, start=5),
        b=spaces.MultiDiscrete([2, 3], start=[1, 0]),
        c=BOX,
        d=spaces.MultiDiscrete(np.array([[2], [2]])),
    )
    data = {"a": np.array([6, 5]), "b": np.array([[1, 2], [2, 0]]), "c": np.ones((2, 2))}
    data["d"] = np.array([[[0], [1]], [[1], [1]]])
    result = one_hot_column(data, space)
    assert result["a"].tolist() == [[0, 1], [1, 0]]
    assert result["b"].tolist() == [[1, 0, 0, 0, 1], [0, 1, 1, 0, 0]]
    assert result["d"].tolist() == [[1, 0, 0, 1], [0, 1, 0, 1]]
    assert {result[key].dtype for key in "abd"} == {np.dtype(np.float32)}
    assert result["c"] is data["c"]
    assert one_hot_column(6, spaces.Discrete(2, start=5)).tolist() == [0.0, 1.0]


def test_flatten_inputs_with_time_axis_and_without_batch_axis():
    inputs = (np.zeros((2, 4, 3)), np.zeros((2, 4)))
    assert flatten_inputs_to_1d_tensor(inputs, time_axis=True).shape == (2, 4, 4)
    assert flatten_inputs_to_1d_tensor((np.zeros((3, 2)), 1.0), batch_axis=False).shape == (7,)


SPACES = [
    spaces.Box(-1, 1, (3,)),
    spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
    spaces.Box(0, np.inf, (1,), np.float16),
    spaces.Box(0, 1, (0,)),
    spaces.Box(np.array([-0.1, -np.inf], np.float32), np.array([np.inf, 0.3], np.float32)),
    spaces.Box(-np.inf, np.inf, (2,), np.int64),
    spaces.Discrete(4),
    spaces.Discrete(4, start=-2),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), np.int32),
    spaces.MultiDiscrete([2, 3], start=[5, -1]),
    spaces.MultiBinary([2, 3]),
    spaces.Dict(b=spaces.Discrete(2), a=spaces.Tuple([spaces.Box(0, 1, (2,)), spaces.Dict(x=spaces.MultiBinary(2))])),
    spaces.Dict({("red", (0, None)): spaces.Discrete(2), 3: spaces.Discrete(3), "3": spaces.Discrete(4)}),
    spaces.Dict({np.str_("red"): spaces.Discrete(2), np.str_("blue"): spaces.Discrete(3)}),
    spaces.Tuple([]),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_round_trip_through_json_is_equal(space):
    text = json.dumps(space_to_dict(space), allow_nan=False)
    restored = space_from_dict(json.loads(text))
    assert restored == space
    assert (restored.dtype, restored.shape) == (space.dtype, space.shape)
    for bounds in ("low", "high", "bounded_below", "bounded_above") if isinstance(space, spaces.Box) else ():
        assert np.array_equal(getattr(restored, bounds), getattr(space, bounds))
    if isinstance(space, spaces.Dict):
        assert list(restored.spaces) == list(space.spaces)


def test_bounds_are_one_number_or_nested_lists_and_infinities_are_strings():
    described = space_to_dict(spaces.Box(-np.inf, 1.0, (2, 3)))
    assert described == {"type": "Box", "low": "-inf", "high": 1.0, "shape": [2, 3], "dtype": "float32"}
    low, high = np.array([[0, -np.inf]], np.float32), np.array([[1, np.inf]], np.float32)
    described = space_to_dict(spaces.Box(low, high))
    assert (described["low"], described["high"]) == ([[0.0, "-inf"]], [[1.0, "inf"]])


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({"type": "box"}, "did you mean 'Box'"),
        ({"type": "Discrete"}, "KeyError: 'n'"),
        ({"type": "Box", "low": [0, 0], "high": 1, "shape": [3], "dtype": "float32"}, "ValueError"),
        ({"type": "Box", "low": 0, "high": 1, "shape": [3], "dtype": "float33"}, "float33"),
    ],
)
def test_unfit_descriptions_are_named(description, message):
    with pytest.raises(SpaceError, match=message):
        space_from_dict(description)


MIXED = spaces.Dict(
    a=spaces.Tuple([spaces.Box(-1, 1, (2, 3)), spaces.Box(0, 255, (4, 4), np.uint8), spaces.Box(-9, 9, (), np.int16)]),
    b=spaces.Dict(c=spaces.MultiBinary(3), d=spaces.Box(0, 1, (2,), np.bool_), e=spaces.Box(-1, 1, (1,), np.float64)),
    choice=spaces.Discrete(5, start=-2),
    choices=spaces.MultiDiscrete([[2, 9], [3, 4]], start=[[0, -3], [5, 0]]),
)


@pytest.mark.parametrize("discrete", [False, True, ["choice", "choices"]])
@pytest.mark.parametrize("seed", range(5))
def test_spaces_inferred_from_rows_have_every_row(discrete, seed):
    MIXED.seed(seed)
    rows = [MIXED.sample() for _ in range(6)]
    batch = get_dummy_batch_for_space(MIXED, 6, fill_value="random")
    for space, members in ((infer_spaces(rows, discrete=discrete), rows), (infer_spaces(batch), unbatch(batch))):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Gymnasium, about numbers that are no arrays
            assert all(space.contains(row) for row in members)


def test_spaces_inferred_from_columns_of_different_lengths():
    torch = pytest.importorskip("torch")
    batch = {
        "obs": {"camera": np.zeros((3, 2, 2), np.uint8), "speed": [np.float32(1), np.float32(2), np.float32(0.5)]},
        "actions": torch.tensor([4, 1]),
        "cells": np.array([[-1, 2], [0, 7]]),
        "rewards": [1, 2],
    }
    assert infer_spaces(batch, discrete=["actions", "cells"]) == spaces.Dict(
        obs=spaces.Dict(camera=spaces.Box(0, 255, (2, 2), np.uint8), speed=spaces.Box(-np.inf, np.inf, (), np.float32)),
        actions=spaces.Discrete(5),
        cells=spaces.MultiDiscrete([2, 8], start=[-1, 0]),
        rewards=spaces.Box(-(2**63), 2**63 - 1, (), np.int64),
    )


@pytest.mark.parametrize(
    ("batch", "discrete", "error", "message"),
    [
        ({"a": 1.0}, False, SpaceError, r"infer_spaces\(\), a\n.*numbers of shape \[B, ...\]"),
        ({"a": (np.zeros(2), np.array(["x"]))}, False, SpaceError, r"a/1\n[\s\S]*<U1 array[\s\S]*encode it"),
        (np.array([1j]), False, SpaceError, r"infer_spaces\(\)\n[\s\S]*complex128"),
        ({"a": np.array([[0.0], [np.nan]])}, False, SpaceError, "NaN in row 1"),
        ({"a": np.zeros(2)}, ["a"], SpaceError, r"integers of shape \[B, ...\]"),
        ({"a": np.zeros(0, int)}, ["a"], SpaceError, r"array of shape \(0,\)"),
        ({"obs": {"cell": np.zeros(2, int)}}, ["cell"], SpaceError, "discrete=\\['cell'\\]\n.*did you mean 'obs/cell'"),
        ([np.zeros(2), np.zeros(3)], False, ColumnError, r"\(2,\), \(3,\)"),
        (np.array([2**63 + 5], np.uint64), True, SpaceError, r"fewer than 2\*\*63 choices\n.*0 to 9223372036854775813"),
        (np.array([[-(2**63)], [2**63 - 1]]), True, SpaceError, r"-9223372036854775808 to 9223372036854775807"),
        (np.zeros((2, 3), np.longdouble), False, SpaceError, r"\(2, 3\)\n.*leave the part out"),
    ],
)
def test_data_without_a_space_is_named(batch, discrete, error, message):
    with pytest.raises(error, match=message):
        infer_spaces(batch, discrete=discrete)
