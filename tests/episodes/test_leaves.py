"""Arrays whose first axis is time: which type a value needs, what is copied, how object rows are kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from epibatch.episodes._storage import arrays as leaves


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        (np.float32, 0.1, np.float32),
        (np.float32, 1e300, np.float64),
        (np.float32, -1e39, np.float64),
        (np.float32, float("inf"), np.float32),
        (np.float32, float("nan"), np.float32),
        (np.float32, 7, np.float32),
        (np.float32, 10**39, np.float64),
        (np.float16, 70000, np.float64),
        (np.float64, 10**400, None),
        (np.float32, np.float64(0.1), np.float64),
        (np.int8, 127, np.int8),
        (np.int8, 128, np.int64),
        (np.uint64, 2, np.uint64),
        (np.uint64, -1, np.float64),
        (np.int64, 2**63, np.float64),
        (np.int64, 2**70, np.object_),
        (np.bool_, 3, np.int64),
        (np.bool_, True, np.bool_),
        (np.int64, True, np.int64),
        (np.int64, "text", None),
        (np.int64, np.zeros(2), None),
        (np.object_, np.zeros(2), np.object_),
    ],
)
def test_fits(dtype: type, value: Any, expected: type | None) -> None:
    found = leaves.fits(np.zeros(3, dtype), value)
    assert found is None if expected is None else found == expected


@pytest.mark.parametrize(
    ("leaf", "value", "expected"),
    [
        (np.zeros(1), 1.0, True),
        (np.zeros(1), np.float64(1), True),
        (np.zeros(1), 1, False),
        (np.zeros(1), np.float32(1), False),
        (np.zeros(1, np.int64), 5, True),
        (np.zeros(1, np.int64), 2**63, False),
        (np.zeros(1, np.int64), True, False),
        (np.zeros((1, 2), np.float32), np.zeros(2, np.float32), True),
        (np.zeros((1, 2), np.float32), np.zeros(2), False),
        (np.zeros((1, 2), np.float32), np.zeros((1, 2), np.float32), False),
        (np.zeros((1, 2)), [0.0, 0.0], False),
        (np.empty(1, object), "text", True),
    ],
)
def test_fits_exactly(leaf: Any, value: Any, expected: bool) -> None:
    assert leaves.fits_exactly(leaf, value) is expected


def test_plain_types_leave_out_what_may_be_converted() -> None:
    assert leaves.plain_types(np.dtype(np.float64)) == {float, np.float64}
    assert leaves.plain_types(np.dtype(np.uint64)) == {np.uint64}
    assert leaves.plain_types(np.dtype(np.bool_)) == {bool, np.bool_}
    assert leaves.plain_types(np.dtype("M8[s]")) == leaves.plain_types(np.dtype(object)) == frozenset()


def test_promoted_keeps_rows_and_takes_none_for_an_object_column() -> None:
    leaf = np.arange(4.0)
    assert leaves.promoted(leaf, 2, leaf.dtype) is leaf
    assert leaves.promoted(leaf, 2, None).tolist() == [0.0, 1.0, None, None]
    assert leaves.promoted(np.arange(3), 3, np.dtype(np.float64)).dtype == np.float64


def test_leaf_from_rows() -> None:
    ragged = [np.zeros(1), np.ones(2)]
    leaf = leaves.leaf_from_rows(ragged)
    ragged[0][:] = 9
    assert leaf.dtype == object and leaf[0].tolist() == [0.0]
    assert leaves.leaf_from_rows([1, 2.5]).tolist() == [1.0, 2.5]
    assert leaves.leaf_from_rows(["a", "bc"]).tolist() == ["a", "bc"]
    assert leaves.leaf_from_rows([[1, 2], [3, 4]]).shape == (2, 2)
    assert leaves.leaf_from_rows([[1], [3, 4]]).tolist() == [[1], [3, 4]]


def test_copied_copies_the_arrays_of_object_rows() -> None:
    row = np.zeros(2)
    twin = leaves.copied(leaves.object_leaf([row, "x"]))
    row += 1
    assert twin[0].tolist() == [0.0, 0.0] and twin[1] == "x"


def test_owned_copies_nested_arrays() -> None:
    row = {"a": (np.zeros(1), 3)}
    twin = leaves.owned(row)
    row["a"][0][:] = 5
    assert twin["a"][0][0] == 0 and twin["a"][1] == 3


def test_with_rows_grown_and_same_leaf() -> None:
    where = np.array([False, True])
    assert leaves.with_rows(np.arange(2), where, 0.5).tolist() == [0.0, 0.5]
    assert leaves.with_rows(np.arange(2), where, "b").tolist() == [0, "b"]
    assert leaves.grown(np.arange(3), 2, 5)[:2].tolist() == [0, 1]
    assert leaves.empty_leaf(np.zeros((), np.float64)).shape == (256,)
    assert leaves.empty_leaf(np.zeros(8, np.float64)).shape == (64, 8)
    roomier = [leaves.roomier(np.arange(n), n) for n in (0, 5, 512, 513)]
    assert [len(leaf) for leaf in roomier] == [16, 20, 2048, 1026]
    assert leaves.roomier(np.arange(3), 2)[:2].tolist() == [0, 1]
    assert leaves.empty_leaf(np.zeros((84, 84), np.uint8)).shape == (16, 84, 84)
    assert leaves.same_leaf(np.array([np.nan]), np.array([np.nan]))
    assert not leaves.same_leaf(np.array([1]), np.array([1.0]))
    assert leaves.same_leaf(leaves.object_leaf([np.ones(2)]), leaves.object_leaf([np.ones(2)]))


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ({"k": [np.arange(2), (1, float("nan"))]}, {"k": [np.arange(2), (1, np.nan)]}, True),
        ({"k": np.arange(2)}, {"k": np.arange(2.0)}, False),
        ({"k": 1}, {"k": 1, "m": 2}, False),
        ([1, 2], (1, 2), False),
        ([1, 2], [1, 2, 3], False),
        (np.zeros(2), [0, 0], False),
        (1, np.int64(1), True),
        ("x", "y", False),
    ],
)
def test_same_value(a: object, b: object, same: bool) -> None:
    assert leaves.same_value(a, b) is same and leaves.same_value(b, a) is same
