"""Env steps, cuts, joins, slices and states of episodes of several agents: ours beside a slow model and beside RLlib's.

Ours is what the slow model says of any schedule. RLlib's loses data in many of them, each by a row of the page of
differences with a probe of its own; so it is compared in those that it holds: `mild` schedules, cut and sliced at
their `level` env steps.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from oracle.agents import Schedule, empty_step, schedules, scripted
from oracle.behaviours import holds, plain
from oracle.cases import random_cases
from oracle.compare import mismatches, outcome, unstack
from oracle.libraries import BOTH, EPIBATCH, RLLIB
from oracle.slow_episode import SlowAgents, SlowEpisode

COLUMNS = ("observations", "actions", "rewards")
any_schedule = st.one_of(schedules(), schedules(mild=True))
mild = schedules(length=8, mild=True)
numbers = st.integers(0, 99)
lookbacks = st.integers(0, 3)


def told(episode: Any, *left_out: str) -> dict[str, Any]:
    """What an episode of either library holds and says of itself, but for some of it."""
    ours = hasattr(episode, "pending_actions")
    singles = {agent: episode.agent_episodes[agent] for agent in sorted(episode.agent_ids)}
    found = {
        "env steps": [episode.env_t_started, episode.env_t, len(episode), episode.env_steps(), episode.agent_steps()],
        "ends": [episode.is_terminated, episode.is_truncated, episode.is_done],
        "custom data": dict(episode.custom_data),
        "rows": {agent: _rows(single) for agent, single in singles.items()},
        "infos": {agent: list(single.infos.data) for agent, single in singles.items()},
        "starts": {agent: [single.t_started, single.observations.lookback] for agent, single in singles.items()},
        "flags": {agent: [single.is_terminated, single.is_truncated] for agent, single in singles.items()},
        "maps": {a: [list(row.data), row.lookback] for a, row in sorted(episode.env_t_to_agent_t.items())},
        "pending": plain(episode.pending_actions if ours else episode._hanging_actions_end),
        "agents": [set(episode.get_agents_to_act()), set(episode.get_agents_that_stepped())],
        "returns": [float(episode.get_return(hanging)) for hanging in (False, True)],
        "terminateds": episode.get_terminateds(),
    }
    return {name: own for name, own in found.items() if name not in left_out}


def _rows(single: Any) -> dict[str, Any]:
    columns = {**{name: getattr(single, name) for name in COLUMNS}, **single.extra_model_outputs}
    rows = {key: own.data for key, own in columns.items() if own.len_incl_lookback()}
    return {key: plain(own if isinstance(own, list) else unstack(own)) for key, own in rows.items()}


def assert_alike(theirs: Any, ours: Any, *left_out: str) -> None:
    found = [told(episode, *left_out) for episode in (theirs, ours)]
    assert not mismatches(*found), "\n".join(map(str, mismatches(*found)[:3]))


# -- env steps ------------------------------------------------------------------------------------


def assert_is(episode: Any, model: SlowAgents) -> None:
    """Ours is what the model says: the latest life of each agent, and what is pending."""
    assert set(episode.agent_ids) == set(model.lives)
    for agent, lives in model.lives.items():
        single, life = episode.agent_episodes[agent], lives[-1]
        assert (single.is_terminated, single.is_truncated) == life["flags"], agent
        assert single.get_infos() == life["infos"]
        rows = {"observations": life["obs"], "actions": life["actions"], "rewards": life["rewards"]}
        rows.update({key: [row[key] for row in life["outputs"]] for key in (life["outputs"] or [{}])[0]})
        assert _rows(single) == {key: plain(own) for key, own in rows.items() if own}, agent
    assert episode.pending_actions == {agent: taken["action"] for agent, taken in model.open.items()}


@holds("C19", "C20", "C22", "C25", "C26", "C28", "C29", "C31")
@random_cases(schedule=any_schedule)
def test_random_schedules(schedule: Schedule) -> None:
    theirs, ours = (schedule.play(library.MultiAgentEpisode, 0) for library in BOTH)
    for at, step in enumerate(schedule.steps, 1):
        ours.add_env_step(**step)
        assert_is(ours, SlowAgents(schedule, at))
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


@random_cases(schedule=mild, until=st.integers(0, 3))
def test_a_second_reset(schedule: Schedule, until: int) -> None:
    for library in BOTH:
        with pytest.raises(AssertionError):
            schedule.play(library.MultiAgentEpisode, until).add_env_reset(**schedule.reset)


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


@random_cases(case=cases, k=lookbacks)
def test_cut(case: Case, k: int) -> None:
    cut(case, k, 0)


@random_cases(case=cases)
def test_step_behind_a_cut(case: Case) -> None:
    cut(case, 1, 1)


@random_cases(case=cases, k=lookbacks, count=st.integers(0, 5))
def test_join(case: Case, k: int, count: int) -> None:
    whole, chunks = cut(case, k, count)
    if not all(map(len, whole[0].agent_episodes.values())):
        return  # RLlib does not take model outputs of an agent that had none (`O55`)
    for left, right in zip(whole, chunks):
        left.concat_episode(right)
    assert_alike(*whole, *(["maps"] if case.newcomers(count) else []))


@random_cases(case=cases)
def test_state(case: Case) -> None:
    episodes = [type(episode).from_state(episode.get_state()) for episode in case.play()]
    assert_alike(*episodes)


@random_cases(case=cases)
def test_facts(case: Case) -> None:
    """What both say of an episode without changing it."""
    episodes = case.play()
    for episode in episodes:
        episode.validate()
        episode.to_numpy()
    assert_alike(*episodes)
    truncateds = [episode.get_truncateds() for episode in episodes]
    assert truncateds[0] == truncateds[1]


@random_cases(case=cases, low=numbers, k=lookbacks)
def test_slice(case: Case, low: int, k: int) -> None:
    """RLlib's slices lose infos and custom data (`O18`)."""
    level = [t for t in case.schedule.level if t <= case.at]
    start = level[low % len(level)]
    if case.newcomers(0) or any(
        step["observations"].keys() - _seen(case, start) for step in case.schedule.steps[: case.at]
    ):
        return
    parts = [episode.slice(slice(start, case.at), len_lookback_buffer=k) for episode in case.play()]
    assert_alike(*parts, "infos", "custom data")


def _seen(case: Case, until: int) -> set[str]:
    return {a for step in [case.schedule.reset, *case.schedule.steps[:until]] for a in step["observations"]}


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


def test_rllibs_names_and_signatures_are_there() -> None:
    left_out = {"get_sample_batch", "add_temporary_timestep_data", "get_temporary_timestep_data"}  # as in single-agent
    theirs, ours = RLLIB.MultiAgentEpisode, EPIBATCH.MultiAgentEpisode
    instance = ours()
    for name in (name for name in dir(theirs) if not name.startswith("_") or name in ("__init__", "__getitem__")):
        if name in left_out:
            assert not hasattr(instance, name)
            continue
        assert hasattr(instance, name), name
        if not callable(getattr(theirs, name)):
            continue
        expected = inspect.signature(getattr(theirs, name)).parameters
        found = inspect.signature(getattr(ours, name)).parameters
        mine = [(one.name, one.kind, one.default) for one in found.values()]
        assert mine[: len(expected)] == [(one.name, one.kind, one.default) for one in expected.values()], name
        assert all(one.kind is inspect.Parameter.KEYWORD_ONLY for one in list(found.values())[len(expected) :])
