"""Spaces found out by trying a function."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.connectors.authoring import ColumnTransform
from epibatch.core.errors import SpaceError

DOUBLE = gym.spaces.Box(np.float64([-1, 0]), np.float64([1, np.inf]), dtype=np.float64)
EYE = np.eye(4, dtype=np.int8)
BOX = gym.spaces.Box(np.float32([-1, 0]), np.float32([1, np.inf]))


def probed_space(space, function, monotonic=False):
    """The space of what a transform with this function gives."""

    class Tries(ColumnTransform):
        columns = "obs"

        def transform(self, x):
            return function(x)

    Tries.monotonic = monotonic
    return Tries(space).observation_space


@pytest.mark.parametrize(
    ("space", "function", "monotonic", "expected"),
    [
        (BOX, lambda x: x[:, :1] * 2, False, gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)),
        (BOX, lambda x: -2 * x, True, gym.spaces.Box(np.float32([-2, -np.inf]), np.float32([2, 0]))),
        (
            BOX,
            lambda x: x.astype(np.float64),
            True,
            DOUBLE,
        ),
        (BOX, lambda x: 0 * x, True, gym.spaces.Box(np.float32([0, -np.inf]), np.float32([0, np.inf]))),
        (BOX, lambda x: x > 0, False, gym.spaces.Box(0, 1, (2,), np.bool_)),
        (
            gym.spaces.Discrete(4),
            lambda x: EYE[x],
            False,
            gym.spaces.Box(-128, 127, (4,), np.int8),
        ),
        (gym.spaces.Discrete(4, start=2), lambda x: -2 * x, True, gym.spaces.Box(-10, -4, (), np.int64)),
        (gym.spaces.MultiBinary(3), lambda x: x * 2 - 1, True, gym.spaces.Box(-1, 1, (3,), np.int8)),
        (gym.spaces.MultiBinary(3), lambda x: x.sum(-1), False, gym.spaces.Box(-(2**63), 2**63 - 1, (), np.int64)),
    ],
)
def test_shape_type_and_bounds(space, function, monotonic, expected):
    assert probed_space(space, function, monotonic=monotonic) == expected


def test_what_comes_out_is_in_the_space():
    space = gym.spaces.Box(-3, 5, (4,), seed=1)
    derived = probed_space(space, lambda x: np.clip(x, -1, 1) * np.float32(7), monotonic=True)
    assert derived == gym.spaces.Box(-7, 7, (4,))
    assert all(derived.contains(np.clip(space.sample(), -1, 1) * np.float32(7)) for _ in range(50))


def test_the_spaces_own_stream_is_left_alone():
    one, other = (gym.spaces.Box(-1, 1, (2,), seed=3) for _ in range(2))
    probed_space(one, lambda x: x)
    assert np.array_equal(one.sample(), other.sample())


def test_a_function_that_fails_is_told_what_it_was_tried_on():
    with pytest.raises(ZeroDivisionError, match=r"tried on 3 samples of Discrete\(2\), shape \(3,\) and type int64"):
        probed_space(gym.spaces.Discrete(2), lambda x: 1 / 0)


@pytest.mark.parametrize("space", [gym.spaces.Text(3), gym.spaces.Sequence(BOX)])
def test_spaces_without_arrays_are_named(space):
    with pytest.raises(SpaceError, match="write output_space"):
        probed_space(space, lambda x: x)


@pytest.mark.parametrize("monotonic", [False, True])
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128, "U3", "m8[s]", object, np.longdouble])
def test_there_is_no_space_of_results_whose_type_has_no_box(dtype, monotonic):
    assert probed_space(gym.spaces.Discrete(4), lambda x: x.astype(dtype), monotonic) is None
