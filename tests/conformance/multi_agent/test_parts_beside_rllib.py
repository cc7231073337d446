"""Cuts, joins, states and slices of RLlib's episode of several agents: what the slow model says, or what is listed.

Each operation begins with an episode of RLlib that holds what the model does; so a fault of one before hides nothing.
Ours is held beside the same model in test_parts_of_agents.py.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st

from oracle.agents import Schedule, empty_step, schedules, scripted
from oracle.cases import differences_met, random_cases
from oracle.compare import Outcome, outcome, settle
from oracle.rllib_agent_parts import PartOfAgents, each_section, held
from oracle.rllib_agents import FaultyAgents, Refused, listed
from oracle.rllib_episode import built, holds
from oracle.slow_episode import SlowEpisode


@dataclass(frozen=True)
class Case:
    """An episode of which something is done.

    Attributes:
        start: env step and lookback of the cut that it begins with; None: it begins with the reset.
        length: how many env steps are then added.
    """

    schedule: Schedule
    start: tuple[int, int] | None = None
    length: int = 9

    def play(self) -> SlowEpisode:
        slow = SlowEpisode(self.schedule, self.start[0] if self.start else 0)
        if self.start and not slow.done:
            slow = slow.cut(self.start[1])
        go_on(slow, self.schedule, self.length)
        return slow


def go_on(slow: SlowEpisode, schedule: Schedule, count: int) -> None:
    for step in schedule.steps[slow.t : slow.t + count]:
        if not slow.done:
            slow.step(step)


starts = st.one_of(st.none(), st.tuples(st.integers(0, 4), st.integers(0, 2)))
cases = st.builds(Case, schedules(length=8), starts, st.integers(0, 8))
lookbacks = st.integers(0, 3)


def hold(operation: PartOfAgents, call: Any) -> None:
    """What RLlib's call gives holds what it has to, or what is listed."""
    found = outcome(lambda: holds(call()))
    settle(found, Outcome(held(operation.after)), operation, each_section)


def cut(case: Case, k: int) -> None:
    slow = case.play()
    if not slow.done:
        hold(PartOfAgents("cut", slow, slow.cut(k), k), lambda: built(slow, {}).cut(k))


def join(case: Case, k: int, count: int) -> None:
    left = case.play()
    if left.done:
        return
    right = left.cut(k)
    go_on(right, case.schedule, count)
    whole = copy.deepcopy(left)
    whole.join(right)

    def call() -> Any:
        mine, its = built(left, {}), built(right, {})
        for agent, lives in right.lives.items():
            if left.living(agent) and len(lives) == 1:
                its.agent_episodes[agent].id_ = mine.agent_episodes[agent].id_
        mine.concat_episode(its)
        return mine

    hold(PartOfAgents("join", left, whole, k, right=right), call)


def state(case: Case) -> None:
    slow = case.play()
    theirs = built(slow, {})
    hold(PartOfAgents("state", slow, slow), lambda: type(theirs).from_state(theirs.get_state()))


@random_cases(case=cases, k=lookbacks)
def test_cut(case: Case, k: int) -> None:
    cut(case, k)


@random_cases(case=cases, k=lookbacks, count=st.integers(0, 5))
def test_join(case: Case, k: int, count: int) -> None:
    join(case, k, count)


@random_cases(case=cases)
def test_state(case: Case) -> None:
    state(case)


def slice_(case: Case, low: int, high: int, k: int) -> None:
    slow = case.play()
    slow.custom["kept"] = 1
    low, high = sorted((min(low, slow.length), min(high, slow.length)))
    operation = PartOfAgents("slice", slow, slow.sliced(low, high, k), k, (low, high))
    hold(operation, lambda: built(slow, {}).slice(slice(low, high), len_lookback_buffer=k))


@random_cases(case=cases, low=st.integers(0, 7), high=st.integers(0, 7), k=lookbacks)
def test_slice(case: Case, low: int, high: int, k: int) -> None:
    slice_(case, low, high, k)


@random_cases(case=cases)
def test_step_behind_a_cut(case: Case) -> None:
    """What RLlib makes of one env step more, by the model with its faults; no other mismatch is excused."""
    slow = case.play()
    if slow.done:
        return
    step = (case.schedule.steps[slow.t :] or [empty_step()])[0]
    theirs = built(slow, {})
    model = FaultyAgents.going_on(slow)
    try:
        expected = stepped(slow, model, step)
    except Refused:
        assert outcome(lambda: theirs.add_env_step(**step)).error is not None
        return
    theirs.add_env_step(**step)
    assert holds(theirs) == expected


@random_cases(case=cases)
def test_facts(case: Case) -> None:
    """What RLlib says of an episode; it knows of latest lives only, and of no rewards that came behind an end."""
    slow = case.play()
    theirs, several = built(slow, {}), any(len(lives) > 1 for lives in slow.lives.values())
    latest = 1 if several and listed("agents-return") else 0
    lives = [life for held_ in slow.lives.values() for life in held_[-latest:]]
    rewards = sum(sum(life["rewards"][slow.kept(life) :]) for life in lives)
    late = sum(slow.left.values())
    waiting = sum(slow.rewards.values()) + (0.0 if late and listed("O15") else late)
    assert (theirs.get_return(), theirs.get_return(include_hanging_rewards=True)) == (rewards, rewards + waiting)
    steps = sum(len(life["actions"]) - slow.kept(life) for life in lives)
    found = [len(theirs), theirs.env_steps(), theirs.agent_steps(), theirs.env_t, theirs.env_t_started, theirs.is_done]
    assert found == [slow.length, slow.length, steps, slow.t, slow.start, slow.done]
    assert (theirs.get_agents_that_stepped(), theirs.get_agents_to_act()) == (set(slow.stepped()), set(slow.to_act()))
    flags = {agent: held_[-1]["flags"] for agent, held_ in slow.lives.items()}
    ends = (slow.terminated, slow.terminated if slow.terminated != slow.truncated and listed("O13") else slow.truncated)
    for found_, kind in ((theirs.get_terminateds(), 0), (theirs.get_truncateds(), 1)):
        assert found_ == {**{agent: its[kind] for agent, its in flags.items()}, "__all__": ends[kind]}


def stepped(slow: SlowEpisode, model: FaultyAgents, step: dict[str, Any]) -> dict[str, Any]:
    """What RLlib holds after a step, if it has its listed faults."""
    after = copy.deepcopy(slow)
    after.t = model.t = slow.t + 1
    model.add(step)
    new = [agent for agent in model.lives if agent not in slow.lives]
    for agent in new:
        model.lives[agent][-1].update(skipped=0, typed={})
    after.lives, after.open, after.infos = model.lives, model.open, model.infos
    after.rewards = {**model.rewards, **model.early}
    after.terminated, after.truncated = model.terminated, model.truncated
    expected = held(after)
    expected["rewards before"] = {agent: reward for agent, reward in sorted(model.early.items()) if reward}
    expected["rewards since"] = {agent: reward for agent, reward in sorted(model.rewards.items()) if reward}
    forgotten = slow.start - slow.lookback
    for agent, at in model.doubled.items():
        expected["maps"][agent][0].insert(at - forgotten, "S")
    for agent in new if forgotten and listed("O53") else ():
        expected["maps"][agent][0][:0] = ["S"] * forgotten
    return expected


STEP = {"a": "oar", "b": "oar"}
OPEN = Case(scripted(STEP, {"a": "ar", "b": "oar"}, {"a": "or", "b": "oar"}), length=2)
WAITING = Case(scripted(STEP, {"b": "oar"}, {"b": "oar"}), length=2)
ENDED = Case(scripted({"a": "oart", "b": "oar"}))
UNBORN = Case(scripted({"b": "oar", "c": "r"}, {"b": "oar", "c": "r"}, reset="b"))
EXAMPLES = {
    "cut, O15": lambda: cut(UNBORN, 1),
    "cut, O16": lambda: cut(Case(scripted({"a": "ar", "b": "oar"})), 0),
    "cut, O56": lambda: cut(WAITING, 0),
    "cut, cut-ended": lambda: cut(ENDED, 1),
    "cut, cut-lookback": lambda: cut(OPEN, 3),
    "join, O15": lambda: join(Case(scripted({"c": "r"}), length=0), 0, 1),
    "join, O16": lambda: join(OPEN, 1, 1),
    "join, O53": lambda: join(Case(scripted(STEP, {"b": "oar", "c": "o"}), length=1), 0, 1),
    "join, O55": lambda: join(Case(scripted(STEP), length=0), 0, 1),
    "join, O56": lambda: join(Case(scripted(STEP, {"c": "o"}, {"c": "r"}), length=1), 0, 2),
    "join, agents-return": lambda: join(
        Case(scripted({"a": "oart", "b": "oar"}, {"a": "o", "b": "oar"}), length=1), 0, 1
    ),
    "join, ended-both-ways": lambda: join(Case(scripted(STEP, {"a": "oartx", "b": "oar"}), length=1), 0, 1),
    "slice, O15": lambda: slice_(UNBORN, 0, 2, 0),
    "slice, O18": lambda: slice_(Case(scripted(STEP)), 0, 1, 0),
    "slice, O56": lambda: slice_(Case(scripted({"a": "oar", "b": "oar"}, {"a": "r", "b": "oar"})), 0, 2, 0),
    "slice, agent-slices": lambda: slice_(OPEN, 2, 2, 0),
    "state, state-no-steps": lambda: state(Case(scripted(STEP), (1, 1), 0)),
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_each_difference(example: str) -> None:
    before = differences_met.copy()
    EXAMPLES[example]()
    assert example.partition(", ")[2] in differences_met - before


@pytest.mark.parametrize("section", ["agents", "maps", "pending actions", "rewards since", "env steps", "ends"])
def test_what_is_listed_excuses_nothing_beside_it(section: str) -> None:
    """A cut that differs in nothing listed, of which one section is another."""
    slow = Case(scripted(STEP, {"a": "ar", "b": "oar"})).play()

    def call() -> Any:
        theirs = built(slow.cut(1), {})
        if section == "ends":
            theirs.is_truncated = True
        elif section == "env steps":
            theirs.env_t += 1
        elif section == "agents":
            theirs.agent_episodes["b"].t_started += 1
        elif section == "maps":
            theirs.env_t_to_agent_t["b"].lookback += 1
        else:
            pending = {"pending actions": theirs._hanging_actions_end, "rewards since": theirs._hanging_rewards_end}
            pending[section]["a"] = 3.5
        return theirs

    with pytest.raises(AssertionError, match="1 mismatches are not listed"):
        hold(PartOfAgents("cut", slow, slow.cut(1), 1), call)
