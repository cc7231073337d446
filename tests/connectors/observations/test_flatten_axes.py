"""Neighbouring axes are joined; bounds go along."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.connectors.observations import FlattenAxes
from epibatch.core.errors import ColumnError

X = np.arange(48).reshape(2, 2, 3, 4)


@pytest.mark.parametrize(
    ("axes", "shape"), [((0, 1), (6, 4)), ((1, 2), (2, 12)), ((0, -1), (24,)), ((-2, -1), (2, 12)), ((1, 1), (2, 3, 4))]
)
def test_rows_hold_the_same_values_in_the_same_order(axes, shape):
    piece = FlattenAxes(first_axis=axes[0], last_axis=axes[1])
    found = piece.transform(X)
    assert found.shape == (2, *shape)
    assert found.ravel().tolist() == X.ravel().tolist()
    assert piece.transform(torch.from_numpy(X)).tolist() == found.tolist()


def test_each_entry_keeps_its_bounds():
    low = np.arange(6, dtype=np.float32).reshape(2, 3)
    space = FlattenAxes(gym.spaces.Box(low, low + 10)).observation_space
    assert space == gym.spaces.Box(low.ravel(), low.ravel() + 10)


@pytest.mark.parametrize("axes", [(0, 3), (2, 1), (-4, -1)])
def test_axes_that_are_not_there_are_named(axes):
    with pytest.raises(ColumnError, match=r"rows of shape \(2, 3, 4\)[\s\S]*from -1"):
        FlattenAxes(first_axis=axes[0], last_axis=axes[1]).transform(X)
