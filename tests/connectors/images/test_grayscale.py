"""Luma by a loop over pixels."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epibatch.connectors.images import Grayscale
from epibatch.core.errors import ColumnError, ConfigError
from epibatch.core.registry import build_piece, piece_to_dict


def test_three_images_by_hand():
    red, green, blue = (np.zeros((1, 1, 3), np.uint8) for _ in range(3))
    red[..., 0], green[..., 1], blue[..., 2] = 255, 255, 255
    found = Grayscale().transform(np.stack([red, green, blue, red | green | blue]))
    assert found.ravel().tolist() == [76, 150, 29, 255]  # 76.245, 149.685, 29.07, 255
    assert found.shape == (4, 1, 1, 1)
    assert found.dtype == np.uint8


@given(st.integers(0, 99), st.sampled_from([np.uint8, np.float32, np.float64, np.int32]), st.booleans())
def test_each_pixel_is_the_weighted_sum_of_its_channels(seed, dtype, keep_axis):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (3, 4, 2, 3)).astype(dtype)
    found = Grayscale(keep_axis=keep_axis).transform(x)
    assert found.dtype == dtype
    assert found.shape == ((3, 4, 2, 1) if keep_axis else (3, 4, 2))
    for pixel, value in zip(x.reshape(-1, 3).tolist(), found.ravel().tolist()):
        exact = 0.299 * pixel[0] + 0.587 * pixel[1] + 0.114 * pixel[2]
        whole = np.issubdtype(dtype, np.integer)
        assert abs(value - exact) <= (0.5 + 1e-4 if whole else 1e-4)


def test_many_images_are_done_in_blocks_like_few():
    x = np.random.default_rng(0).integers(0, 256, (50, 60, 40, 3), np.uint8)
    found = Grayscale().transform(x)
    assert np.array_equal(found, np.concatenate([Grayscale().transform(x[i : i + 1]) for i in range(50)]))
    assert Grayscale().transform(x[:0]).shape == (0, 60, 40, 1)


def test_frames_of_a_stack_and_other_channels():
    x = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 6, 3), np.uint8)
    assert np.array_equal(Grayscale().transform(x)[:, 1], Grayscale().transform(x[:, 1]))
    mean = Grayscale(weights=[0.5, 0.5])
    assert mean.transform(np.array([[[[10, 20]]]], np.uint8)).item() == 15
    assert build_piece(piece_to_dict(mean)) == mean


def test_space():
    space = gym.spaces.Box(0, 255, (4, 5, 3), np.uint8)
    assert Grayscale(space).observation_space == gym.spaces.Box(0, 255, (4, 5, 1), np.uint8)


def test_mistakes_are_named():
    with pytest.raises(ColumnError, match=r"images with 3 channels[\s\S]*rows of shape \(4, 5, 1\)"):
        Grayscale().transform(np.zeros((2, 4, 5, 1), np.uint8))
    with pytest.raises(ColumnError, match=r"images of shape \(height, width, channels\)"):
        Grayscale().transform(np.zeros((2, 4, 3), np.uint8))
    for weights in [(0.5, 0.6), (1.0, -0.1), (), "rgb", (0.0, 0.0)]:
        with pytest.raises(ConfigError, match=r"Grayscale\.weights"):
            Grayscale(weights=weights)


def test_bools_are_true_where_more_than_half_is():
    pixels = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 0, 1], [1, 1, 1]], bool).reshape(5, 1, 1, 3)
    assert Grayscale().transform(pixels).ravel().tolist() == [False, False, True, False, True]
