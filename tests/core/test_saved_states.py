"""States that are saved and loaded: with the same values and types, or refused by name."""

from __future__ import annotations

import collections
import enum
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from epibatch.core import load_state, save_state
from epibatch.core.errors import CheckpointError

Colour = enum.IntEnum("Colour", "RED")
Point = collections.namedtuple("Point", "x")
LOOP: list[object] = []
LOOP.append(LOOP)


@pytest.fixture(scope="module")
def round_trip(tmp_path_factory):
    path = tmp_path_factory.mktemp("states") / "c"
    return lambda state: load_state(save_state(path, state))


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


OTHERS = [
    2**127 + 1,
    [math.inf, -math.inf, math.nan, -0.0],
    "ünï\ud800",
    {"$": "array", "name": "a0"},
    {1: "a", "1": "b", 1.5: "c", (): True, None: {("a", 1, None): {True: 1}}},
    [np.float32(0.1), np.float64(0.1), np.float16("nan"), np.int64(-5), np.uint8(255), np.bool_(True)],
    [np.complex64(1 + 2j), np.str_("x"), np.datetime64("2020-01-01T00:00:01")],
    np.array(["a", "bcd"]),
    np.array([1.5, 2.5], ">f8"),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.array([(1, 2.0)], [("a", "i4"), ("\u00e9", "f8")]),
    np.random.PCG64(0).state,
    {"n": -(10**5000)},
]
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
    "rows in many levels": [((i, i), (((i,), i), "a")) for i in range(N)],
    "rows of lists": [([i], i) for i in range(N)],
    "bytes": bytes(range(256)) * 9,
    "counts of places": {(i, -i): i for i in range(N)},
    "values of states": {((i, "left"), (True, 2**70)): [0.5, i] for i in range(N)},
    "keys of several kinds": {key: 1 for i in range(N) for key in (i, str(i), (i, None))},
    "many counts": {(i, i % 7): i for i in range(40_000)},
    "many floats": [0.5] * 600_000,
    "many bytes": bytes(9_000_000),
}


@pytest.mark.parametrize("state", [*LONG.values(), *OTHERS], ids=[*LONG, *map(str, range(len(OTHERS)))])
def test_round_trips(round_trip, state):
    assert same(round_trip({"a": [state, np.ones(2)], "b": (state,)})["b"][0], state)


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


@settings(max_examples=40)
@given(state=st.recursive(LEAVES, lambda s: st.lists(s) | st.tuples(s, s) | st.dictionaries(KEYS, s), max_leaves=12))
def test_any_state_round_trips(round_trip, state):
    assert same(round_trip(state), state)


def test_tensors_come_back_as_arrays_and_mappings_as_dicts(round_trip):
    state = {"w": torch.ones(2, requires_grad=True), "n": torch.tensor(3), "h": torch.ones(1, dtype=torch.bfloat16)}
    loaded = round_trip(state)
    assert same(loaded, {"w": np.ones(2, np.float32), "n": np.array(3), "h": np.ones(1, np.float32)})
    state = collections.OrderedDict(b=1, a=collections.defaultdict(int, c=2))
    assert same(round_trip(state), {"b": 1, "a": {"c": 2}})


@pytest.mark.parametrize("size", [1, N])
def test_keys_of_numpy_and_of_subclasses_come_back_as_pythons_own(round_trip, size):
    keys = [
        np.str_("a"),
        np.int64(2),
        np.float32(0.5),
        np.bool_(False),
        (np.str_("b"), (np.int8(-3), None)),
        Colour.RED,
    ]
    plain = ["a", 2, 0.5, False, ("b", (-3, None)), 1]
    assert same(round_trip({"s": dict.fromkeys(keys, 1)}), {"s": dict.fromkeys(plain, 1)})
    many = {number: number for number in np.arange(10, 10 + size)}
    assert same(list(round_trip(many)), list(range(10, 10 + size)))


@pytest.mark.parametrize("name", ["floats", "integers", "booleans", "rows", "bytes", "counts of places"])
def test_long_ones_take_no_text(tmp_path, name):
    folder = save_state(tmp_path / "c", LONG[name])
    assert len((folder / "state.json").read_bytes()) < 10 * N


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": [1, object()]}, r"saving state\['a'\]\[1\](.|\n)*builtins.object"),
        ({"a": np.array([None])}, "an array of dtype object"),
        ({"a": np.array([(None,)], [("x", object)])}, "an array of dtype"),
        ({"a": {1, 2}}, "builtins.set"),
        ({"a": 1j}, "complex"),
        ({"a": Colour.RED}, "Colour"),
        ({"a": Point(1)}, "Point"),
        ({"a": np.ma.masked_array([1])}, "MaskedArray"),
        ({b"a": 1}, "key b'a'"),
        ({("a", Point): 1}, "tuple of these"),
        (LOOP, "holds itself"),
        (np.void(b"x"), "NumPy number"),
        ({"a": np.zeros(2, [("\u4e2d", "f4")])}, "names of fields in Latin-1"),
    ],
)
def test_what_cannot_be_saved_is_named(tmp_path, state, message):
    with pytest.raises(CheckpointError, match=message):
        save_state(tmp_path / "c", state)


TOO_DEEP = {"$": "list", "type": "bool", "items": {"$": "array", "name": "a0"}}
for _ in range(20):  # each level would take memory for every number in a list
    TOO_DEEP = {"$": "list", "columns": [TOO_DEEP]}


@pytest.mark.parametrize(
    "data",
    [
        TOO_DEEP,
        {"$": "array"},
        {"$": "array", "name": "a7"},
        {"$": "tuple", "items": 3},
        {"$": "dict", "items": [[1]]},
        {"$": "dict", "items": [[[1], 2]]},
        {"$": "dict", "keys": [1], "values": []},
        {"$": "bytes", "hex": "zz"},
        {"$": "bytes", "items": []},
        {"$": "scalar", "dtype": "no such type", "hex": "00"},
        {"$": "scalar", "dtype": "<f8", "hex": "00"},
        {"$": "scalar", "dtype": "|O", "hex": "0000000000000000"},
        {"$": "list", "type": "int", "items": [1]},
        {"$": "list", "columns": [[1], [2, 3]]},
        {"$": "int", "hex": 5},
        {"$": "float", "value": "x"},
        {"$": ["unhashable"]},
        {"$": "code"},
    ],
    ids=lambda data: ascii(data)[:40],
)
def test_what_was_not_written_here_is_refused(tmp_path, damaged, data):
    folder = save_state(tmp_path / "c", np.zeros(10, np.int64) if data is TOO_DEEP else None)
    damaged.replace(folder, "state.json", json.dumps(data).encode())
    with pytest.raises(CheckpointError, match=r"cannot be read|unknown tag|more than 3 levels"):
        load_state(folder)


def test_long_lists_of_earlier_checkpoints_are_read(tmp_path, damaged):
    folder = save_state(tmp_path / "c", None)
    pairs = b",".join(b'[{"$":"tuple","items":[%d,2]},%d]' % (i, i) for i in range(2000))
    numbers = b",".join([b"1.5"] * 2000)
    text = b'[{"$":"dict","items":[%b]},[%b],{"$":"bytes","hex":"%b"}]' % (pairs, numbers, b"ab" * 2000)
    damaged.replace(folder, "state.json", text)
    assert load_state(folder) == [{(i, 2): i for i in range(2000)}, [1.5] * 2000, b"\xab" * 2000]


def test_a_state_that_will_soon_be_too_large_is_a_warning(tmp_path):
    with pytest.warns(UserWarning, match="more than half of what state.json may have"):
        save_state(tmp_path / "c", "x" * 9 * 2**20)
    assert load_state(tmp_path / "c") == "x" * 9 * 2**20
    with pytest.raises(CheckpointError, match="at most 16,777,216 bytes"):
        save_state(tmp_path / "c", "x" * 17 * 2**20)
