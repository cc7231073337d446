"""Parts of images, pixel by pixel."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.connectors.images import CenterCrop, Crop
from epibatch.core.errors import ColumnError, ConfigError

X = np.arange(2 * 5 * 6 * 3).reshape(2, 5, 6, 3)


def test_each_pixel_of_a_part_is_where_it_was():
    found = Crop(height=2, width=4, top=3, left=1).transform(X)
    assert found.shape == (2, 2, 4, 3)
    for n, y, x, c in np.ndindex(found.shape):
        assert found[n, y, x, c] == X[n, y + 3, x + 1, c]
    assert found.flags.c_contiguous


@pytest.mark.parametrize(("size", "corner"), [((5, 6), (0, 0)), ((3, 2), (1, 2)), ((2, 3), (2, 2)), ((4, 5), (0, 0))])
def test_the_middle(size, corner):
    found = CenterCrop(height=size[0], width=size[1]).transform(X)
    assert found.tolist() == X[:, corner[0] : corner[0] + size[0], corner[1] : corner[1] + size[1]].tolist()


@pytest.mark.parametrize(("size", "top"), list(enumerate([4, 4, 4, 3, 2, 2, 2, 1, 0, 0], 1)))
def test_odd_margins_are_torchvisions(size, top):
    rows = np.arange(10).reshape(1, 10, 1, 1)
    assert CenterCrop(height=size, width=1).transform(rows).ravel().tolist() == list(range(top, top + size))


def test_tensors_and_stacks_of_frames():
    for piece in (Crop(height=2, width=3, left=2), CenterCrop(height=2, width=3)):
        tensor = piece.transform(torch.from_numpy(X))
        assert tensor.is_contiguous()
        assert tensor.tolist() == piece.transform(X).tolist()
        assert piece.transform(np.stack([X, X + 1], 1))[:, 1].tolist() == piece.transform(X + 1).tolist()


def test_pixels_keep_their_bounds():
    low = np.zeros((5, 6, 3), np.float32)
    low[4, 5] = -7
    space = gym.spaces.Box(low, low + 10)
    assert Crop(space, height=1, width=1, top=4, left=5).observation_space == gym.spaces.Box(-7, 3, (1, 1, 3))
    assert CenterCrop(space, height=3, width=2).observation_space == gym.spaces.Box(0, 10, (3, 2, 3))


def test_mistakes_are_named():
    with pytest.raises(ColumnError, match=r"at least 6 by 4 pixels[\s\S]*found: +5 by 6"):
        Crop(height=3, width=4, top=3).transform(X)
    with pytest.raises(ColumnError, match=r"at least 6 by 4 pixels"):
        CenterCrop(height=6, width=4).transform(X)
    with pytest.raises(ConfigError, match=r"Crop\.left"):
        Crop(height=3, width=4, left=-1)
    with pytest.raises(ConfigError, match=r"CenterCrop\.height"):
        CenterCrop(height=0, width=4)
