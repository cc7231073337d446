"""Time-major blocks: one copy per vector step, promotion, provisional observations, successors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epibatch.core.errors import ColumnError
from epibatch.episodes._storage.block import Block, BlockColumn


def test_put_grows_and_promotes() -> None:
    column = BlockColumn()
    for row in range(5):
        column.put(row, np.array([row, -row]), 2)
    column.put(5, np.array([0.5, 0.25]), 2)
    np.testing.assert_array_equal(column.leaves[0][:6, 0], [0, 1, 2, 3, 4, 0.5])
    assert column.leaves[0].dtype == np.float64
    np.testing.assert_array_equal(column.row(4), [4, -4])


def test_put_copies_and_keeps_nesting() -> None:
    column, given = BlockColumn(), {"a": np.zeros(2), "b": (np.ones((2, 3)),)}
    column.put(0, given, 4)
    given["a"][:] = 9
    assert column.row(0)["a"].tolist() == [0, 0] and column.row(0)["b"][0].shape == (2, 3)
    with pytest.raises(ColumnError, match="keys and nesting"):
        column.put(1, {"a": np.zeros(2)}, 4)


@pytest.mark.parametrize("value", [np.zeros((2, 5)), np.array(["x", "y"], object), np.array([2**70, 1], object)])
def test_rows_of_another_shape_or_kind_make_an_object_column(value: np.ndarray) -> None:
    column = BlockColumn()
    column.put(0, np.array([1, 2]), 4)
    column.put(1, value, 4)
    assert column.leaves[0].dtype == object and column.leaves[0].shape[:2] == (4, 2)
    assert column.row(0).tolist() == [1, 2]
    assert [np.array_equal(a, b) for a, b in zip(column.row(1), value)] == [True, True]


def test_rows_of_an_object_column_are_copies() -> None:
    column, given = BlockColumn(), np.empty(2, object)
    for row in range(2):
        given[:] = [np.zeros(1), np.zeros(2)]
        column.put(row, given, 4)
        assert not column.take(row, given, 4)
        given[1][:] = 9
    assert [column.row_of(row, 1).tolist() for row in range(2)] == [[0, 0], [0, 0]]


def test_the_newest_observations_are_provisional_until_commit() -> None:
    block = Block(2, 4)
    block.stage(np.array([1, 2]))
    assert block.newest_row(1) == 2 and block.latest_observations().tolist() == [1, 2]
    block.write_newest(0, np.zeros(3))
    block.write_newest(1, np.ones(3))
    np.testing.assert_array_equal(block.latest_observations(), [[0] * 3, [1] * 3])
    block.commit()
    assert not block.provisional and not block.written and block.observations.row(0).shape == (2, 3)


def test_staged_observations_lie_in_their_row_and_are_copies() -> None:
    block, given = Block(2, 1), np.array([[1.0, 2.0], [3.0, 4.0]])
    for row in range(3):
        block.row = row
        block.stage(given)
        kept = block.newest_row(1)
        given += 10
        assert block.pending is None and kept.tolist() == [3.0 + 10 * row, 4.0 + 10 * row]
        kept *= -1
        block.commit()
        assert block.observations.row(row)[1].tolist() == [-3.0 - 10 * row, -4.0 - 10 * row]


@pytest.mark.parametrize(
    ("other", "dtype"), [([[1.5, 2.5]] * 2, np.float64), ([[1, 2]] * 2, np.float32), ([1.0, 2.0], object)]
)
def test_observations_that_do_not_fit_are_kept_apart_as_copies(other: list, dtype: type) -> None:
    block = Block(2, 4)
    block.stage(np.zeros((2, 2), np.float32))
    block.commit()
    block.row, given = 1, np.array(other, np.float64 if dtype is not np.float32 else np.int8)
    block.stage(given)
    expected = given.copy()
    given[:] = 99
    np.testing.assert_array_equal(block.latest_observations(), expected)
    assert block.observations.leaves[0].dtype == np.float32
    block.commit()
    assert block.observations.leaves[0].dtype == dtype
    assert [np.array_equal(a, b) for a, b in zip(block.observations.row(1), expected)] == [True, True]


def test_what_one_environment_gets_leaves_the_others_as_they_are() -> None:
    block = Block(3, 4)
    block.stage(np.array([1, 2, 3], np.int32))
    block.commit()
    block.row = 1
    block.stage(np.array([4, 5, 6], np.int32))
    block.write_newest(0, np.int32(-4))
    block.write_newest(1, 0.5)
    assert [block.newest_row(env) for env in range(3)] == [-4, 0.5, 6] and list(block.written) == [1]
    assert block.observations.leaves[0].dtype == np.int32
    block.commit()
    assert block.observations.leaves[0][:2].tolist() == [[1.0, 2.0, 3.0], [-4.0, 0.5, 6.0]]


def test_the_first_row_is_made_anew_in_the_type_that_pieces_write() -> None:
    block = Block(2, 4)
    block.stage(np.array([1.0, 2.0]))
    for env in range(2):
        block.write_newest(env, np.int8(env))
    block.commit()
    assert block.observations.leaves[0].dtype == np.int8 and block.observations.row(0).tolist() == [0, 1]


def test_keys_may_come_in_any_order_and_other_nesting_is_named() -> None:
    block = Block(3, 4)
    block.stage({"a": np.array([1, 2, 3]), "b": np.array([4, 5, 6])})
    block.write_newest(1, {"b": 50.5, "a": 20})
    found = block.latest_observations()
    assert found["a"].tolist() == [1, 20, 3] and found["b"].tolist() == [4.0, 50.5, 6.0]
    block.write_newest(2, {"a": 30})
    with pytest.raises(ColumnError, match=r"environment 2, beside that of environment 0:\n.*\n.*\{a: leaf, b: leaf\}"):
        block.commit()
    assert block.provisional and block.newest_row(2) == {"a": 30}


def test_a_successor_begins_with_the_lookback() -> None:
    block = Block(2, 8)
    for row in range(3):
        block.stage(np.array([row, 10 + row]))
        block.commit()
        block.actions.put(row, np.array([row, row]), 8)
        block.rewards.put(row, np.array([row / 2, 0.0]), 8)
        block.infos[row] = {"r": [row, row]}
        block.row = row + 1
    block.stage(np.array([3, 13]))
    after = block.successor(2, 5)
    assert after.row == 2 and after.infos == {0: {"r": [1, 1]}, 1: {"r": [2, 2]}}
    np.testing.assert_array_equal(after.observations.leaves[0][:3], [[1, 11], [2, 12], [3, 13]])
    np.testing.assert_array_equal(after.actions.leaves[0][:2], [[1, 1], [2, 2]])
    after.observations.leaves[0][:] = -1
    assert block.observations.row(3).tolist() == [3, 13]


_ROWS = st.sampled_from([np.float32, np.float64, np.int64]).flatmap(
    lambda dtype: st.lists(st.integers(0, 9), min_size=2, max_size=2).map(lambda row: np.array(row, dtype))
)


@given(st.lists(st.tuples(_ROWS, _ROWS, _ROWS), min_size=1, max_size=12))
def test_steps_written_at_once_are_those_written_column_by_column(steps) -> None:
    fast, slow = Block(2, 3), Block(2, 3)
    for block in (fast, slow):
        block.extras["logp"] = BlockColumn()
    for row, (actions, rewards, logp) in enumerate(steps):
        before = [column.leaves[:1] for column in (fast.actions, fast.rewards, fast.extras["logp"])]
        fits = all(
            leaves and leaves[0].dtype == value.dtype and row < len(leaves[0])
            for leaves, value in zip(before, (actions, rewards, logp))
        )
        assert fast.put_plain(actions, rewards, {"logp": logp}) == fits
        assert not fast.put_plain(actions, rewards, {}) and not fast.put_plain(actions, rewards, {"other": logp})
        for block in (slow,) if fits else (fast, slow):
            for column, value in zip((block.actions, block.rewards, block.extras["logp"]), (actions, rewards, logp)):
                column._put(row, value, 3)
        for block in (fast, slow):
            block.row = row + 1
    for one, other in zip(
        (fast.actions, fast.rewards, fast.extras["logp"]), (slow.actions, slow.rewards, slow.extras["logp"])
    ):
        assert one.leaves[0].dtype == other.leaves[0].dtype
        np.testing.assert_array_equal(one.leaves[0][: len(steps)], other.leaves[0][: len(steps)])
