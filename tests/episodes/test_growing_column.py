"""How one episode column grows: appends, types, what it owns, copies."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from epibatch.core.errors import EpibatchError
from epibatch.episodes.infinite_lookback_buffer import InfiniteLookbackBuffer

ROWS = [10, 11, 12, 13, 14]  # 10 and 11 are the lookback


def test_length_excludes_the_lookback_and_the_lookback_is_clamped() -> None:
    buffer = InfiniteLookbackBuffer(list(ROWS), lookback=2)
    assert (len(buffer), buffer.len_incl_lookback(), buffer.lookback) == (3, 5, 2)
    assert InfiniteLookbackBuffer([1, 2], lookback=9).lookback == 2
    assert len(InfiniteLookbackBuffer()) == 0
    np.testing.assert_array_equal(buffer[0:2], [12, 13])
    assert buffer[-4] == 11


def test_append_extend_concat_pop() -> None:
    buffer = InfiniteLookbackBuffer(list(ROWS), lookback=2)
    buffer.extend([1, 2])
    buffer.append(3)
    np.testing.assert_array_equal(buffer.data, [*ROWS, 1, 2, 3])
    buffer.pop()
    np.testing.assert_array_equal(buffer.data, [*ROWS, 1, 2])
    buffer.concat(InfiniteLookbackBuffer([5, 6], lookback=1))
    np.testing.assert_array_equal(buffer.data, [*ROWS, 1, 2, 6])
    assert buffer.lookback == 2 and len(buffer) == 6


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([1, 0.5, 2], np.float64),
        ([True, 3], np.int64),
        ([np.int8(1), np.int16(300)], np.int16),
        ([np.float32(1), np.float64(0.1)], np.float64),
        ([np.uint8(200), np.int8(-1)], np.int16),
        ([np.int8(1), 300], np.int64),
        ([np.uint64(1), 2, -1], np.float64),
        ([np.float32(1), 1e300], np.float64),
    ],
)
@pytest.mark.parametrize("how", ["append", "extend", "set"])
def test_writes_promote_and_never_cast_down(how: str, rows: list[Any], expected: type) -> None:
    if how == "set":
        buffer = InfiniteLookbackBuffer([rows[0]] * len(rows))
        for i, row in enumerate(rows):
            buffer.set(row, at_indices=i)
    else:
        buffer = InfiniteLookbackBuffer(rows[:1])
        for row in rows[1:]:
            buffer.append(row) if how == "append" else buffer.extend([row])
    found = buffer.get()
    assert found.dtype == expected
    np.testing.assert_array_equal(found, rows)


def test_it_neither_keeps_nor_changes_what_the_caller_passed() -> None:
    rows, array = [np.zeros(2), np.ones(2)], np.arange(3.0)
    a, b = InfiniteLookbackBuffer(rows), InfiniteLookbackBuffer(array)
    a.append(np.full(2, 9.0))
    b.append(9.0)
    assert len(rows) == 2 and len(array) == 3
    rows[0][:], array[:] = 5, 5
    b.set(7.0, at_indices=0)
    np.testing.assert_array_equal(a.data, [[0, 0], [1, 1], [9, 9]])
    np.testing.assert_array_equal(b.data, [7, 1, 2, 9])
    np.testing.assert_array_equal(array, [5, 5, 5])


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda b: pickle.loads(pickle.dumps(b, protocol=5))])
def test_copies_are_equal_and_independent(clone: Any) -> None:
    buffer = InfiniteLookbackBuffer(list(ROWS), lookback=2, space=gym.spaces.Discrete(100))
    twin = clone(buffer)
    twin.append(15)
    twin.set(0, at_indices=0)
    np.testing.assert_array_equal(buffer.data, ROWS)
    np.testing.assert_array_equal(twin.data, [10, 11, 0, 13, 14, 15])
    assert twin.lookback == 2 and twin.get(0, one_hot_discrete=True).shape == (100,)


@pytest.mark.parametrize("how", ["constructor", "append", "set"])
def test_text_stays_text(how: str) -> None:
    words = ["a", "longer", "b"]
    buffer = InfiniteLookbackBuffer(list(words) if how == "constructor" else ["x", "y", "z"] if how == "set" else None)
    for i, word in enumerate(words):
        if how == "append":
            buffer.append(word)
        elif how == "set":
            buffer.set(word, at_indices=i)
    assert [type(item) for item in buffer.get()] == [str] * 3
    assert list(buffer.get()) == words and buffer.get(1) == "longer"


@pytest.mark.parametrize(
    "new", [{"a": [5, 6], "b": [5]}, {"a": [5, 6]}, {"a": [5, 6], "c": [5, 6]}, [{"a": 1}, {"a": 1}]]
)
def test_a_refused_write_changes_no_leaf(new: Any) -> None:
    buffer = InfiniteLookbackBuffer([{"a": i, "b": i} for i in range(3)])
    stacked = {key: np.array(rows) for key, rows in new.items()} if isinstance(new, dict) else new
    with pytest.raises(EpibatchError, match=r"expected:[\s\S]*found:"):
        buffer.set(stacked, at_indices=slice(0, 2))
    np.testing.assert_array_equal(buffer.data["a"], [0, 1, 2])
    np.testing.assert_array_equal(buffer.data["b"], [0, 1, 2])


def test_a_whole_overwrite_promotes_like_a_partial_one() -> None:
    for lookback in (0, 1):
        buffer = InfiniteLookbackBuffer([0.5, 1.5, 2.5], lookback=lookback)
        buffer.set([1] * (3 - lookback))
        assert buffer.data.dtype == np.float64


@pytest.mark.parametrize("n", [1, 15, 16, 17, 33, 1000])
def test_capacity_never_shows(n: int) -> None:
    buffer = InfiniteLookbackBuffer()
    for i in range(n):
        buffer.append({"a": i, "b": np.full(2, i, np.float32)})
    assert len(buffer) == n == len(buffer.data["a"]) == len(buffer.get()["b"])
    np.testing.assert_array_equal(buffer.get()["a"], np.arange(n))
    with pytest.raises(IndexError):
        buffer.get(n)


# ---------------------------------------------------------------- the provisional row
def test_only_what_fits_as_it_is_needs_no_plan() -> None:
    buffer = InfiniteLookbackBuffer([np.zeros(2, np.float32)])
    assert buffer.plan(np.ones(2, np.float32)) is None and len(buffer) == 1
    buffer.add(None)
    assert buffer.data.tolist() == [[0.0, 0.0], [1.0, 1.0]]
    for other in (np.ones(2), np.ones((1, 2), np.float32), 1.0, [1, 1]):
        assert buffer.plan(other) is not None
    assert len(buffer) == 2
    buffer.drop_last()
    np.testing.assert_array_equal(buffer.data, [[0, 0]])


def test_a_staged_row_that_fits_is_in_the_column_and_is_written_through() -> None:
    buffer = InfiniteLookbackBuffer([np.zeros(2)])
    given = np.ones(2)
    buffer.stage(given)
    given += 8
    assert buffer.provisional
    rows = buffer.data
    rows += 1
    np.testing.assert_array_equal(buffer.last(), [2, 2])
    buffer.append(np.zeros(2))
    buffer.set(np.full(2, 0.5, np.float32), at_indices=1)
    assert buffer.data.dtype == np.float64


@pytest.mark.parametrize("indices", [-1, [-1], slice(1, 2)])
def test_a_staged_row_is_replaced_by_one_of_another_kind(indices: Any) -> None:
    buffer = InfiniteLookbackBuffer([np.zeros(2)])
    buffer.stage(np.ones(2))
    new: Any = {"raw": 1} if indices == -1 else [{"raw": 1}]
    buffer.set(new, at_indices=indices)
    assert buffer.last() == {"raw": 1} and buffer.raw_row() == {"raw": 1}
    back = np.full(2, 5.0)
    buffer.set(back if indices == -1 else [back], at_indices=indices)
    np.testing.assert_array_equal(buffer.data, [[0, 0], [5, 5]])


def test_the_only_row_makes_the_column_anew() -> None:
    buffer = InfiniteLookbackBuffer()
    buffer.stage({"a": 1})
    buffer.set(np.zeros(3, np.float32), at_indices=-1)
    assert buffer.form is None and buffer.data.dtype == np.float32 and buffer.data.shape == (1, 3)


def test_a_raw_row_that_does_not_fit_is_read_as_a_copy_and_kept_when_refused() -> None:
    buffer = InfiniteLookbackBuffer([np.zeros(1)])
    buffer.stage({"raw": 1})
    found = buffer.data
    assert found.dtype == object and found[1] == {"raw": 1} and len(buffer) == 2
    for refuse in (buffer.commit, lambda: buffer.append(np.zeros(1)), lambda: buffer.stage(np.zeros(1))):
        with pytest.raises(EpibatchError, match=r"expected:[\s\S]*found:"):
            refuse()
        assert buffer.last() == {"raw": 1} and len(buffer) == 2
    with pytest.raises(EpibatchError, match="raw"):
        buffer.rows(0, 2)
    np.testing.assert_array_equal(buffer.rows(0, 1)[0], [[0]])


def test_a_raw_row_of_another_type_promotes_when_it_becomes_final() -> None:
    buffer = InfiniteLookbackBuffer([np.zeros(2, np.float32)])
    buffer.stage(np.full(2, 0.1))
    assert buffer.get(0).dtype == np.float32
    buffer.append(np.zeros(2, np.float32))
    assert buffer.data.dtype == np.float64 and buffer.get(1).tolist() == [0.1, 0.1]


def test_a_first_row_after_an_empty_part_keeps_the_type_of_the_column() -> None:
    empty = InfiniteLookbackBuffer([np.float32(1)]).copy_rows(range(1, 1), 0)
    empty.append(2)
    assert empty.data.dtype == np.float32 and empty.data.tolist() == [2.0]


def test_keys_may_come_in_another_order() -> None:
    buffer = InfiniteLookbackBuffer([{"a": 1, "b": 2}])
    for row in ({"b": 4, "a": 3}, {"b": 6, "a": 5}, {"b": 0.5, "a": 7}):
        buffer.stage(row)
        assert buffer.last() == row
    found = buffer.data
    np.testing.assert_array_equal(found["a"], [1, 3, 5, 7])
    np.testing.assert_array_equal(found["b"], [2, 4, 6, 0.5])


def test_lists_given_as_rows_are_copied() -> None:
    buffer, row = InfiniteLookbackBuffer([[1, 2]]), [3, 4]
    buffer.stage(row)
    row[0] = 9
    assert buffer.data.tolist() == [[1, 2], [3, 4]]
