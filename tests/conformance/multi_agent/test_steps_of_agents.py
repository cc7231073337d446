"""The same env steps given to both libraries: RLlib makes of them what the model with its listed faults says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from oracle.agents import Schedule, empty_step, schedules
from oracle.cases import random_cases
from oracle.compare import outcome
from oracle.libraries import BOTH, EPIBATCH, RLLIB
from oracle.rllib_agents import FaultyAgents, Refused, listed
from oracle.rllib_episode import built
from oracle.slow_agents import SlowAgents
from oracle.slow_episode import SlowEpisode


def assert_is(episode: Any, model: SlowAgents) -> None:
    """The latest life of each agent, in either library."""
    assert set(episode.agent_ids) == set(model.lives)
    for agent, lives in model.lives.items():
        single, life = episode.agent_episodes[agent], lives[-1]
        assert (single.is_terminated, single.is_truncated) == life["flags"], agent
        assert np.array_equal(np.stack(list(single.get_observations())), np.stack(life["obs"]))
        assert single.get_infos() == life["infos"]
        assert list(single.get_actions()) == life["actions"]
        assert list(single.get_rewards()) == life["rewards"], agent
        if life["outputs"]:
            for key in ("logp", "state_out"):
                rows = single.get_extra_model_outputs(key)
                rows = rows["h"] if isinstance(rows, dict) else [r["h"] if isinstance(r, dict) else r for r in rows]
                expected = [row[key] if key == "logp" else row[key]["h"] for row in life["outputs"]]
                assert np.array_equal(np.asarray(rows), np.asarray(expected))
    pending = episode.pending_actions if hasattr(episode, "pending_actions") else episode._hanging_actions_end
    assert pending == {agent: taken["action"] for agent, taken in model.open.items()}


@random_cases(schedule=schedules())
def test_random_schedules(schedule: Schedule) -> None:
    theirs, ours = (library.MultiAgentEpisode(id_="game") for library in BOTH)
    theirs.add_env_reset(**schedule.reset)
    ours.add_env_reset(**schedule.reset)
    for at, step in enumerate(schedule.steps, 1):
        ours.add_env_step(**step)
        assert_is(ours, SlowAgents(schedule, at))
        try:
            model = FaultyAgents(schedule, at)
        except Refused:
            try:
                theirs.add_env_step(**step)
            except Exception:
                return
            raise AssertionError(f"RLlib took env step {at}") from None
        theirs.add_env_step(**step)
        assert_is(theirs, model)
        assert (theirs.is_terminated, theirs.is_truncated) == (model.terminated, model.truncated)
        if not model.wrong:
            assert (ours.is_terminated, ours.is_truncated) == (model.terminated, model.truncated)
            for ask in (
                lambda one: set(one.get_agents_to_act()),
                lambda one: set(one.get_agents_that_stepped()),
                lambda one: (len(one), one.env_t, one.env_steps(), one.agent_steps(), one.is_done),
                lambda one: one.get_return(),
                lambda one: one.get_return(include_hanging_rewards=True),
                lambda one: one.get_terminateds(),
            ):
                assert ask(theirs) == ask(ours)
            for agent, row in ours.env_t_to_agent_t.items():
                expected = list(row.data)
                if agent in model.doubled:
                    expected.insert(model.doubled[agent], "S")
                assert theirs.env_t_to_agent_t[agent].data == expected


WRONG = {  # state of the agent -> what it must not be given, and the row that lists that RLlib takes it
    "unborn": {"a": "refused-env-steps", "ao": ""},
    "ready": {"o": "", "ao": "", "ax": ""},
    "pending": {"a": "", "ao": "", "x": ""},
    "dead": {"a": "", "r": "", "i": "waiting-infos", "oa": ""},
}


@random_cases(schedule=schedules(), until=st.integers(0, 10), agent=st.sampled_from("abc"), number=st.integers(0, 11))
def test_wrong_steps(schedule: Schedule, until: int, agent: str, number: int) -> None:
    """What ours refuses RLlib refuses too, or it is listed that it does not."""
    slow = SlowEpisode(schedule, until)
    if slow.done:
        return
    state = "dead" if agent in slow.lives else "unborn"
    if slow.living(agent):
        state = "pending" if agent in slow.open else "ready"
    move = list(WRONG[state])[number % len(WRONG[state])]
    step = empty_step()
    given = {"o": ("observations", np.zeros(2, np.float32)), "a": ("actions", 0), "r": ("rewards", 0.0)}
    given.update(i=("infos", {}), x=("truncateds", True))
    for letter in move:
        name, value = given[letter]
        step[name][agent] = value
    ours, theirs = schedule.play(EPIBATCH.MultiAgentEpisode, until), built(slow, {})
    with pytest.raises(AssertionError, match=f"agent '{agent}' at env step"):
        ours.add_env_step(**step)
    if outcome(lambda: theirs.add_env_step(**step)).error is None:
        assert WRONG[state][move] and listed(WRONG[state][move]), (state, move)


@random_cases(schedule=schedules(length=3), until=st.integers(0, 3))
def test_a_second_reset(schedule: Schedule, until: int) -> None:
    """RLlib takes one as long as there is no agent and no step."""
    slow = SlowEpisode(schedule, until)
    ours, theirs = schedule.play(EPIBATCH.MultiAgentEpisode, until), built(slow, {})
    with pytest.raises(AssertionError, match="a new episode"):
        ours.add_env_reset(**schedule.reset)
    error = outcome(lambda: theirs.add_env_reset(**schedule.reset)).error
    assert isinstance(error, AssertionError) or not (slow.lives or slow.t) or listed("refused-env-steps")


def test_rllibs_names_and_signatures_are_there() -> None:
    import inspect

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
