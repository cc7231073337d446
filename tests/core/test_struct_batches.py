"""Joining rows into batches and taking them apart again."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest

from epibatch.core.errors import ColumnError
from epibatch.core.spaces import (
    BatchedNdArray,
    batch,
    convert_to_numpy,
    flatten_to_single_ndarray,
    make_action_immutable,
    unbatch,
)


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([1, 2], np.array([1, 2])),
        ([1.0, 2.5], np.array([1.0, 2.5])),
        ([True, False], np.array([True, False])),
        ([np.float32(1.0)], np.array([1.0], np.float32)),
        ([np.ones(2, np.float32)] * 3, np.ones((3, 2), np.float32)),
        ([np.ones(2, np.uint8), np.zeros(2, np.float32)], np.array([[1, 1], [0, 0]], np.float32)),
        ([[1, 2], [3, 4]], np.array([[1, 2], [3, 4]])),
        (["a", "bc"], np.array(["a", "bc"])),
        ([None, None], np.array([None, None], object)),
        ([np.array(3), np.array(4)], np.array([3, 4])),
    ],
)
def test_batch_stacks_leaves_under_a_new_first_axis(items, expected):
    result = batch(items)
    assert result.dtype == expected.dtype
    assert np.array_equal(result, expected)


def test_batch_mirrors_nesting_and_ignores_key_order():
    result = batch([{"a": 1, "b": (2.0, np.zeros(2))}, {"b": (3.0, np.ones(2)), "a": 4}])
    assert list(result) == ["a", "b"]
    assert result["a"].tolist() == [1, 4]
    assert isinstance(result["b"], tuple)
    assert result["b"][0].tolist() == [2.0, 3.0]
    assert result["b"][1].tolist() == [[0.0, 0.0], [1.0, 1.0]]


def test_batch_of_empty_structures_is_one():
    assert batch([{}, {}]) == {}


def test_batch_concatenates_items_that_have_the_batch_axis():
    result = batch([{"a": np.zeros((2, 3))}, {"a": np.ones((1, 3))}], individual_items_already_have_batch_dim=True)
    assert result["a"].tolist() == [[0.0] * 3, [0.0] * 3, [1.0] * 3]


def test_batch_auto_goes_by_the_tag_of_each_leaf():
    tagged = {"a": BatchedNdArray(np.zeros((2, 3))), "b": BatchedNdArray(np.zeros(2))}
    single = {"a": np.ones(3), "b": 5.0}
    result = batch([tagged, single, tagged], individual_items_already_have_batch_dim="auto")
    assert result["a"].shape == (5, 3)
    assert result["b"].tolist() == [0.0, 0.0, 5.0, 0.0, 0.0]
    assert type(result["a"]) is np.ndarray


def test_batch_auto_without_tags_stacks():
    assert batch([np.ones(3)] * 2, individual_items_already_have_batch_dim="auto").shape == (2, 3)


def test_batch_never_shares_memory_with_its_items():
    rows = BatchedNdArray(np.zeros((2, 3)))
    assert not np.shares_memory(batch([rows], individual_items_already_have_batch_dim="auto"), rows)


@pytest.mark.parametrize(
    ("items", "mode", "message"),
    [
        ([], False, "expected: at least one item"),
        ([np.ones(2), np.ones(3)], False, r"found:    \(2,\), \(3,\)"),
        ([np.ones((1, 2)), np.ones((1, 3))], True, "do:       pad the items to one shape"),
        ([{"a": 1}, {"b": 1}], False, r"expected: \{a: leaf\}"),
        ([{"a": 1}, 2], False, "found:    leaf"),
        ([2, {"a": 1}], False, r"found:    \{a: leaf\}"),
        ([(1, 2), (1,)], False, r"expected: \(leaf, leaf\)"),
    ],
)
def test_batch_says_what_does_not_fit(items, mode, message):
    with pytest.raises(ColumnError, match=message):
        batch(items, individual_items_already_have_batch_dim=mode)


def test_tag_is_a_view():
    array = np.zeros((2, 3))
    tagged = BatchedNdArray(array)
    assert isinstance(tagged, np.ndarray)
    assert np.shares_memory(tagged, array)
    assert isinstance(pickle.loads(pickle.dumps(tagged)), BatchedNdArray)
    assert BatchedNdArray([1, 2]).tolist() == [1, 2]


def test_unbatch_gives_one_structure_per_row():
    rows = unbatch({"a": np.arange(2), "b": (np.array([[1.0, 2.0], [3.0, 4.0]]),)})
    assert [row["a"] for row in rows] == [0, 1]
    assert [row["b"][0].tolist() for row in rows] == [[1.0, 2.0], [3.0, 4.0]]


def test_unbatch_of_a_plain_array_gives_its_rows_untagged():
    rows = unbatch(BatchedNdArray(np.ones((2, 3))))
    assert len(rows) == 2
    assert type(rows[0]) is np.ndarray


def test_unbatch_of_nothing_is_nothing():
    assert unbatch({}) == []


def test_unbatch_undoes_batch():
    items = [{"x": np.full((2, 2), i), "y": (i,)} for i in range(4)]
    for item, row in zip(items, unbatch(batch(items)), strict=True):
        assert np.array_equal(item["x"], row["x"])
        assert item["y"] == row["y"]


@pytest.mark.parametrize(
    ("struct", "message"),
    [
        (np.float32(3.0), "found:    no batch axis"),
        ({"a": np.zeros(2), "b": np.zeros(3)}, "found:    2 rows, 3 rows"),
        ({"a": np.zeros(2), "b": np.array(1)}, "found:    2 rows, no batch axis"),
    ],
)
def test_unbatch_needs_one_batch_axis(struct, message):
    with pytest.raises(ColumnError, match=message):
        unbatch(struct)


def test_flatten_to_single_ndarray_sorts_dict_keys():
    result = flatten_to_single_ndarray({"b": (np.float32(3), 4), "a": np.ones((2, 2))})
    assert result.tolist() == [1.0, 1.0, 1.0, 1.0, 3.0, 4.0]


def test_flatten_to_single_ndarray_leaves_a_plain_array_alone():
    array = np.ones((2, 2))
    assert flatten_to_single_ndarray(array) is array


def test_flatten_to_single_ndarray_opens_lists_and_takes_empty_structures():
    assert flatten_to_single_ndarray([np.ones(2), 2]).tolist() == [1.0, 1.0, 2.0]
    assert flatten_to_single_ndarray({}).shape == (0,)


def test_convert_to_numpy_turns_tensors_into_arrays():
    torch = pytest.importorskip("torch")
    tensor = torch.ones(2, requires_grad=True)
    big = 2**40
    result = convert_to_numpy(
        {"a": tensor, "b": (torch.tensor([big]), np.ones(1)), "c": "text", "d": [torch.ones(1)], "e": None}
    )
    assert isinstance(result["a"], np.ndarray)
    assert np.shares_memory(result["a"], tensor.detach().numpy())
    assert result["b"][0].dtype == np.int64
    assert result["b"][0].tolist() == [big]
    assert result["b"][1].dtype == np.float64
    assert (result["c"], result["e"]) == ("text", None)
    assert isinstance(result["d"][0], np.ndarray)


def test_convert_to_numpy_reduces_floats_only():
    torch = pytest.importorskip("torch")
    types = ["float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool"]
    tensors = {name: torch.ones(1, dtype=getattr(torch, name)) for name in types}
    reduced = {name: array.dtype.name for name, array in convert_to_numpy(tensors, reduce_type=True).items()}
    expected = {name: "float32" if re.match("b?float", name) else name for name in types}
    assert reduced == expected


def test_actions_are_made_read_only_node_by_node():
    array = np.zeros(2)
    assert make_action_immutable(array) is array
    with pytest.raises(ValueError, match="read-only"):
        array += 1
    given = {"a": 1}
    action = make_action_immutable(given)
    assert action["a"] == 1
    with pytest.raises(TypeError, match="item assignment"):
        action["a"] = 2
    given["a"] = 3
    assert dict(action) == {"a": 3}
    assert make_action_immutable((1, 2)) == (1, 2)
