"""Random programs of operations on one buffer of both libraries, beside a plain list of its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import strategies as st

from oracle.cases import differences_met, random_cases
from oracle.compare import Mismatch, Outcome, difference, each, mismatches, outcome, settle, stack, unstack
from oracle.episodes import leaf_spaces, rows, spaces
from oracle.libraries import BOTH, RLLIB
from oracle.reads import compare_read
from oracle.twins import held_rows, rows_of

small = st.integers(-5, 5)
bounds = st.one_of(st.none(), small)
indices = st.one_of(st.none(), small, st.builds(slice, bounds, bounds), st.lists(small, max_size=3))
OPERATIONS = st.one_of(
    st.tuples(st.just("append")),
    st.tuples(st.just("append")),
    st.tuples(st.just("extend"), st.integers(0, 3), st.booleans()),
    st.tuples(st.just("concat"), st.integers(0, 3), st.integers(0, 2)),
    st.tuples(st.just("add"), st.integers(0, 3), st.integers(0, 2), st.booleans()),
    st.tuples(st.just("add number"), st.sampled_from([1, -2, 0.5])),
    st.tuples(st.just("pop"), small),
    st.tuples(st.just("set"), small, st.booleans()),
    st.tuples(st.just("get"), indices, st.booleans(), st.booleans()),
    st.tuples(st.just("state")),
    st.tuples(st.just("finalize")),
)
programs = st.lists(OPERATIONS, max_size=12)


@dataclass(frozen=True)
class Done:
    """What was done to both buffers, of which ours holds the rows that it should; whether RLlib's held arrays."""

    name: str
    arrays: bool


@difference("buffer-arrays", Done)
def arrays_that_take_no_rows(done: Done, mismatch: Mismatch) -> bool:
    """RLlib's arrays have no `concat` and no `+`, take no lists of nested rows, and refuse or cast others."""
    return done.arrays and done.name in ("append", "extend", "concat", "add", "add number", "set")


@difference("buffer-sums", Done)
def numbers_of_python_only(done: Done, mismatch: Mismatch) -> bool:
    """RLlib adds to rows that are Python numbers; here to every number."""
    return done.name == "add number"


@difference("buffer-pop", Done)
def what_is_left_of_the_lookback(done: Done, mismatch: Mismatch) -> bool:
    """RLlib's `pop` gives nothing back, and leaves a lookback of more rows than there are."""
    return done.name == "pop"


@difference("column-types", Done)
def rows_of_a_wider_type_that_are_gone(done: Done, mismatch: Mismatch) -> bool:
    """A list has the type of the rows that are in it now, a column one that also holds those it had."""
    return not done.arrays and mismatch.kind == "dtype" and np.array_equal(mismatch.theirs, mismatch.ours)


@difference("column-types", Done)
def rows_cut_down_to_the_type_of_the_first(done: Done, mismatch: Mismatch) -> bool:
    """RLlib's arrays have the type of the first row, so that fractions behind whole numbers are cut off."""
    becomes_arrays = done.name == "finalize" and not done.arrays and mismatch.kind == "dtype"
    return becomes_arrays and np.array_equal(mismatch.theirs, mismatch.ours.astype(mismatch.theirs.dtype))


def held(buffer: Any) -> tuple[Any, int]:
    """All rows stacked, None if there are none, and how many are lookback."""
    return held_rows(buffer), buffer.lookback


def sum_of(leaf: Any, number: float) -> Any:
    """An array with a number added; whole ones as 64-bit integers."""
    return (leaf.astype(np.int64) if leaf.dtype.kind in "bui" else leaf) + number


class Machine:
    """Runs a program on a buffer of each library."""

    def __init__(self, space: gym.Space[Any], with_space: bool, count: int, lookback: int, seed: int) -> None:
        self.space, self.rng = space, np.random.default_rng(seed)
        self.rows = rows(space, self.rng, count)
        self.lookback = min(lookback, count)
        given = {"lookback": lookback, "space": space if with_space else None}
        self.theirs, self.ours = (library.InfiniteLookbackBuffer(list(self.rows), **given) for library in BOTH)
        self.check(Done("made", False))

    def run(self, program: list[tuple[Any, ...]]) -> None:
        for name, *arguments in program:
            getattr(self, name.replace(" ", "_"))(*arguments)

    def do(self, name: str, call: Any) -> None:
        """Do something to both that changes them; the rows that should be there are in `self.rows` already."""
        done = Done(name, self.theirs.finalized)
        theirs, ours = (outcome(lambda b=buffer, i=i: call(b, i)) for i, buffer in enumerate((self.theirs, self.ours)))
        settle(*(Outcome(None, found.error) for found in (theirs, ours)), done)
        self.check(done)

    def check(self, done: Done) -> None:
        """Settle what both hold; where a listed difference put them apart, make RLlib's like ours again."""
        rows_, lookback = held(self.ours)
        right = [
            each(lambda leaf: leaf.astype(np.float64), own) for own in ((stack(self.rows), rows_) if self.rows else ())
        ]
        assert (not mismatches(*right) if self.rows else rows_ is None) and lookback == self.lookback, done
        if not settle(outcome(lambda: held(self.theirs)), Outcome((rows_, lookback)), done):
            self.rows = rows_of(self.ours)
            arguments = {"lookback": self.lookback, "space": self.theirs.space}
            self.theirs = RLLIB.InfiniteLookbackBuffer(list(self.rows), **arguments)
            if done.arrays and self.rows:
                self.theirs.finalize()

    # -- operations ------------------------------------------------------------------------------

    def append(self) -> None:
        (row,) = rows(self.space, self.rng, 1)
        self.rows = [*self.rows, row]
        self.do("append", lambda buffer, i: buffer.append(row))

    def extend(self, count: int, stacked: bool) -> None:
        more = rows(self.space, self.rng, count)
        self.rows = [*self.rows, *more]
        whole = stacked and self.theirs.finalized and count
        self.do("extend", lambda buffer, i: buffer.extend(stack(more) if whole else list(more)))

    def others(self, count: int, lookback: int) -> list[Any]:
        """A buffer of each library with some rows behind a lookback, those put behind the rows that there should be."""
        more = rows(self.space, self.rng, count + lookback)
        self.rows = [*self.rows, *more[lookback:]]
        return [library.InfiniteLookbackBuffer(list(more), lookback=lookback) for library in BOTH]

    def concat(self, count: int, lookback: int) -> None:
        others = self.others(count, lookback)
        self.do("concat", lambda buffer, i: buffer.concat(others[i]))

    def add(self, count: int, lookback: int, plain: bool) -> None:
        others = self.others(count, 0 if plain else lookback)
        self.sums("add", [list(self.rows[len(self.rows) - count :])] * 2 if plain else others)

    def add_number(self, number: float) -> None:
        if self.rows:
            self.rows = unstack(each(lambda leaf: sum_of(leaf, number), stack(self.rows)))
        self.sums("add number", [number] * 2)

    def sums(self, name: str, others: list[Any]) -> None:
        """Go on with the sums, where RLlib has one."""
        done = Done(name, self.theirs.finalized)
        theirs = outcome(lambda: self.theirs + others[0])
        self.ours = self.ours + others[1]
        self.theirs = self.theirs if theirs.error else theirs.value
        settle(Outcome(None, theirs.error), Outcome(), done)
        self.check(done)

    def pop(self, index: int) -> None:
        total = len(self.rows)
        if -total <= index < total:
            self.rows = [row for i, row in enumerate(self.rows) if i != index % total]
            self.lookback = min(self.lookback, total - 1)
        self.do("pop", lambda buffer, i: buffer.pop(index))

    def set(self, index: int, brackets: bool) -> None:
        (row,) = rows(self.space, self.rng, 1)
        total = len(self.rows)
        at = self.lookback + index if index >= 0 else total + index
        if 0 <= at < total:
            self.rows = [row if i == at else own for i, own in enumerate(self.rows)]

        def call(buffer: Any, i: int) -> None:
            if brackets:
                buffer[index] = row
            else:
                buffer.set(row, at_indices=index)

        self.do("set", call)

    def get(self, wanted: Any, neg_index_as_lookback: bool, brackets: bool) -> None:
        both, backwards = (self.theirs, self.ours), neg_index_as_lookback and not brackets
        call = (lambda side: both[side][wanted]) if brackets and wanted is not None else None
        compare_read(*both, wanted, call, neg_index_as_lookback=backwards)

    def state(self) -> None:
        self.theirs, self.ours = (type(own).from_state(own.get_state()) for own in (self.theirs, self.ours))
        self.check(Done("state", self.theirs.finalized))

    def finalize(self) -> None:
        if self.rows:
            self.do("finalize", lambda buffer, i: buffer.finalize())


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
    "fractions behind a whole number": (
        "column-types",
        gym.spaces.MultiDiscrete([2, 4]),
        [("add number", 0.5), ("set", -4, False), ("finalize",)],
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
