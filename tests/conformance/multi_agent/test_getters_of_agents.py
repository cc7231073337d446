"""Getters of several agents: ours give what the slow model says, and RLlib's the same where no difference is listed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st

from oracle.agent_reads import AgentRead, SlowReader, reads, usual_reads, values
from oracle.agents import SPACES, Schedule, by_agent, of_kind, schedules, scripted
from oracle.cases import random_cases
from oracle.compare import Outcome, first_of, outcome
from oracle.libraries import EPIBATCH, RLLIB
from oracle.probes import holds
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

    def play(self, cls: Any, **keywords: Any) -> Any:
        """The episode of a library, or the slow model's."""
        schedule = of_kind(self.schedule, self.kind)
        at, lookback = self.cut or (None, 0)
        slow = cls is SlowEpisode
        episode = cls(schedule, at) if slow else schedule.play(cls, at, **by_agent(self.kind))
        if at is not None and not (episode.done if slow else episode.is_done):
            episode = episode.cut(lookback)
            for step in schedule.steps[at:]:
                episode.step(step) if slow else episode.add_env_step(**step)
        return episode

    def read(self, read: AgentRead) -> tuple[Outcome, Outcome]:
        """What RLlib's getter gives and ours, which is bit by bit what the model says."""
        ours, slow = self.play(EPIBATCH.MultiAgentEpisode), self.play(SlowEpisode)
        expected = outcome(SlowReader(slow, read, SPACES[self.kind]).get)
        found = outcome(lambda: read.of(ours))
        assert found.kind == expected.kind, (read, expected, found)
        assert found.kind or not first_of()(expected.value, found.value), (read, expected, found)

        def of_rllib() -> Any:
            theirs = self.play(RLLIB.MultiAgentEpisode)
            return read.of(theirs.to_numpy() if self.arrays else theirs)

        return outcome(of_rllib), found


cuts = st.one_of(st.none(), st.tuples(st.integers(1, 6), st.integers(0, 3)))
cases = st.builds(Case, schedules(length=8), st.sampled_from([*SPACES]), cuts, st.booleans())
mild = st.builds(Case, schedules(length=8, mild=True), st.sampled_from([*SPACES]), st.none(), st.booleans())


def alike(theirs: Outcome, ours: Outcome) -> bool:
    return theirs.kind == ours.kind and bool(theirs.kind or values(theirs.value) == values(ours.value))


@holds("C21")
@random_cases(case=cases, read=reads, easy=mild, usual=usual_reads)
def test_getters(case: Case, read: AgentRead, easy: Case, usual: AgentRead) -> None:
    case.read(read)
    theirs, ours = easy.read(usual)
    singles = easy.play(RLLIB.MultiAgentEpisode).agent_episodes.values()
    first = usual.name not in ("observations", "infos") and not all(map(len, singles))  # `O17`, slices of no rows
    flattened = easy.arrays and usual.key == "state_out"  # `O54`, where an action is pending
    assert first or flattened or alike(theirs, ours), (theirs, ours)


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


@pytest.mark.parametrize("identity", EXAMPLES)
def test_each_difference(identity: str) -> None:
    """RLlib's gives something else, or fails."""
    case, read = EXAMPLES[identity]
    assert not alike(*case.read(read))
