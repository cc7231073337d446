"""Images: parts, sizes, channels and luma, by loops over pixels and by PyTorch."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.connectors.images import CenterCrop, Crop, Grayscale, RandomCrop, Resize, ToCHWFloat
from epibatch.core.errors import CheckpointError, ColumnError, ConfigError
from fixture_pieces import acted, played, trained

Box = gym.spaces.Box
SPACE = Box(0, 255, (5, 6, 2), np.uint8)
SIZES = st.integers(1, 7)
X = np.arange(2 * 5 * 6 * 3).reshape(2, 5, 6, 3)


def images(count, *shape, seed=0, dtype=np.uint8):
    return np.random.default_rng(seed).integers(0, 256, (count, *(shape or (5, 6, 2)))).astype(dtype)


def seeded(seed=0, **keywords):
    piece = RandomCrop(**keywords)
    piece.seed(seed)
    return piece


# -- what all of them do ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("piece", "shape"),
    [
        (Crop(height=2, width=3, left=2), (2, 3, 3)),
        (CenterCrop(height=2, width=3), (2, 3, 3)),
        (Grayscale(), (5, 6, 1)),
        (ToCHWFloat(), (3, 5, 6)),
        (Resize(height=3, width=4), (3, 4, 3)),
        (Resize(height=3, width=4, method="bilinear"), (3, 4, 3)),
        (Resize(height=3, width=4, method="nearest"), (3, 4, 3)),
        (RandomCrop(height=5, width=6), (5, 6, 3)),
    ],
)
def test_frames_on_an_axis_of_their_own_are_images_and_no_images_stay_none(piece, shape):
    x = images(2, 5, 6, 3)
    found = piece.transform(np.stack([x, x[::-1]], 1))
    assert found.shape == (2, 2, *shape)
    assert np.array_equal(found[:, 1], piece.transform(x[::-1]))
    assert piece.transform(x[:0]).shape == (0, *shape)


@pytest.mark.parametrize("piece", [Grayscale(), Resize(height=20, width=30)])
def test_many_images_are_done_in_blocks_like_few(piece):
    x = images(50, 60, 40, 3)
    single = np.concatenate([piece.transform(x[i : i + 1]) for i in range(50)])
    # with several BLAS threads a sum may end on the other side of a tie
    assert np.allclose(piece.transform(x).astype(int), single.astype(int), rtol=0, atol=1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Crop(height=2, width=3, left=2),
        lambda: CenterCrop(height=2, width=3),
        lambda: ToCHWFloat(),
        lambda: Grayscale(weights=(0.5, 0.25, 0.125)),
        lambda: Grayscale(weights=(0.5, 0.25, 0.125), keep_axis=False),
        lambda: Resize(height=3, width=4),
        lambda: Resize(height=7, width=4, method="bilinear"),
        lambda: Resize(height=3, width=8, method="bilinear", antialias=True),
        lambda: Resize(height=3, width=9, method="nearest"),
        lambda: RandomCrop(pad=2),
        lambda: RandomCrop(height=3, width=4, pad=1),
    ],
)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float32, torch.float64, torch.bool])
def test_tensors_as_arrays(make, dtype):
    x = torch.from_numpy(X).to(dtype)
    results = []
    for rows in (x, x.numpy()):
        piece = make()
        if isinstance(piece, RandomCrop):
            piece.seed(3)
        results.append(piece.transform(rows))
    found, expected = results
    assert found.shape == expected.shape
    assert np.allclose(found.numpy().astype(float), expected.astype(float), rtol=1e-6, atol=0)
    assert found.dtype == (torch.float32 if isinstance(piece, ToCHWFloat) else dtype)


LOW = np.zeros((5, 6, 2), np.float32)
LOW[4, 5] = -7
OPEN = Box(-np.inf, np.inf, (4, 4, 1), np.float32)
RGB = Box(0, 255, (210, 160, 3), np.uint8)


@pytest.mark.parametrize(
    ("piece", "space"),
    [
        (Crop(Box(LOW, LOW + 10), height=1, width=1, top=4, left=5), Box(-7, 3, (1, 1, 2))),
        (CenterCrop(Box(LOW, LOW + 10), height=3, width=2), Box(0, 10, (3, 2, 2))),
        (Grayscale(RGB), Box(0, 255, (210, 160, 1), np.uint8)),
        (ToCHWFloat(RGB), Box(0, 1, (3, 210, 160), np.float32)),
        *(
            (Resize(RGB, height=84, width=80, method=own), Box(0, 255, (84, 80, 3), np.uint8))
            for own in ("area", "nearest")
        ),
        (Resize(OPEN, height=2, width=3, method="bilinear"), Box(-np.inf, np.inf, (2, 3, 1))),
    ],
)
def test_spaces(piece, space):
    assert piece.observation_space == space


@pytest.mark.parametrize(
    ("mistake", "error", "words"),
    [
        (lambda: Crop(height=3, width=4, top=3).transform(X), ColumnError, r"6 by 4 pixels[\s\S]*found: +5 by 6"),
        (lambda: CenterCrop(height=6, width=4).transform(X), ColumnError, r"at least 6 by 4 pixels"),
        (lambda: RandomCrop(height=9, pad=4).transform(images(2)), ColumnError, r"at least 9 by 6 pixels"),
        (lambda: Grayscale().transform(np.zeros((2, 4, 5, 1), np.uint8)), ColumnError, r"3 channels(?s:.*)\(4, 5, 1\)"),
        (lambda: Grayscale().transform(np.zeros((2, 4, 3), np.uint8)), ColumnError, r"shape \(height, width, channels"),
        (lambda: Resize(height=3, width=3).transform(np.zeros((2, 84, 84))), ColumnError, "a last axis of length 1"),
        (lambda: ToCHWFloat().transform(np.zeros((2, 84, 84), np.uint8)), ColumnError, r"rows of shape \(84, 84\)"),
        (lambda: Crop(height=3, width=4, left=-1), ConfigError, r"Crop\.left"),
        (lambda: CenterCrop(height=0, width=4), ConfigError, r"CenterCrop\.height"),
        (lambda: Resize(height=3, width=4, antialias=True), ConfigError, r"antialias[\s\S]*method='area'"),
        (lambda: RandomCrop(), ConfigError, "pad=4 to shift images"),
        (lambda: RandomCrop(height=0), ConfigError, r"RandomCrop\.height"),
        *((lambda own=own: Grayscale(weights=own), ConfigError, r"Grayscale\.weights") for own in
          [(0.5, 0.6), (1.0, -0.1), (), "rgb", (0.0, 0.0)]),
        (lambda: Resize(height=3, width=0), ConfigError, r"Resize\.width"),
        (lambda: Resize(height=3, width=3, method="cubic"), ConfigError, r"Resize\.method"),
        (lambda: ToCHWFloat(divide_by=0), ConfigError, r"ToCHWFloat\.divide_by"),
        (lambda: RandomCrop(pad=1).set_state({"weights": 0}), CheckpointError, r"RandomCrop\.set_state"),
    ],
)  # fmt: skip
def test_mistakes_are_named(mistake, error, words):
    with pytest.raises(error, match=words):
        mistake()


# -- parts -----------------------------------------------------------------------------------------


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


def places(image, part, pad):
    """Where in the image, its edge repeated, a part is; by trying all."""
    wide = np.pad(image, ((pad, pad), (pad, pad), (0, 0)), mode="edge")
    height, width = part.shape[:2]
    return [
        (y, x)
        for y in range(wide.shape[0] - height + 1)
        for x in range(wide.shape[1] - width + 1)
        if np.array_equal(wide[y : y + height, x : x + width], part)
    ]


@given(st.integers(0, 99), st.integers(1, 5), st.integers(1, 6), st.integers(0, 3))
def test_each_part_is_one_of_its_image(seed, height, width, pad):
    x = images(4, seed=seed)
    found = seeded(seed, height=height, width=width, pad=pad).transform(x)
    assert found.shape == (4, height, width, 2)
    assert all(places(image, part, pad) for image, part in zip(x, found))


def test_every_place_is_as_likely():
    x = np.repeat(images(1), 3000, 0)
    drawn = [places(x[0], part, 0)[0] for part in seeded(height=3, width=4).transform(x)]
    counts = np.array([drawn.count((y, x)) for y in range(3) for x in range(3)])
    assert counts.sum() == 3000 and np.abs(counts - 3000 / 9).max() < 5 * (3000 / 9) ** 0.5
    shifts = {places(x[0], part, 1)[0] for part in seeded(pad=1).transform(x[:200])}
    assert shifts == {(y, x) for y in range(3) for x in range(3)}


def test_all_frames_of_a_stack_are_cut_alike():
    x = images(6).reshape(3, 2, 5, 6, 2)
    together = np.concatenate([x[:, 0], x[:, 1]], -1)
    stacks = seeded(height=3, width=3, pad=1).transform(x)
    channels = seeded(height=3, width=3, pad=1).transform(together)
    assert np.array_equal(np.concatenate([stacks[:, 0], stacks[:, 1]], -1), channels)


@pytest.mark.parametrize("settings", [{"height": 3, "width": 4}, {"pad": 2}])
def test_acting_takes_the_middle_and_training_draws(settings):
    one, piece = played(list(images(41))), RandomCrop(SPACE, **settings)
    middle = one.get_observations()[:, 1:4, 1:5] if "height" in settings else one.get_observations()
    assert piece.observation_space == Box(0, 255, middle.shape[1:], np.uint8)
    assert np.array_equal(acted([piece.clone()], [one], SPACE)["obs"], middle[-1:])
    batch, again = (trained([piece.share()], [one], SPACE)["obs"] for _ in range(2))
    assert all(places(image, part, settings.get("pad", 0)) for image, part in zip(one.get_observations(), batch))
    assert not np.array_equal(batch, middle[:-1]) and not np.array_equal(batch, again)


def test_a_pixels_bounds_are_those_of_all_that_it_can_be():
    low = np.zeros((5, 6, 2), np.float32)
    low[0, 0, 1] = -3
    expected = Box(np.broadcast_to(np.float32([0, -3]), (2, 2, 2)), np.float32(9))
    assert RandomCrop(Box(low, 9), height=2, width=2).observation_space == expected


# -- luma ------------------------------------------------------------------------------------------


def test_three_images_by_hand():
    red, green, blue = (np.zeros((1, 1, 3), np.uint8) for _ in range(3))
    red[..., 0], green[..., 1], blue[..., 2] = 255, 255, 255
    found = Grayscale().transform(np.stack([red, green, blue, red | green | blue]))
    assert found.ravel().tolist() == [76, 150, 29, 255]  # 76.245, 149.685, 29.07, 255
    assert found.shape == (4, 1, 1, 1) and found.dtype == np.uint8
    assert Grayscale(weights=[0.5, 0.5]).transform(np.array([[[[10, 20]]]], np.uint8)).item() == 15


@given(st.integers(0, 99), st.sampled_from([np.uint8, np.float32, np.float64, np.int32]), st.booleans())
def test_each_pixel_is_the_weighted_sum_of_its_channels(seed, dtype, keep_axis):
    x = images(3, 4, 2, 3, seed=seed, dtype=dtype)
    found = Grayscale(keep_axis=keep_axis).transform(x)
    assert found.dtype == dtype and found.shape == ((3, 4, 2, 1) if keep_axis else (3, 4, 2))
    for pixel, value in zip(x.reshape(-1, 3).tolist(), found.ravel().tolist()):
        exact = 0.299 * pixel[0] + 0.587 * pixel[1] + 0.114 * pixel[2]
        assert abs(value - exact) <= (0.5 + 1e-4 if np.issubdtype(dtype, np.integer) else 1e-4)


def test_bools_are_true_where_more_than_half_is():
    pixels = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 0, 1], [1, 1, 1]], bool).reshape(5, 1, 1, 3)
    assert Grayscale().transform(pixels).ravel().tolist() == [False, False, True, False, True]


# -- sizes -----------------------------------------------------------------------------------------


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
    x = images(2, rows, columns, channels, seed=seed, dtype=np.float64)
    found = Resize(height=height, width=width).transform(x)
    expected = np.stack([slow_area(image, height, width) for image in x])
    np.testing.assert_allclose(found, expected, atol=1e-9)
    whole = Resize(height=height, width=width).transform(x.astype(np.uint8))
    assert whole.dtype == np.uint8 and np.abs(whole - expected).max() <= 0.5 + 1e-3


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 99), SIZES, SIZES, SIZES, SIZES, st.sampled_from([1, 3]))
def test_bilinear_and_nearest_are_pytorchs(seed, rows, columns, height, width, channels):
    x = images(2, rows, columns, channels, seed=seed, dtype=np.float32)
    moved = torch.from_numpy(x).movedim(-1, 1)
    for method, keywords in (("bilinear", {"align_corners": False}), ("nearest", {})):
        expected = torch.nn.functional.interpolate(moved, (height, width), mode=method, **keywords).movedim(1, -1)
        found = Resize(height=height, width=width, method=method).transform(x)
        np.testing.assert_allclose(found, expected.numpy(), atol=2e-3)
        assert found.dtype == np.float32


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 99), SIZES, SIZES, SIZES, st.integers(2, 7), st.sampled_from([1, 3]))
def test_antialiased_images_are_pytorchs(seed, rows, columns, height, width, channels):
    """Of at least two columns: in results with one PyTorch repeats the first row."""
    x = images(2, rows, columns, channels, seed=seed, dtype=np.float32)
    size, moved = (height, width), torch.from_numpy(x).movedim(-1, 1)
    expected = torch.nn.functional.interpolate(moved, size, mode="bilinear", antialias=True).movedim(1, -1)
    piece = Resize(height=height, width=width, method="bilinear", antialias=True)
    np.testing.assert_allclose(piece.transform(x), expected.numpy(), atol=2e-3)
    whole = piece.transform(x.astype(np.uint8))
    assert whole.dtype == np.uint8 and np.abs(whole - expected.numpy()).max() <= 0.5 + 2e-3


def test_masks_are_true_where_more_than_half_of_what_lies_below_is():
    masks = np.random.default_rng(0).random((3, 9, 6, 1)) < 0.5
    found = Resize(height=3, width=2).transform(masks)
    shares = masks.reshape(3, 3, 3, 2, 3, 1).sum((2, 4)) / 9
    assert found.dtype == np.bool_ and np.array_equal(found, shares > 0.5) and 0 < found.mean() < 1
    assert Resize(height=1, width=1).transform(np.array([[[[True], [False]]]])).item() is False


# -- channels first --------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_three_images_pixel_by_pixel(channels):
    x = images(3, 5, 4, channels, seed=channels)
    found = ToCHWFloat().transform(x)
    assert found.shape == (3, channels, 5, 4) and found.dtype == np.float32 and found.flags.c_contiguous
    for n, i, j, c in np.ndindex(x.shape):
        assert found[n, c, i, j] == np.float32(x[n, i, j, c]) / np.float32(255)


def test_floats_are_only_moved_and_other_ranges_divided_by_theirs():
    x = np.random.default_rng(0).random((2, 3, 4, 2))
    found = ToCHWFloat().transform(x)
    assert found.dtype == np.float32 and np.array_equal(found, np.moveaxis(x, -1, 1).astype(np.float32))
    assert ToCHWFloat(divide_by=65535).transform(np.full((1, 1, 1, 1), 65535, np.uint16)).item() == 1.0
