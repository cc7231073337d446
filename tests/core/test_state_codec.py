"""State as JSON plus arrays, and back with the same types."""

from __future__ import annotations

import collections
import enum
import io
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from epibatch.core.errors import CheckpointError
from epibatch.core.state_codec import decode_state, encode_state


def round_trip(state):
    data, arrays = encode_state(state)
    packed = io.BytesIO()
    np.savez(packed, **arrays)
    packed.seek(0)
    with np.load(packed, allow_pickle=False) as loaded:
        return decode_state(json.loads(json.dumps(data, allow_nan=False)), dict(loaded))


def same(one, other):
    """Equal in value and in type, all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, (np.ndarray, np.generic)):
        return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind in "fcmM")
    return one == other or (isinstance(one, float) and math.isnan(one) and math.isnan(other))


@pytest.mark.parametrize(
    "state",
    [
        None,
        True,
        -3,
        2**127 + 1,
        0.1,
        math.inf,
        -math.inf,
        math.nan,
        -0.0,
        "",
        "ünï\ud800",
        b"\x00\xff",
        [],
        (),
        {},
        [1, (2, [3, ()])],
        {"$": "array", "name": "a0"},
        {1: "a", "1": "b"},
        {("a", 1, None): {True: 1}},
        np.float32(0.1),
        np.float64(0.1),
        np.float16("nan"),
        np.int64(-5),
        np.uint8(255),
        np.bool_(True),
        np.complex64(1 + 2j),
        np.str_("x"),
        np.datetime64("2020-01-01T00:00:01"),
        np.arange(6).reshape(2, 3),
        np.array(5.0),
        np.zeros((0, 3)),
        np.array(["a", "bcd"]),
        np.array([1.5, 2.5], ">f8"),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]),
        np.random.PCG64(0).state,
    ],
    ids=lambda state: f"{type(state).__name__}-{ascii(state)[:20]}",
)
def test_round_trips(state):
    assert same(round_trip(state), state)


def test_ints_too_long_to_print_as_decimals_round_trip():
    assert round_trip({"n": -(10**5000)}) == {"n": -(10**5000)}


KEYS = st.none() | st.booleans() | st.integers() | st.text() | st.tuples(st.text(), st.integers())
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(min_dims=0, min_side=0, max_side=3))
)


@given(st.recursive(LEAVES, lambda s: st.lists(s) | st.tuples(s, s) | st.dictionaries(KEYS, s), max_leaves=12))
def test_any_state_round_trips(state):
    assert same(round_trip(state), state)


def test_tensors_come_back_as_arrays():
    state = {"w": torch.ones(2, requires_grad=True), "n": torch.tensor(3), "h": torch.ones(1, dtype=torch.bfloat16)}
    loaded = round_trip(state)
    assert same(loaded, {"w": np.ones(2, np.float32), "n": np.array(3), "h": np.ones(1, np.float32)})


def test_kinds_of_dicts():
    state = collections.OrderedDict(b=1, a=collections.defaultdict(int, c=2))
    assert same(round_trip(state), {"b": 1, "a": {"c": 2}})


class Colour(enum.IntEnum):
    RED = 1


Point = collections.namedtuple("Point", "x")
LOOP: list[object] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": [1, object()]}, r"saving state\['a'\]\[1\](.|\n)*builtins.object"),
        ({"a": np.array([None])}, "an array of dtype object"),
        ({"a": np.array([(None,)], [("x", object)])}, "an array of dtype"),
        ({"a": {1, 2}}, "builtins.set"),
        ({"a": lambda: 1}, "function"),
        ({"a": 1j}, "complex"),
        ({"a": Colour.RED}, "Colour"),
        ({"a": Point(1)}, "Point"),
        ({"a": np.ma.masked_array([1])}, "MaskedArray"),
        ({1.5: 1}, "key 1.5"),
        ({("a", 1.5): 1}, "tuple of these"),
        (LOOP, "holds itself"),
        (np.void(b"x"), "NumPy number"),
    ],
)
def test_what_cannot_be_saved_is_named(state, message):
    with pytest.raises(CheckpointError, match=message):
        encode_state(state)


@pytest.mark.parametrize(
    "data",
    [
        {"$": "array"},
        {"$": "array", "name": "a7"},
        {"$": "tuple", "items": 3},
        {"$": "dict", "items": [[1]]},
        {"$": "dict", "items": [[[1], 2]]},
        {"$": "bytes", "hex": "zz"},
        {"$": "scalar", "dtype": "no such type", "hex": "00"},
        {"$": "scalar", "dtype": "<f8", "hex": "00"},
        {"$": "scalar", "dtype": "|O", "hex": "0000000000000000"},
        {"$": "int", "hex": 5},
        {"$": "float", "value": "x"},
        {"$": ["unhashable"]},
        {"$": "eval"},
    ],
)
def test_what_was_not_written_here_is_refused(data):
    with pytest.raises(CheckpointError, match="cannot be read"):
        decode_state(data, {})
