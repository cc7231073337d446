"""One-hot rows of columns, fill rows included."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.core.errors import SpaceError
from epibatch.episodes import InfiniteLookbackBuffer

PAIR = gym.spaces.MultiDiscrete([2, 3])


def test_missing_rows_are_all_fill() -> None:
    buffer = InfiniteLookbackBuffer([1], space=gym.spaces.Discrete(2))
    found = buffer.get([-2, -1], fill=0.5, one_hot_discrete=True)
    np.testing.assert_array_equal(found, [[0.5, 0.5], [0, 1]])
    pairs = InfiniteLookbackBuffer(np.array([[1, 2]]), space=PAIR).get(slice(-2, None), fill=0, one_hot_discrete=True)
    np.testing.assert_array_equal(pairs, [[0] * 5, [0, 1, 0, 0, 1]])


def test_nested_spaces() -> None:
    space = gym.spaces.Dict(d=gym.spaces.Discrete(2, start=3), x=gym.spaces.Box(-1, 1, (1,), np.float32))
    rows = {"d": np.array([4]), "x": np.array([[0.5]], np.float32)}
    found = InfiniteLookbackBuffer(rows, space=space).get([0, 1], fill=-1, one_hot_discrete=True)
    np.testing.assert_array_equal(found["d"], [[0, 1], [-1, -1]])
    np.testing.assert_array_equal(found["x"], [[0.5], [-1]])


def test_no_rows() -> None:
    assert InfiniteLookbackBuffer(np.empty((0, 2), np.int64), space=PAIR).get(one_hot_discrete=True).shape == (0, 5)
    assert InfiniteLookbackBuffer(space=PAIR).get(one_hot_discrete=True).shape == (0, 5)


def test_values_outside_their_space() -> None:
    with pytest.raises(SpaceError, match=r"values from 7 to 7"):
        InfiniteLookbackBuffer([7], space=gym.spaces.Discrete(2)).get(one_hot_discrete=True)
