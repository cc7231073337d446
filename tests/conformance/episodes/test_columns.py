"""Every getter and every setter with every kind of index, on both libraries' episodes."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import strategies as st

from oracle.cases import differences_met, random_cases
from oracle.episodes import Chunk
from oracle.operations import Request, Write, write
from oracle.probes import holds
from oracle.twins import Case, cases

FILLS = (None, None, None, 0, 0.0, 1, 0.5, -1, True, np.float32(2.5), np.nan)
ints = st.one_of(st.integers(-8, 8), st.integers(-70, 70))
bounds = st.one_of(st.none(), ints)
slices = st.builds(slice, bounds, bounds, st.sampled_from([None, None, None, 1, 2, 3, -1, -2, -5]))
near = st.integers(-3, 3)
indices = st.one_of(
    st.none(),
    ints,
    ints.map(np.int64),
    slices,
    slices,
    slices,
    st.lists(ints, max_size=4),
    st.lists(ints, max_size=4).map(tuple),
    st.lists(near, max_size=3).map(lambda found: np.array(found, np.int64)),
)


requests = st.builds(
    Request, st.integers(0, 9), indices, st.booleans(), st.sampled_from(FILLS), st.booleans(), st.booleans()
)


@holds("C2", "C3", "C4", "C5", "C6", "C7", "C8", "C9")
@random_cases(case=cases(), wanted=st.lists(requests, min_size=1, max_size=3))
def test_getters(case: Case, wanted: list[Request]) -> None:
    episodes = case.build()
    for request in wanted:
        request.read(*episodes)


writes = st.builds(
    Write,
    column=st.integers(0, 9),
    indices=st.one_of(st.none(), ints, near, near.map(np.int64), slices, slices, st.lists(near, max_size=3)),
    neg_index_as_lookback=st.booleans(),
    more=st.sampled_from([0, 0, 0, 0, 1, -1]),
    dtype=st.sampled_from([None, None, None, "float64", "int64", "float32"]),
    stacked=st.booleans(),
    seed=st.integers(0, 99),
)


@holds("C10")
@random_cases(case=cases(), what=writes)
def test_setters(case: Case, what: Write) -> None:
    write(case.twins(), what)


BOX = gym.spaces.Box(-2, 3, (2,), np.float32)
FLAT, NESTED = Chunk(BOX, BOX, 4, lookback=2, t_started=2), Chunk(gym.spaces.Dict({"a": BOX}), BOX, 4)
CHOICES, LATE = (Chunk(gym.spaces.Discrete(n, start=start), BOX, 4) for n, start in ((4, 0), (3, 5)))
EXAMPLES = [
    ("rewards-space", Chunk(BOX, BOX, 0), Request(3, slice(0, 2), fill=0)),
    ("fill-value", CHOICES, Request(0, slice(-9, 1), fill=np.nan)),
    ("fill-value", Chunk(gym.spaces.MultiBinary(2), BOX, 4), Request(0, 99, fill=1000)),
    ("one-hot-no-rows", LATE, Request(0, slice(2, 2), one_hot=True)),
    ("O19", FLAT, Request(0, [-5, 0], neg_index_as_lookback=True)),
    ("O44", LATE, Request(0, 0, one_hot=True)),
    ("O58", FLAT, Request(0, slice(20, 10), fill=0.0)),
    ("set-arrays", FLAT, Write(1, 0, dtype="float64")),
    ("set-arrays", FLAT, Write(0, slice(0, 2))),
    ("set-arrays", NESTED, Write(0, -1)),
    ("set-arrays", FLAT, Write(1, [0, 1], more=1, stacked=True)),
    ("O20", FLAT, Write(1, np.int64(0))),
    ("argument-errors", FLAT, Write(3, None)),
    ("O59", FLAT, Write(1, slice(2, 2), stacked=True)),
]


@pytest.mark.parametrize(("identity", "chunk", "what"), EXAMPLES)
def test_each_difference(identity: str, chunk: Chunk, what: Any) -> None:
    before, case = differences_met.copy(), Case(chunk)
    if isinstance(what, Write):
        write(case.twins(), what)
    else:
        what.read(*case.build())
    assert identity in differences_met - before
