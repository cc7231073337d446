"""Nested structures: rows into batches and back, arrays to tensors and back."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest
import torch

from epibatch.core.errors import ColumnError
from epibatch.core.spaces import (
    BatchedNdArray,
    batch,
    convert_to_numpy,
    flatten_to_single_ndarray,
    make_action_immutable,
    unbatch,
)
from epibatch.core.tensors import FLOAT_MAX, FLOAT_MIN, convert_to_torch_tensor, try_import_torch


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


def test_batch_auto_goes_by_the_tag_of_each_leaf():
    tagged = {"a": BatchedNdArray(np.zeros((2, 3))), "b": BatchedNdArray(np.zeros(2))}
    single = {"a": np.ones(3), "b": 5.0}
    result = batch([tagged, single, tagged], individual_items_already_have_batch_dim="auto")
    assert result["a"].shape == (5, 3)
    assert result["b"].tolist() == [0.0, 0.0, 5.0, 0.0, 0.0]
    assert type(result["a"]) is np.ndarray
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


def test_unbatch_of_a_plain_array_gives_its_rows_untagged():
    assert unbatch(batch([{}, {}])) == []
    rows = unbatch(BatchedNdArray(np.ones((2, 3))))
    assert len(rows) == 2
    assert type(rows[0]) is np.ndarray


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


def test_flatten_to_single_ndarray_leaves_a_plain_array_alone():
    array = np.ones((2, 2))
    assert flatten_to_single_ndarray(array) is array


def test_flatten_to_single_ndarray_opens_lists_and_takes_empty_structures():
    assert flatten_to_single_ndarray([np.ones(2), 2]).tolist() == [1.0, 1.0, 2.0]
    assert flatten_to_single_ndarray({}).shape == (0,)


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


@pytest.mark.parametrize(
    ("array_type", "tensor_type"),
    [
        (np.float64, torch.float32),
        (np.longdouble, torch.float32),
        (np.float32, torch.float32),
        (np.float16, torch.float16),
        (np.int64, torch.int64),
        (np.int32, torch.int32),
        (np.int16, torch.int16),
        (np.int8, torch.int8),
        (np.uint8, torch.uint8),
        (np.bool_, torch.bool),
        (">f4", torch.float32),
        (">f8", torch.float32),
        (">i8", torch.int64),
    ],
)
def test_types(array_type, tensor_type):
    tensor = convert_to_torch_tensor(np.array([[0, 1], [1, 0]], array_type))
    assert tensor.dtype is tensor_type
    assert tensor.tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize(
    "leaf",
    [
        np.array([{"a": 1}, None], object),
        np.array(["x", "yy"]),
        np.array(["2020-01-01"], "datetime64[D]"),
        [{"info": 1}],
        ["a"],
        "text",
        b"bytes",
        None,
    ],
)
def test_what_no_tensor_can_hold_is_left(leaf):
    assert convert_to_torch_tensor(leaf) is leaf


@pytest.mark.parametrize(
    ("leaf", "value", "dtype"),
    [
        (1.5, 1.5, torch.float32),
        (3, 3, torch.int64),
        (True, True, torch.bool),
        (np.float64(0.5), 0.5, torch.float32),
        (np.int32(7), 7, torch.int32),
        ([1.0, 2.0], [1.0, 2.0], torch.float32),
        ([np.ones(2), np.zeros(2)], [[1.0, 1.0], [0.0, 0.0]], torch.float32),
        (torch.ones(2, dtype=torch.float64), [1.0, 1.0], torch.float32),
        (torch.ones(2, dtype=torch.int32), [1, 1], torch.int32),
    ],
)
def test_numbers_lists_and_tensors(leaf, value, dtype):
    tensor = convert_to_torch_tensor(leaf)
    assert tensor.tolist() == value
    assert tensor.dtype is dtype


def test_structures_keep_their_form():
    out = convert_to_torch_tensor({"a": (np.zeros(2), {"b": np.ones(1, np.int32)}), "c": None})
    assert list(out) == ["a", "c"]
    assert isinstance(out["a"], tuple)
    assert out["a"][1]["b"].dtype is torch.int32
    assert out["c"] is None


def test_memory_is_shared_with_writable_arrays():
    array = np.zeros((3, 4), np.float32)
    tensor = convert_to_torch_tensor({"obs": array})["obs"]
    array[1, 2] = 5.0
    assert tensor[1, 2] == 5.0
    part = convert_to_torch_tensor(array[:, 1:3])
    array[0, 1] = 7.0
    assert part[0, 0] == 7.0


@pytest.mark.parametrize("view", [lambda a: a[::-1], lambda a: np.broadcast_to(a, (2, 3)), lambda a: _frozen(a)])
def test_arrays_that_torch_cannot_share_are_copied(view):
    array = view(np.arange(3, dtype=np.float32))
    tensor = convert_to_torch_tensor(array)
    assert tensor.tolist() == array.tolist()
    tensor += 1.0
    assert array.max() == 2.0


def _frozen(array):
    array.flags.writeable = False
    return array


def test_odd_strides_are_copied():
    record = np.zeros(3, np.dtype([("a", np.uint8), ("b", np.float32)]))
    record["b"] = [1, 2, 3]
    assert convert_to_torch_tensor(record["b"]).tolist() == [1, 2, 3]


def test_ragged_lists_are_refused():
    with pytest.raises(ColumnError, match="one shape"):
        convert_to_torch_tensor({"a": [[1.0], [1.0, 2.0]]})


def test_device_and_pinning():
    out = convert_to_torch_tensor({"a": np.zeros(2)}, device="meta")
    assert out["a"].device.type == "meta"
    if not torch.cuda.is_available():
        assert convert_to_torch_tensor(np.zeros(2), pin_memory=True).tolist() == [0.0, 0.0]


def test_to_numpy():
    tensor = torch.arange(3, dtype=torch.float32, requires_grad=True)
    out = convert_to_numpy({"a": tensor, "b": (torch.tensor(2), "x"), "c": [torch.ones(1)], "d": 1.5})
    assert out["a"].tolist() == [0.0, 1.0, 2.0]
    assert out["b"][0].shape == ()
    assert out["b"][1] == "x"
    assert isinstance(out["c"][0], np.ndarray)
    assert out["d"] == 1.5
    assert convert_to_numpy(torch.ones(2, dtype=torch.bfloat16)).dtype == np.float32
    assert convert_to_numpy(torch.ones(2, dtype=torch.complex64).conj()).dtype == np.complex64


def test_torch_as_code_for_rllib_asks_for_it():
    assert try_import_torch() == (torch, torch.nn) == try_import_torch(error=True)


def test_masks_of_logits():
    logits = torch.tensor([0.5, 0.25]) + torch.clamp(torch.log(torch.tensor([0.0, 1.0])), min=FLOAT_MIN)
    assert torch.softmax(logits, 0).tolist() == [0.0, 1.0]
    assert torch.isfinite(torch.tensor([FLOAT_MIN, FLOAT_MAX])).all()
