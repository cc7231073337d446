"""Spaces as JSON and back."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gymnasium import spaces

from epibatch.core.errors import SpaceError
from epibatch.core.spaces import space_from_dict, space_to_dict

SPACES = [
    spaces.Box(-1, 1, (3,)),
    spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
    spaces.Box(0, np.inf, (1,), np.float16),
    spaces.Box(0, 255, (84, 84, 1), np.uint8),
    spaces.Box(-5, 5, ()),
    spaces.Box(0, 1, (0,)),
    spaces.Box(np.array([-0.1, -np.inf], np.float32), np.array([np.inf, 0.3], np.float32)),
    spaces.Box(-(2**62) - 1, 2**62 + 1, (2,), np.int64),
    spaces.Box(-np.inf, np.inf, (2,), np.int64),
    spaces.Discrete(4),
    spaces.Discrete(4, start=-2),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), np.int32),
    spaces.MultiDiscrete([2, 3], start=[5, -1]),
    spaces.MultiBinary(3),
    spaces.MultiBinary([2, 3]),
    spaces.Dict(b=spaces.Discrete(2), a=spaces.Tuple([spaces.Box(0, 1, (2,)), spaces.Dict(x=spaces.MultiBinary(2))])),
    spaces.Dict([("z", spaces.Discrete(2)), ("a", spaces.Discrete(3))]),
    spaces.Tuple([]),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_round_trip_through_json_is_equal(space):
    text = json.dumps(space_to_dict(space), allow_nan=False)
    restored = space_from_dict(json.loads(text))
    assert restored == space
    assert restored.dtype == space.dtype
    assert restored.shape == space.shape
    if isinstance(space, spaces.Box):
        assert np.array_equal(restored.low, space.low)
        assert np.array_equal(restored.high, space.high)
        assert np.array_equal(restored.bounded_below, space.bounded_below)
        assert np.array_equal(restored.bounded_above, space.bounded_above)
    if isinstance(space, spaces.Dict):
        assert list(restored.spaces) == list(space.spaces)


def test_uniform_bounds_are_one_number_and_infinities_are_strings():
    described = space_to_dict(spaces.Box(-np.inf, 1.0, (2, 3)))
    assert described == {"type": "Box", "low": "-inf", "high": 1.0, "shape": [2, 3], "dtype": "float32"}


def test_mixed_bounds_are_nested_lists():
    low, high = np.array([[0, -np.inf]], np.float32), np.array([[1, np.inf]], np.float32)
    described = space_to_dict(spaces.Box(low, high))
    assert (described["low"], described["high"]) == ([[0.0, "-inf"]], [[1.0, "inf"]])


@pytest.mark.parametrize("space", [spaces.Text(3), spaces.Sequence(spaces.Discrete(2)), spaces.Dict(a=spaces.Text(3))])
def test_other_spaces_are_refused_by_class(space):
    with pytest.raises(SpaceError, match=r"found: +gymnasium\.spaces\.(text\.Text|sequence\.Sequence)"):
        space_to_dict(space)


def test_keys_must_be_writable_as_json():
    with pytest.raises(SpaceError, match=r"found: +\(1, 2\)"):
        space_to_dict(spaces.Dict({(1, 2): spaces.Discrete(2)}))


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({"type": "box"}, "did you mean 'Box'"),
        ({}, "expected: a dict with a known 'type'"),
        ("Box", "found:    'Box'"),
        ({"type": "Discrete"}, "KeyError: 'n'"),
        ({"type": "Discrete", "n": 0}, "expected: the entries that space_to_dict"),
        ({"type": "Box", "low": [0, 0], "high": 1, "shape": [3], "dtype": "float32"}, "ValueError"),
        ({"type": "Box", "low": 0, "high": 1, "shape": [3], "dtype": "float33"}, "float33"),
        ({"type": "Tuple", "spaces": [{"type": "Discret"}]}, "did you mean 'Discrete'"),
    ],
)
def test_unfit_descriptions_are_named(description, message):
    with pytest.raises(SpaceError, match=message):
        space_from_dict(description)
