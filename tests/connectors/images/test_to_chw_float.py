"""Channels first, and 0 to 1."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.connectors.images import ToCHWFloat
from epibatch.core.errors import ColumnError, ConfigError


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_three_images_pixel_by_pixel(channels):
    x = np.random.default_rng(channels).integers(0, 256, (3, 5, 4, channels), np.uint8)
    found = ToCHWFloat().transform(x)
    assert found.shape == (3, channels, 5, 4)
    assert found.dtype == np.float32
    assert found.flags.c_contiguous
    for n, i, j, c in np.ndindex(x.shape):
        assert found[n, c, i, j] == np.float32(x[n, i, j, c]) / np.float32(255)


def test_floats_are_only_moved_and_other_ranges_divided_by_theirs():
    x = np.random.default_rng(0).random((2, 3, 4, 2))
    found = ToCHWFloat().transform(x)
    assert found.dtype == np.float32
    assert np.array_equal(found, np.moveaxis(x, -1, 1).astype(np.float32))
    sixteen = np.full((1, 1, 1, 1), 65535, np.uint16)
    assert ToCHWFloat(divide_by=65535).transform(sixteen).item() == 1.0


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
def test_tensors_as_arrays(dtype):
    x = torch.randint(0, 256, (2, 3, 4, 3)).to(dtype)
    found = ToCHWFloat().transform(x)
    assert found.dtype == torch.float32
    assert found.is_contiguous()
    assert np.array_equal(found.numpy(), ToCHWFloat().transform(x.numpy()))


def test_frames_on_an_axis_of_their_own_and_the_space():
    x = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 6, 3), np.uint8)
    assert np.array_equal(ToCHWFloat().transform(x)[:, 2], ToCHWFloat().transform(x[:, 2]))
    space = gym.spaces.Box(0, 255, (84, 60, 4), np.uint8)
    assert ToCHWFloat(space).observation_space == gym.spaces.Box(0, 1, (4, 84, 60), np.float32)


def test_mistakes_are_named():
    with pytest.raises(ConfigError, match=r"ToCHWFloat\.divide_by"):
        ToCHWFloat(divide_by=0)
    with pytest.raises(ColumnError, match=r"ToCHWFloat[\s\S]*rows of shape \(84, 84\)"):
        ToCHWFloat().transform(np.zeros((2, 84, 84), np.uint8))
