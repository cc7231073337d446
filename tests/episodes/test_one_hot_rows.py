"""One-hot rows of stacked columns, fill rows included."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.core.errors import SpaceError
from epibatch.episodes._storage.one_hot_rows import one_hot_rows
from epibatch.episodes.infinite_lookback_buffer import InfiniteLookbackBuffer

PAIR = gym.spaces.MultiDiscrete([2, 3])


def test_missing_rows_are_all_fill() -> None:
    missing = np.array([True, False])
    found = one_hot_rows(np.array([99, 1]), missing, gym.spaces.Discrete(2), 0.5)
    np.testing.assert_array_equal(found, [[0.5, 0.5], [0, 1]])
    np.testing.assert_array_equal(
        one_hot_rows(np.array([[9, 9], [1, 2]]), missing, PAIR, 0), [[0] * 5, [0, 1, 0, 0, 1]]
    )


def test_nested_spaces() -> None:
    space = gym.spaces.Dict(d=gym.spaces.Discrete(2, start=3), x=gym.spaces.Box(-1, 1, (1,), np.float32))
    rows = {"d": np.array([4, 0]), "x": np.array([[0.5], [9]], np.float32)}
    found = one_hot_rows(rows, np.array([False, True]), space, -1)
    np.testing.assert_array_equal(found["d"], [[0, 1], [-1, -1]])
    np.testing.assert_array_equal(found["x"], [[0.5], [-1]])


def test_no_rows() -> None:
    assert one_hot_rows(np.empty((0, 2), np.int64), np.empty(0, bool), PAIR, None).shape == (0, 5)
    assert InfiniteLookbackBuffer(space=PAIR).get(one_hot_discrete=True).shape == (0, 5)


def test_values_outside_their_space() -> None:
    with pytest.raises(SpaceError, match=r"values from 7 to 7"):
        one_hot_rows(np.array([7]), np.array([False]), gym.spaces.Discrete(2), None)
