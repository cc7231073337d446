"""Sizes by loops over pixels and by PyTorch."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.connectors.images import Resize
from epibatch.core.errors import ColumnError, ConfigError

SIZES = st.integers(1, 7)


def images(seed, height, width, channels=3, dtype=np.uint8):
    return np.random.default_rng(seed).integers(0, 256, (2, height, width, channels)).astype(dtype)


def slow_area(image, height, width):
    """Each new pixel is the mean of what lies below it, old pixel by old pixel."""
    rows, columns, channels = image.shape
    out = np.zeros((height, width, channels))
    for i, j in np.ndindex(height, width):
        top, bottom = i * rows / height, (i + 1) * rows / height
        left, right = j * columns / width, (j + 1) * columns / width
        for y, x in np.ndindex(rows, columns):
            down = max(0.0, min(bottom, y + 1) - max(top, y))
            across = max(0.0, min(right, x + 1) - max(left, x))
            out[i, j] += image[y, x] * down * across / ((bottom - top) * (right - left))
    return out


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 99), SIZES, SIZES, SIZES, SIZES, st.sampled_from([1, 3]))
def test_area_is_the_mean_of_the_pixels_below(seed, rows, columns, height, width, channels):
    x = images(seed, rows, columns, channels, np.float64)
    found = Resize(height=height, width=width).transform(x)
    expected = np.stack([slow_area(image, height, width) for image in x])
    np.testing.assert_allclose(found, expected, atol=1e-9)
    whole = Resize(height=height, width=width).transform(x.astype(np.uint8))
    assert whole.dtype == np.uint8
    assert np.abs(whole - expected).max() <= 0.5 + 1e-3


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 99), SIZES, SIZES, SIZES, SIZES, st.sampled_from([1, 3]))
def test_bilinear_and_nearest_are_pytorchs(seed, rows, columns, height, width, channels):
    x = images(seed, rows, columns, channels, np.float32)
    moved = torch.from_numpy(x).movedim(-1, 1)
    for method, keywords in (("bilinear", {"align_corners": False}), ("nearest", {})):
        expected = torch.nn.functional.interpolate(moved, (height, width), mode=method, **keywords).movedim(1, -1)
        found = Resize(height=height, width=width, method=method).transform(x)
        np.testing.assert_allclose(found, expected.numpy(), atol=2e-3)
        assert found.dtype == np.float32


@pytest.mark.parametrize("channels", [1, 3])
def test_area_by_whole_factors_is_pytorchs_mean(channels):
    x = images(0, 210, 160, channels, np.float32)
    expected = torch.nn.functional.interpolate(torch.from_numpy(x).movedim(-1, 1), (105, 80), mode="area")
    np.testing.assert_allclose(Resize(height=105, width=80).transform(x), expected.movedim(1, -1), atol=1e-3)


@pytest.mark.parametrize("method", ["area", "bilinear", "nearest"])
def test_the_same_size_is_the_same_image_and_frames_of_stacks_are_images(method):
    x = images(0, 6, 5)
    assert np.array_equal(Resize(height=6, width=5, method=method).transform(x), x)
    stack = np.stack([x, x[::-1]], 1)
    found = Resize(height=3, width=4, method=method).transform(stack)
    assert found.shape == (2, 2, 3, 4, 3)
    assert np.array_equal(found[:, 1], Resize(height=3, width=4, method=method).transform(x[::-1]))
    assert Resize(height=3, width=4, method=method).transform(x[:0]).shape == (0, 3, 4, 3)


def test_many_images_are_done_in_blocks_like_few():
    x = np.random.default_rng(0).integers(0, 256, (40, 60, 50, 3), np.uint8)
    piece = Resize(height=20, width=30)
    assert np.array_equal(piece.transform(x), np.concatenate([piece.transform(x[i : i + 1]) for i in range(40)]))


def test_space():
    space = gym.spaces.Box(0, 255, (210, 160, 3), np.uint8)
    for method in ("area", "bilinear", "nearest"):
        expected = gym.spaces.Box(0, 255, (84, 84, 3), np.uint8)
        assert Resize(space, height=84, width=84, method=method).observation_space == expected
    open_space = gym.spaces.Box(-np.inf, np.inf, (4, 4, 1), np.float32)
    assert Resize(open_space, height=2, width=3).observation_space == gym.spaces.Box(-np.inf, np.inf, (2, 3, 1))


def test_mistakes_are_named():
    with pytest.raises(ConfigError, match=r"Resize\.width"):
        Resize(height=3, width=0)
    with pytest.raises(ConfigError, match=r"Resize\.method"):
        Resize(height=3, width=3, method="cubic")
    with pytest.raises(ColumnError, match="a last axis of length 1"):
        Resize(height=3, width=3).transform(np.zeros((2, 84, 84)))


def test_masks_are_true_where_more_than_half_of_what_lies_below_is():
    masks = np.random.default_rng(0).random((3, 9, 6, 1)) < 0.5
    found = Resize(height=3, width=2).transform(masks)
    shares = masks.reshape(3, 3, 3, 2, 3, 1).sum((2, 4)) / 9
    assert found.dtype == np.bool_ and np.array_equal(found, shares > 0.5) and 0 < found.mean() < 1
    assert Resize(height=1, width=1).transform(np.array([[[[True], [False]]]])).item() is False
