"""State as JSON plus arrays, and back with the same types; parts of a state."""

from __future__ import annotations

import collections
import enum
import io
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from epibatch.core.errors import CheckpointError, UnknownNameError
from epibatch.core.state_codec import decode_state, encode_state, select_components


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


@settings(max_examples=40, deadline=None)
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
        {"$": "list", "type": "int", "items": [1]},
        {"$": "list", "columns": [[1], [2, 3]]},
        {"$": "dict", "keys": [1], "values": []},
        {"$": "bytes", "items": []},
        {"$": "int", "hex": 5},
        {"$": "float", "value": "x"},
        {"$": ["unhashable"]},
        {"$": "eval"},
    ],
)
def test_what_was_not_written_here_is_refused(data):
    with pytest.raises(CheckpointError, match="cannot be read"):
        decode_state(data, {})


N = 1500
LONG = {
    "floats": [0.1, -0.0, math.nan, math.inf] * N,
    "integers": [-(2**63), 0, 2**63 - 1] * N,
    "integers beyond 64 bits": [2**63] * N,
    "booleans": [True, False] * N,
    "of two kinds": [True, 1, 1.0] * N,
    "tuple": tuple(range(N)),
    "rows": [(i, i / 3, i > 5, None, "x") for i in range(N)],
    "rows of several lengths": [(0,) * (i % 3) for i in range(N)],
    "rows without entries": [()] * N,
    "rows in rows": [((i, i), ((i, i), 2.5)) for i in range(N)],
    "rows in many levels": [((i, i), (((i,), i), "a")) for i in range(N)],
    "rows of lists": [([i], i) for i in range(N)],
    "bytes": bytes(range(256)) * 9,
    "counts": {i: i * 2 for i in range(N)},
    "counts of places": {(i, -i): i for i in range(N)},
    "values of states": {((i, "left"), (True, 2**70)): [0.5, i] for i in range(N)},
    "names": {str(i): i for i in range(N)},
    "keys of several kinds": {key: 1 for i in range(N) for key in (i, str(i), (i, None))},
}


@pytest.mark.parametrize("state", LONG.values(), ids=LONG)
def test_long_ones_round_trip(state):
    assert same(round_trip(state), state)
    assert same(round_trip({"a": [state, np.ones(2)], "b": (state,)})["b"][0], state)


@pytest.mark.parametrize("name", ["floats", "integers", "booleans", "rows in rows", "bytes", "counts of places"])
def test_long_ones_take_no_text(name):
    data, _ = encode_state(LONG[name])
    assert len(json.dumps(data)) < 10 * N


def test_rows_of_a_stranger_are_not_nested_without_end():
    """Each level would take memory for every number in a list."""
    data = {"$": "list", "type": "bool", "items": {"$": "array", "name": "a0"}}
    for _ in range(20):
        data = {"$": "list", "columns": [data]}
    with pytest.raises(CheckpointError, match="more than 3 levels"):
        decode_state(data, {"a0": np.zeros(10, np.int64)})


def test_names_of_fields_that_could_not_be_read_are_refused():
    assert same(round_trip(np.zeros(2, [("\u00e9", "f4")])), np.zeros(2, [("\u00e9", "f4")]))
    with pytest.raises(CheckpointError, match="names of fields in Latin-1"):
        encode_state({"a": np.zeros(2, [("\u4e2d", "f4")])})


PARTS = {name: name.upper for name in ("a", "b", "c")}


@pytest.mark.parametrize(
    ("components", "not_components", "names"),
    [(None, None, "abc"), ("b", None, "b"), (["c", "a"], None, "ac"), (None, "b", "ac"), (["a", "b"], ["a"], "b")],
)
def test_parts_in_their_own_order(components, not_components, names):
    assert select_components(PARTS, components, not_components) == {name: name.upper() for name in names}
    assert list(select_components(PARTS, components, not_components)) == list(names)


def test_parts_that_are_not_wanted_are_not_made():
    assert select_components({"a": dict, "b": lambda: 1 / 0}, "a", None) == {"a": {}}


@pytest.mark.parametrize("names", [("d", None), (None, ["a", "d"])])
def test_unknown_names(names):
    with pytest.raises(UnknownNameError, match=r"get_state\(\.\.\.\)\n.*\n.*'d'\n.*Known: a, b, c"):
        select_components(PARTS, *names)
