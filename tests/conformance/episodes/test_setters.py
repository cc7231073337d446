"""Every setter with every kind of index, with right and wrong numbers of rows, of the column's type or another."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import strategies as st

from oracle.behaviours import holds
from oracle.cases import differences_met, random_cases
from oracle.episodes import Chunk
from oracle.twins import Case, Twins, cases
from oracle.writes import Write, write

ints = st.one_of(st.integers(-8, 8), st.integers(-70, 70))
bounds = st.one_of(st.none(), ints)
slices = st.builds(slice, bounds, bounds, st.sampled_from([None, None, None, 1, 2, 3, -1, -2]))
near = st.integers(-2, 2)
indices = st.one_of(st.none(), ints, near, near.map(np.int64), slices, slices, st.lists(near, max_size=3))
writes = st.builds(
    Write,
    column=st.integers(0, 9),
    indices=indices,
    neg_index_as_lookback=st.booleans(),
    more=st.sampled_from([0, 0, 0, 0, 1, -1]),
    dtype=st.sampled_from([None, None, None, "float64", "int64", "float32"]),
    stacked=st.booleans(),
    seed=st.integers(0, 99),
)


@holds("C10")
@random_cases(case=cases(), what=writes)
def test_setters(case: Case, what: Write) -> None:
    write(Twins(*case.build(), case.arrays), what)


BOX = gym.spaces.Box(-2, 3, (2,), np.float32)
FLAT, NESTED = Chunk(BOX, BOX, 4), Chunk(gym.spaces.Dict({"a": BOX}), BOX, 4)
EXAMPLES = {
    "another type than the arrays'": ("set-arrays", FLAT, Write(1, 0, dtype="float64")),
    "a list into arrays": ("set-arrays", FLAT, Write(0, slice(0, 2))),
    "nested columns": ("set-arrays", NESTED, Write(0, -1)),
    "more rows than indices": ("set-arrays", FLAT, Write(1, [0, 1], more=1, stacked=True)),
    "a NumPy integer": ("O20", FLAT, Write(1, np.int64(0))),
    "integers in the place of all fractions": ("column-types", FLAT, Write(1, None, dtype="int64")),
    "an output that is not there": ("argument-errors", FLAT, Write(3, None)),
    "no rows": ("O59", FLAT, Write(1, slice(2, 2), stacked=True)),
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_each_difference(example):
    identity, chunk, what = EXAMPLES[example]
    before = differences_met.copy()
    arrays = identity != "column-types"
    write(Twins(*Case(chunk, arrays, "own").build(), arrays=arrays), what)
    assert identity in differences_met - before
