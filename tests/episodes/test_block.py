"""Time-major blocks: one copy per vector step, promotion, provisional observations, successors."""

from __future__ import annotations

import numpy as np
import pytest

from epibatch.core.errors import ColumnError
from epibatch.episodes.block import Block, BlockColumn


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


def test_the_newest_observations_are_provisional_until_commit() -> None:
    block = Block(2, 4)
    block.pending = np.array([1, 2])
    assert block.pending_row(1) == 2 and block.latest_observations().tolist() == [1, 2]
    block.written[0], block.written[1] = np.zeros(3), np.ones(3)
    np.testing.assert_array_equal(block.latest_observations(), [[0] * 3, [1] * 3])
    block.commit()
    assert block.pending is None and block.observations.row(0).shape == (2, 3)


def test_a_successor_begins_with_the_lookback() -> None:
    block = Block(2, 8)
    for row in range(3):
        block.pending = np.array([row, 10 + row])
        block.commit()
        block.actions.put(row, np.array([row, row]), 8)
        block.rewards.put(row, np.array([row / 2, 0.0]), 8)
        block.infos[row] = {"r": [row, row]}
        block.row = row + 1
    block.pending = np.array([3, 13])
    after = block.successor(2, 5)
    assert after.row == 2 and after.infos == {0: {"r": [1, 1]}, 1: {"r": [2, 2]}}
    np.testing.assert_array_equal(after.observations.leaves[0][:3], [[1, 11], [2, 12], [3, 13]])
    np.testing.assert_array_equal(after.actions.leaves[0][:2], [[1, 1], [2, 2]])
    after.observations.leaves[0][:] = -1
    assert block.observations.row(3).tolist() == [3, 13]
