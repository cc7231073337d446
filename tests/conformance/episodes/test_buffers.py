"""Random programs of operations on one buffer of both libraries, without an episode around it."""

from __future__ import annotations

import inspect
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import strategies as st

from oracle.buffers import Machine, programs
from oracle.cases import differences_met, random_cases
from oracle.libraries import BOTH
from oracle.spaces import leaf_spaces, spaces


@random_cases(
    space=st.one_of(leaf_spaces, spaces),
    with_space=st.booleans(),
    count=st.integers(0, 4),
    lookback=st.integers(0, 3),
    seed=st.integers(0, 1000),
    program=programs,
)
def test_programs_of_buffers(
    space: Any, with_space: bool, count: int, lookback: int, seed: int, program: list[tuple[Any, ...]]
) -> None:
    Machine(space, with_space, count, lookback, seed).run(program)


BOX = gym.spaces.Box(-2, 3, (2,), np.float32)
NESTED = gym.spaces.Dict({"a": BOX, "b": gym.spaces.Discrete(4)})
EXAMPLES = {
    "arrays and a buffer": ("buffer-arrays", BOX, [("finalize",), ("concat", 2, 1)]),
    "a sum of arrays": ("buffer-arrays", BOX, [("finalize",), ("add", 2, 1, False)]),
    "arrays and a list of nested rows": ("buffer-arrays", NESTED, [("finalize",), ("extend", 2, False)]),
    "a number and rows of several": ("buffer-sums", BOX, [("add number", 1)]),
    "rows of a wider type that are gone": (
        "column-types",
        gym.spaces.Box(0, 255, (), np.uint8),
        [("add number", 1), ("pop", 0), ("pop", 0), ("pop", 0), ("pop", 0), ("append",)],
    ),
    "a lookback of more rows than are left": ("buffer-pop", BOX, [("pop", -1), ("pop", 0), ("pop", 0), ("append",)]),
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_each_difference(example: str) -> None:
    identity, space, program = EXAMPLES[example]
    before = differences_met.copy()
    Machine(space, False, 4, 2, 0).run(program)
    assert identity in differences_met - before


def test_what_pop_gives() -> None:
    buffers = [library.InfiniteLookbackBuffer([1.0, 2.0]) for library in BOTH]
    assert [buffer.pop() for buffer in buffers] == [None, 2.0]


def test_every_public_name_and_argument_is_there() -> None:
    theirs, ours = (library.InfiniteLookbackBuffer for library in BOTH)
    assert {name for name in dir(theirs([])) if name[0] != "_"} - {"space_struct"} <= set(dir(ours([])))
    for name, method in inspect.getmembers(theirs, inspect.isfunction):
        if name[0] != "_" or name in ("__init__", "__getitem__", "__setitem__", "__add__"):
            wanted = [p for p in inspect.signature(method).parameters if p[0] != "_"]
            found = list(inspect.signature(getattr(ours, name)).parameters)
            assert len(found) >= len(wanted), name
            if name[0] != "_":
                assert set(wanted) - {"self"} <= set(found), name
