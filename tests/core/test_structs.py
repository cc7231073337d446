"""Nested structures: rows into batches and back, arrays to tensors and back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from epibatch.core import MaskedColumn
from epibatch.core.checkpoints import load_state, save_state
from epibatch.core.errors import ColumnError
from epibatch.core.spaces import (
    BatchedNdArray,
    batch,
    convert_to_numpy,
    flatten_to_single_ndarray,
    make_action_immutable,
    unbatch,
)
from epibatch.core.tensors import convert_to_torch_tensor, try_import_torch


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([np.ones(2, np.uint8), np.zeros(2, np.float32)], np.array([[1, 1], [0, 0]], np.float32)),
        ([[1, 2], [3, 4]], np.array([[1, 2], [3, 4]])),
        ([None, None], np.array([None, None], object)),
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
    assert not np.shares_memory(batch([tagged], individual_items_already_have_batch_dim="auto")["a"], tagged["a"])
    assert batch([np.ones(3)] * 2, individual_items_already_have_batch_dim="auto").shape == (2, 3)


@pytest.mark.parametrize(
    ("items", "mode", "message"),
    [
        ([], False, "expected: at least one item"),
        ([np.ones(2), np.ones(3)], False, r"found:    \(2,\), \(3,\)"),
        ([np.ones((1, 2)), np.ones((1, 3))], True, "do:       pad the items to one shape"),
        ([{"a": 1}, {"b": 1}], False, r"expected: \{a: leaf\}"),
        ([(1, 2), (1,)], False, r"expected: \(leaf, leaf\)"),
    ],
)
def test_batch_says_what_does_not_fit(items, mode, message):
    with pytest.raises(ColumnError, match=message):
        batch(items, individual_items_already_have_batch_dim=mode)


@pytest.mark.parametrize(
    ("struct", "message"),
    [
        (np.float32(3.0), "found:    no batch axis"),
        ({"a": np.zeros(2), "b": np.array(1)}, "found:    2 rows, no batch axis"),
    ],
)
def test_unbatch_needs_one_batch_axis(struct, message):
    with pytest.raises(ColumnError, match=message):
        unbatch(struct)


def test_flatten_to_single_ndarray_opens_lists_and_takes_empty_structures():
    assert flatten_to_single_ndarray([np.ones(2), 2]).tolist() == [1.0, 1.0, 2.0]
    assert flatten_to_single_ndarray({}).shape == (0,)


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


TYPES = ["float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"]


@pytest.mark.parametrize("name", [*TYPES, "float64", "longdouble", ">f4", ">f8", ">i8"])
def test_types(name):
    tensor = convert_to_torch_tensor({"a": (np.array([[0, 1], [1, 0]], name), None)})["a"][0]
    assert tensor.dtype is getattr(torch, name if name in TYPES else "int64" if name == ">i8" else "float32")
    assert tensor.tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize(
    "leaf", [np.array([{"a": 1}, None], object), np.array(["x", "yy"]), [{"info": 1}], "text", None]
)
def test_what_no_tensor_can_hold_is_left(leaf):
    assert convert_to_torch_tensor(leaf) is leaf


@pytest.mark.parametrize(
    ("leaf", "value", "dtype"),
    [
        (1.5, 1.5, torch.float32),
        (True, True, torch.bool),
        (np.float64(0.5), 0.5, torch.float32),
        ([1.0, 2.0], [1.0, 2.0], torch.float32),
        ([np.ones(2), np.zeros(2)], [[1.0, 1.0], [0.0, 0.0]], torch.float32),
        (torch.ones(2, dtype=torch.float64), [1.0, 1.0], torch.float32),
    ],
)
def test_numbers_lists_and_tensors(leaf, value, dtype):
    tensor = convert_to_torch_tensor(leaf)
    assert tensor.tolist() == value
    assert tensor.dtype is dtype


RECORD = np.array([(0, 0), (0, 1), (0, 2)], [("a", "u1"), ("b", "f4")])


@pytest.mark.parametrize(
    ("view", "shares"),
    [
        (lambda array: array[1:], True),
        (lambda array: array[::-1], False),
        (lambda array: np.broadcast_to(array, (2, 3)), False),
        (lambda array: np.frombuffer(array.tobytes(), "f4"), False),
        (lambda array: RECORD["b"], False),
    ],
    ids=["part", "negative stride", "broadcast", "read-only", "odd stride"],
)
def test_writable_arrays_are_shared_and_others_are_copied(view, shares):
    array = view(np.arange(3, dtype=np.float32))
    tensor = convert_to_torch_tensor(array)
    before = array.tolist()
    assert tensor.tolist() == before
    tensor += 1.0
    assert (array.tolist() != before) is shares


def test_device_and_pinning():
    with pytest.raises(ColumnError, match="one shape"):
        convert_to_torch_tensor({"a": [[1.0], [1.0, 2.0]]})
    assert try_import_torch() == (torch, torch.nn) == try_import_torch(error=True)
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
    floats = {"float64": "float32", "float16": "float32", "bfloat16": "float32", "int64": "int64", "bool": "bool"}
    tensors = {name: torch.ones(1, dtype=getattr(torch, name)) for name in floats}
    assert {name: array.dtype for name, array in convert_to_numpy(tensors, reduce_type=True).items()} == floats
    assert convert_to_numpy(torch.ones(2, dtype=torch.complex64).conj()).dtype == np.complex64


def test_a_masked_column_stays_one(tmp_path):
    rows = [{"ref": MaskedColumn(np.full(2, row, np.float32), np.bool_(row))} for row in range(3)]
    batched = batch(rows)
    save_state(tmp_path / "rows", batched)
    again = convert_to_numpy(convert_to_torch_tensor(batched))
    for pair in (batched["ref"], again["ref"], load_state(tmp_path / "rows")["ref"], unbatch(batched)[0]["ref"]):
        assert type(pair) is MaskedColumn
    assert torch.equal(convert_to_torch_tensor(batched)["ref"].mask, torch.tensor([False, True, True]))
    assert (
        again["ref"].value.tolist() == load_state(tmp_path / "rows")["ref"].value.tolist() == [[0, 0], [1, 1], [2, 2]]
    )
    with pytest.raises(ColumnError, match=r"MaskedColumn\(leaf, leaf\)"):
        batch([rows[0], {"ref": np.zeros(2)}])
