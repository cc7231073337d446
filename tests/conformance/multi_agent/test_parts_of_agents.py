"""Programs of several operations on an episode of several agents: after each it holds what the slow model says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st

from oracle.agents import Schedule, schedules
from oracle.behaviours import holds
from oracle.cases import random_cases
from oracle.compare import mismatches
from oracle.libraries import EPIBATCH
from oracle.slow_episode import SlowEpisode, content, slow_content

bounds = st.one_of(st.none(), st.integers(-9, 9))
lookbacks = st.integers(0, 3)
OPERATIONS = st.one_of(
    st.tuples(st.just("go on"), st.integers(1, 4)),
    st.tuples(st.just("go on"), st.integers(1, 4)),
    st.tuples(st.just("cut"), lookbacks),
    st.tuples(st.just("cut and join"), lookbacks, st.integers(0, 3)),
    st.tuples(st.just("slice"), bounds, bounds, st.one_of(st.none(), lookbacks)),
    st.tuples(st.just("slice and join"), st.integers(0, 9), lookbacks),
    st.tuples(st.just("state")),
    st.tuples(st.just("to numpy")),
)
programs = st.lists(OPERATIONS, max_size=10)


class Machine:
    """Runs a program, and compares with the model after every operation.

    Attributes:
        frozen: a slice has left out the newest steps, so that what the schedule goes on with does not follow.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.ours, self.slow = schedule.play(EPIBATCH.MultiAgentEpisode, 0), SlowEpisode(schedule, 0)
        self.ours.custom_data["kept"] = self.slow.custom["kept"] = [1]
        self.frozen = False
        self.done: list[tuple[Any, ...]] = []

    def run(self, program: list[tuple[Any, ...]]) -> None:
        for name, *arguments in program:
            self.done.append((name, *arguments))
            getattr(self, name.replace(" ", "_"))(*arguments)
            self.hold(self.ours, self.slow)

    def hold(self, ours: Any, slow: SlowEpisode) -> None:
        found = mismatches(slow_content(slow), content(ours))
        assert not found, f"after {self.done}:\n" + "\n".join(map(str, found[:3]))

    def add(self, ours: Any, slow: SlowEpisode, count: int) -> None:
        steps = [] if self.frozen or slow.done else self.schedule.steps[slow.t : slow.t + count]
        for step in steps:
            ours.add_env_step(**step)
            slow.step(step)

    def go_on(self, count: int) -> None:
        self.add(self.ours, self.slow, count)

    def cut(self, lookback: int) -> None:
        if self.slow.done:
            with pytest.raises(AssertionError, match="running episode"):
                self.ours.cut(lookback)
        else:
            self.ours, self.slow = self.ours.cut(lookback), self.slow.cut(lookback)

    def cut_and_join(self, lookback: int, count: int) -> None:
        if not self.slow.done:
            ours, slow = self.ours.cut(lookback), self.slow.cut(lookback)
            self.hold(ours, slow)
            self.add(ours, slow, count)
            ours.custom_data["new"] = slow.custom["new"] = count
            self.ours.concat_episode(ours)
            self.slow.join(slow)
            self.hold(ours, slow)

    def slice(self, start: Any, stop: Any, lookback: Any) -> None:
        low, high, _ = slice(start, stop).indices(self.slow.length)
        high = max(low, high)
        before = self.ours
        self.ours = before.slice(slice(start, stop), len_lookback_buffer=lookback)
        self.hold(before, self.slow)
        self.frozen = self.frozen or high < self.slow.length
        self.slow = self.slow.sliced(low, high, lookback)

    def slice_and_join(self, at: int, lookback: int) -> None:
        at = min(at, self.slow.length)
        ours = [self.ours[:at], self.ours.slice(slice(at, None), len_lookback_buffer=lookback)]
        slow = [self.slow.sliced(0, at, None), self.slow.sliced(at, self.slow.length, lookback)]
        for part, its in zip(ours, slow):
            self.hold(part, its)
        if not slow[0].done:  # what follows the end is empty
            ours[0].concat_episode(ours[1])
            slow[0].join(slow[1])
            self.ours, self.slow = ours[0], slow[0]

    def state(self) -> None:
        self.ours = EPIBATCH.MultiAgentEpisode.from_state(self.ours.get_state())

    def to_numpy(self) -> None:
        assert self.ours.to_numpy() is self.ours
        assert self.ours.is_numpy


@holds("C26", "C30")
@random_cases(schedule=schedules(length=12), program=programs)
def test_programs(schedule: Schedule, program: list[tuple[Any, ...]]) -> None:
    Machine(schedule).run(program)
