"""Env steps, cuts, joins, slices and states of episodes of several agents: ours beside a slow model and beside RLlib's.

Ours is what the slow model says of any schedule. RLlib's loses data in many of them, each by a row of the page of
differences with a probe of its own; so it is compared in those that it holds: `mild` schedules, cut and sliced at
their `level` env steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from oracle.agents import Schedule, empty_step, schedules, scripted
from oracle.cases import random_cases
from oracle.compare import mismatches, outcome, unstack
from oracle.libraries import BOTH, EPIBATCH, RLLIB
from oracle.probes import holds, in_lists
from oracle.slow_episode import COLUMNS, SlowEpisode, content, facts, slow_content

any_schedule = st.one_of(schedules(), schedules(mild=True))
mild = schedules(length=8, mild=True)
numbers = st.integers(0, 99)
lookbacks = st.integers(0, 3)


def told(episode: Any, *left_out: str) -> dict[str, Any]:
    """What an episode of either library holds and says of itself, but for some of it."""
    singles = episode.agent_episodes.items()
    found = {
        **facts(episode),
        "rows": {agent: _rows(single) for agent, single in singles},
        "infos": {agent: list(single.infos.data) for agent, single in singles},
        "starts": {agent: [single.t_started, single.observations.lookback] for agent, single in singles},
        "flags": {agent: [single.is_terminated, single.is_truncated] for agent, single in singles},
    }
    return {name: own for name, own in found.items() if name not in left_out}


def _rows(single: Any) -> dict[str, Any]:
    columns = {**{name: getattr(single, name) for name in COLUMNS}, **single.extra_model_outputs}
    rows = {key: own.data for key, own in columns.items() if own.len_incl_lookback()}
    return {key: in_lists(own if isinstance(own, list) else unstack(own)) for key, own in rows.items()}


def assert_alike(theirs: Any, ours: Any, *left_out: str) -> None:
    found = mismatches(told(theirs, *left_out), told(ours, *left_out))
    assert not found, "\n".join(map(str, found[:3]))


def assert_is(ours: Any, slow: SlowEpisode, done: Any = "") -> None:
    """Ours is what the model says."""
    found = mismatches(slow_content(slow), content(ours))
    assert not found, f"after {done}:\n" + "\n".join(map(str, found[:3]))


# -- env steps ------------------------------------------------------------------------------------


@holds("C19", "C20", "C22", "C25", "C26", "C28", "C29", "C31")
@random_cases(schedule=any_schedule)
def test_random_schedules(schedule: Schedule) -> None:
    theirs, ours = (schedule.play(library.MultiAgentEpisode, 0) for library in BOTH)
    for at, step in enumerate(schedule.steps, 1):
        ours.add_env_step(**step)
        assert_is(ours, SlowEpisode(schedule, at))
        if schedule.mild:
            theirs.add_env_step(**step)
            assert_alike(theirs, ours)


WRONG = {  # state of the agent -> what it must not be given; in brackets if RLlib takes it (`refused-env-steps`)
    "unborn": ["(a)", "ao"],
    "ready": ["o", "ao", "ax"],
    "pending": ["a", "ao", "x"],
    "dead": ["a", "r", "(i)", "oa"],
}
VALUES = {"o": ("observations", np.zeros(2, np.float32)), "a": ("actions", 0), "r": ("rewards", 0.0)}
VALUES.update(i=("infos", {}), x=("truncateds", True))


@holds("C22", "C23", "C24")
@random_cases(schedule=any_schedule, until=st.integers(0, 10), agent=st.sampled_from("abc"), number=st.integers(0, 11))
def test_wrong_steps(schedule: Schedule, until: int, agent: str, number: int) -> None:
    """What ours refuses RLlib refuses too, where it holds the episode, or it is listed that it does not."""
    slow = SlowEpisode(schedule, until)
    if slow.done:
        return
    state = "dead" if agent in slow.lives else "unborn"
    if slow.living(agent):
        state = "pending" if agent in slow.open else "ready"
    move, step = WRONG[state][number % len(WRONG[state])], empty_step()
    for letter in move.strip("()"):
        name, value = VALUES[letter]
        step[name][agent] = value
    with pytest.raises(AssertionError, match=f"agent '{agent}' at env step"):
        schedule.play(EPIBATCH.MultiAgentEpisode, until).add_env_step(**step)
    if schedule.mild:
        error = outcome(lambda: schedule.play(RLLIB.MultiAgentEpisode, until).add_env_step(**step)).error
        assert error is not None or move.startswith("("), (state, move)


# -- parts ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A mild schedule, and the level env step up to which it is played; others are added afterwards."""

    schedule: Schedule
    number: int

    @property
    def at(self) -> int:
        return self.schedule.level[self.number % len(self.schedule.level)]

    def play(self) -> list[Any]:
        """Both libraries' episodes."""
        episodes = [self.schedule.play(library.MultiAgentEpisode, self.at) for library in BOTH]
        for episode in episodes:
            episode.custom_data["kept"] = [1]
        return episodes

    def go_on(self, episodes: list[Any], count: int) -> None:
        for step in self.schedule.steps[self.at : self.at + count]:
            for episode in episodes:
                episode.add_env_step(**step)

    def newcomers(self, count: int) -> bool:
        """Whether agents appear in the env steps after the cut."""
        born = {a for step in [self.schedule.reset, *self.schedule.steps[: self.at]] for a in step["observations"]}
        return any(step["observations"].keys() - born for step in self.schedule.steps[self.at : self.at + count])


cases = st.builds(Case, mild, numbers)


def cut(case: Case, k: int, count: int) -> tuple[list[Any], list[Any]]:
    """Both episodes, and the chunks after their cut with some steps; RLlib's maps of newcomers have holes (`O53`)."""
    whole = case.play()
    chunks = [episode.cut(min(k, case.at)) for episode in whole]
    assert_alike(*chunks)
    case.go_on(chunks, count)
    assert_alike(*chunks, *(["maps"] if case.newcomers(count) else []))
    return whole, chunks


@random_cases(case=cases, k=lookbacks, count=st.integers(0, 5))
def test_join(case: Case, k: int, count: int) -> None:
    whole, chunks = cut(case, k, count)
    if not all(map(len, whole[0].agent_episodes.values())):
        return  # RLlib does not take model outputs of an agent that had none (`O55`)
    for left, right in zip(whole, chunks):
        left.concat_episode(right)
    assert_alike(*whole, *(["maps"] if case.newcomers(count) else []))


@random_cases(case=cases)
def test_facts_and_states(case: Case) -> None:
    """What both say of an episode without changing it, of one from its state, and of a second reset."""
    episodes = case.play()
    for episode in episodes:
        episode.validate()
        episode.to_numpy()
    assert_alike(*episodes)
    assert episodes[0].get_truncateds() == episodes[1].get_truncateds()
    assert_alike(*(type(episode).from_state(episode.get_state()) for episode in case.play()))
    for episode in episodes:
        with pytest.raises(AssertionError):
            episode.add_env_reset(**case.schedule.reset)


@random_cases(case=cases, low=numbers, k=lookbacks)
def test_slice(case: Case, low: int, k: int) -> None:
    """RLlib's slices lose infos and custom data (`O18`)."""
    level = [t for t in case.schedule.level if t <= case.at]
    start = level[low % len(level)]
    seen = {a for step in [case.schedule.reset, *case.schedule.steps[:start]] for a in step["observations"]}
    if any(step["observations"].keys() - seen for step in case.schedule.steps[: case.at]):
        return
    parts = [episode.slice(slice(start, case.at), len_lookback_buffer=k) for episode in case.play()]
    assert_alike(*parts, "infos", "custom data")


# -- programs --------------------------------------------------------------------------------------

bounds = st.one_of(st.none(), st.integers(-9, 9))
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
            assert_is(self.ours, self.slow, self.done)

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
            assert_is(ours, slow, self.done)
            self.add(ours, slow, count)
            ours.custom_data["new"] = slow.custom["new"] = count
            self.ours.concat_episode(ours)
            self.slow.join(slow)
            assert_is(ours, slow, self.done)

    def slice(self, start: Any, stop: Any, lookback: Any) -> None:
        low, high, _ = slice(start, stop).indices(self.slow.length)
        high = max(low, high)
        before = self.ours
        self.ours = before.slice(slice(start, stop), len_lookback_buffer=lookback)
        assert_is(before, self.slow, self.done)
        self.frozen = self.frozen or high < self.slow.length
        self.slow = self.slow.sliced(low, high, lookback)

    def slice_and_join(self, at: int, lookback: int) -> None:
        at = min(at, self.slow.length)
        ours = [self.ours[:at], self.ours.slice(slice(at, None), len_lookback_buffer=lookback)]
        slow = [self.slow.sliced(0, at, None), self.slow.sliced(at, self.slow.length, lookback)]
        for part, its in zip(ours, slow):
            assert_is(part, its, self.done)
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


# -- listed differences ---------------------------------------------------------------------------

STEP = {"a": "oar", "b": "oar"}
OPEN = scripted(STEP, {"a": "ar", "b": "oar"}, {"a": "or", "b": "oar"})


def joined(schedule: Schedule, at: int) -> Callable[[Any], Any]:
    def run(cls: Any) -> Any:
        left = schedule.play(cls, at)
        right = left.cut(0)
        for step in schedule.steps[at:]:
            right.add_env_step(**step)
        left.concat_episode(right)
        return left

    return run


EXAMPLES = {
    "cut-ended": lambda cls: scripted({"a": "oart", "b": "oar"}).play(cls).cut(1),
    "cut-lookback": lambda cls: OPEN.play(cls, 2).cut(3),
    "agent-slices": lambda cls: OPEN.play(cls, 2).slice(slice(2, 2), len_lookback_buffer=0),
    "ended-both-ways": joined(scripted(STEP, {"a": "oartx", "b": "oar"}), 1),
    "agents-return": joined(scripted({"a": "oart", "b": "oar"}, {"a": "o", "b": "oar"}), 1),
    "born-ended": lambda cls: scripted({"a": "oar", "b": "oar", "c": "ot"}).play(cls),
    "waiting-infos": lambda cls: scripted({"a": "ari", "b": "oar"}, {"a": "or", "b": "oar"}).play(cls),
    "state-no-steps": lambda cls: cls.from_state(scripted(STEP).play(cls).cut(1).get_state()),
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_each_difference(example: str) -> None:
    """RLlib's episode is another one, or the call fails there."""
    theirs, ours = (outcome(lambda cls=library.MultiAgentEpisode: told(EXAMPLES[example](cls))) for library in BOTH)
    assert ours.error is None
    assert theirs.error is not None or mismatches(theirs.value, ours.value)
