"""Getters of several agents: ours give what the slow model says, RLlib's that or what the page of differences lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st

from oracle.agent_reads import AgentRead, reads
from oracle.agents import SPACES, Schedule, by_agent, of_kind, schedules, scripted
from oracle.cases import differences_met, random_cases
from oracle.columns import first_of
from oracle.compare import outcome, settle
from oracle.libraries import EPIBATCH
from oracle.rllib_agent_reads import AgentReading, whole
from oracle.rllib_episode import built
from oracle.slow_episode import SlowEpisode


@dataclass(frozen=True)
class Case:
    """An episode in which something is read.

    Attributes:
        kind: of observations.
        cut: at which env step it is cut before the rest is added, and with which lookback; None: not at all.
        arrays: whether `to_numpy()` is called on RLlib's.
    """

    schedule: Schedule
    kind: str = "vector"
    cut: tuple[int, int] | None = None
    arrays: bool = False

    def play(self) -> tuple[Any, SlowEpisode]:
        """Ours, and the slow model."""
        schedule = of_kind(self.schedule, self.kind)
        at, lookback = self.cut or (None, 0)
        ours, slow = schedule.play(EPIBATCH.MultiAgentEpisode, at, **by_agent(self.kind)), SlowEpisode(schedule, at)
        if at is not None and not slow.done:
            ours, slow = ours.cut(lookback), slow.cut(lookback)
            for step in schedule.steps[at:]:
                ours.add_env_step(**step)
                slow.step(step)
        return ours, slow


cuts = st.one_of(st.none(), st.tuples(st.integers(1, 6), st.integers(0, 3)))
cases = st.builds(Case, schedules(length=8), st.sampled_from([*SPACES]), cuts, st.booleans())


def hold(case: Case, read: AgentRead) -> None:
    """The call on ours gives bit by bit what the model says, and on RLlib's the same or what is listed."""
    ours, slow = case.play()
    reading = AgentReading(slow, read, SPACES[case.kind], case.arrays)
    expected, found = reading.expected(frozenset()), outcome(lambda: read.of(ours))
    assert found.kind == expected.kind, (read, expected, found)
    if not found.kind:
        assert not first_of()(expected.value, found.value), (read, expected, found)
    theirs = built(slow, SPACES[case.kind], case.arrays)
    settle(outcome(lambda: read.of(theirs)), found, reading, whole)


@random_cases(case=cases, read=reads, more=reads)
def test_getters(case: Case, read: AgentRead, more: AgentRead) -> None:
    for one in (read, more):
        hold(case, one)


BOTH_STEP = {"a": "oar", "b": "oar"}
OPEN = scripted(BOTH_STEP, {"a": "ar", "b": "oar"})  # a has acted and not observed since
FIRST = scripted({"a": "ar", "b": "oar"})  # and it was its first action
WAITING = scripted(BOTH_STEP, BOTH_STEP, {"a": "r", "b": "oar"}, {"b": "oar"})
RETURNED = scripted({"a": "oart", "b": "oar"}, {"a": "o", "b": "oar"})
EXAMPLES = {
    "agent-ids": (Case(OPEN), AgentRead("rewards", agent_ids=[])),
    "no-agents-read": (Case(OPEN), AgentRead("rewards", 9, agent_ids="d")),
    "one-in-a-list": (Case(OPEN), AgentRead("observations", 0, return_list=True)),
    "agent-steps-open": (Case(OPEN), AgentRead("actions", env_steps=False)),
    "agents-without-rows": (Case(OPEN, arrays=True), AgentRead("actions", slice(1, 1), "b", env_steps=False)),
    "filled-infos": (Case(OPEN, arrays=True), AgentRead("infos", fill=0)),
    "all-outputs": (Case(OPEN), AgentRead("extra_model_outputs")),
    "agents-return": (Case(RETURNED), AgentRead("observations")),
    "pending-rewards-shown": (Case(WAITING), AgentRead("rewards", -2)),
    "O17": (Case(FIRST), AgentRead("extra_model_outputs", key="logp")),
    "O21": (Case(FIRST, arrays=True), AgentRead("observations", fill=0)),
    "O53": (Case(WAITING, cut=(2, 0)), AgentRead("actions")),
    "O54": (Case(OPEN, arrays=True), AgentRead("extra_model_outputs", [0, 1], "a", key="state_out")),
}


SLICES = [slice(1, 1), slice(None, None, -1), slice(-9, 2), slice(-2, 9)]


@pytest.mark.parametrize("arrays", [False, True])
@pytest.mark.parametrize("fill", [None, 7])
@pytest.mark.parametrize("wanted", SLICES, ids=str)
@pytest.mark.parametrize("name", ["actions", "rewards", "logp", "state_out"])
def test_slices_by_agent_steps_where_something_waits(name: str, wanted: slice, fill: Any, arrays: bool) -> None:
    key = name if name in ("logp", "state_out") else None
    read = AgentRead("extra_model_outputs" if key else name, wanted, env_steps=False, fill=fill, key=key)
    for schedule in (OPEN, FIRST, WAITING, scripted({"b": "oar"})):
        hold(Case(schedule, arrays=arrays), read)


@pytest.mark.parametrize("as_list", [False, True])
def test_what_waits_in_a_chunk_without_steps(as_list: bool) -> None:
    """Both `O53` and `pending-rewards-shown`, of which lists of env steps have the second only."""
    waits = scripted({}, {"a": "oar"}, {"a": "r"}, reset="a")
    hold(Case(waits, cut=(2, 0)), AgentRead("rewards", return_list=as_list))


@pytest.mark.parametrize("identity", EXAMPLES)
def test_each_difference(identity: str) -> None:
    before = differences_met.copy()
    hold(*EXAMPLES[identity])
    assert identity in differences_met - before
