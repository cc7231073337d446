"""Random programs of several operations on the same episode of both libraries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.episodes import SingleAgentEpisode
from oracle.cases import SETTINGS, random_cases
from oracle.compare import first_of, outcome, settle
from oracle.episode_operations import ENDS, Step, cut, join, reset, round_trip, slice_, step
from oracle.reads import Read
from oracle.twins import Case, Twins, buffer_of, cases
from oracle.writes import Write, write

small = st.integers(-6, 6)
bounds = st.one_of(st.none(), small)
slices = st.builds(slice, bounds, bounds, st.sampled_from([None, None, None, 2, -1]))
indices = st.one_of(st.none(), small, slices, st.lists(small, max_size=3))
OPERATIONS = st.one_of(
    st.tuples(st.just("step"), st.builds(Step, st.integers(0, 9), st.sampled_from(ENDS))),
    st.tuples(st.just("step"), st.builds(Step, st.integers(0, 9))),
    st.tuples(st.just("step"), st.builds(Step, st.integers(0, 9), extras=st.sampled_from(["late", "missing"]))),
    st.tuples(st.just("reset")),
    st.tuples(st.just("get"), st.integers(0, 5), indices, st.booleans(), st.sampled_from([None, 0, 1.0])),
    st.tuples(st.just("set"), st.builds(Write, st.integers(0, 5), indices, st.booleans(), seed=st.integers(0, 9))),
    st.tuples(st.just("cut"), st.integers(0, 4)),
    st.tuples(st.just("cut and join"), st.integers(0, 4), st.integers(0, 2)),
    st.tuples(st.just("slice"), slices, st.one_of(st.none(), st.integers(0, 4))),
    st.tuples(st.just("rewrite newest"), st.integers(0, 9)),
    st.tuples(st.just("state")),
    st.tuples(st.just("to_numpy")),
    st.tuples(st.just("validate")),
)
programs = st.lists(OPERATIONS, max_size=25)


@dataclass
class Machine:
    """Runs a program, one operation after the other."""

    case: Case
    twins: Twins = field(init=False)

    def __post_init__(self) -> None:
        self.twins = Twins(*self.case.build(), self.case.arrays)

    def run(self, program: list[tuple[Any, ...]]) -> None:
        for name, *arguments in program:
            getattr(self, name.replace(" ", "_"))(*arguments)

    def step(self, what: Step) -> None:
        step(self.twins, self.case.chunk, what)

    def reset(self) -> None:
        reset(self.twins, self.case.chunk)

    def get(self, column: int, indices: Any, neg_index_as_lookback: bool, fill: Any) -> None:
        """Read a column of both as the buffers' own `get` does."""
        twins = self.twins
        names = ["observations", "infos", "actions", "rewards", *twins.ours.extra_model_outputs]
        name = names[column % len(names)]
        theirs, ours = (buffer_of(episode, name) for episode in (twins.theirs, twins.ours))
        typed = ours.len_incl_lookback() or getattr(ours, "_leaves", None) is not None  # rows, or none but their type
        held = ours.data if typed else None
        listed = theirs.data if isinstance(theirs.data, list) else [None] * theirs.len_incl_lookback()
        columns = None if name == "infos" or held is None else held
        spaces = {"space": theirs.space, "our_space": ours.space, "objects": name == "infos"}
        options = {"neg_index_as_lookback": neg_index_as_lookback, "fill": fill}
        read = Read(listed, columns, ours.lookback, arrays=theirs.finalized, indices=indices, **options, **spaces)
        found = (outcome(lambda b=buffer: b.get(indices, **options)) for buffer in (theirs, ours))
        settle(*found, read, first_of())

    def set(self, what: Write) -> None:
        write(self.twins, what)

    def cut(self, k: int) -> None:
        cut(self.twins, k)

    def cut_and_join(self, k: int, steps: int) -> None:
        """Cut, let the new chunk go on for a while, and put it back behind the old one."""
        before = self.twins
        if before.ours.is_done:
            return
        after = Twins(before.theirs, before.ours, before.arrays)
        cut(after, k)
        for number in range(steps):
            step(after, self.case.chunk, Step(number))
        join(before, (after.theirs, after.ours), "right")

    def slice(self, wanted: slice, lookback: int | None) -> None:
        slice_(self.twins, wanted, lookback)

    def rewrite_newest(self, seed: int) -> None:
        write(self.twins, Write(0, -1, seed=seed))

    def state(self) -> None:
        round_trip(self.twins)

    def to_numpy(self) -> None:
        twins = self.twins
        if twins.theirs.rewards.data is not None:
            twins.do("to_numpy", lambda e: e.to_numpy())
            twins.arrays = True

    def validate(self) -> None:
        self.twins.do("validate", lambda e: e.validate())


@random_cases(case=cases(length=3), program=programs)
def test_programs(case: Case, program: list[tuple[Any, ...]]) -> None:
    Machine(case).run(program)


@pytest.mark.slow
def test_a_planted_fault_is_found_and_shrunk_to_a_short_program(monkeypatch):
    """A cut that keeps one step of lookback too few fails in the end with nothing but a cut."""
    cut = SingleAgentEpisode.cut
    monkeypatch.setattr(
        SingleAgentEpisode, "cut", lambda self, len_lookback_buffer: cut(self, max(len_lookback_buffer - 1, 0))
    )
    failing: list[list[tuple[Any, ...]]] = []

    @settings(SETTINGS, max_examples=1000, print_blob=False, report_multiple_bugs=False)
    @given(case=cases(length=3), program=programs)
    def find(case: Case, program: list[tuple[Any, ...]]) -> None:
        try:
            Machine(case).run(program)
        except AssertionError:
            failing.append(program)
            raise

    with pytest.raises(AssertionError, match="not listed"):
        find()
    assert max(map(len, failing)) > 3
    assert len(failing[-1]) == 1 and failing[-1][0][0] in ("cut", "cut and join")
