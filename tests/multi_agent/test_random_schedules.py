"""Random schedules of agents that come, wait, act, end and return: against a slow model, and cut anywhere."""

from __future__ import annotations

import copy
import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.episodes import MultiAgentEpisode, pack_episodes, unpack_episodes
from fixture_episodes import sent
from oracle.agents import Schedule, empty_step, schedules
from oracle.slow_episode import SlowAgents

CASES = settings(max_examples=40)


def assert_same(episode: MultiAgentEpisode, slow: SlowAgents) -> None:
    """Every life of every agent, and what waits."""
    assert list(episode.agent_ids) == list(slow.lives)
    by_agent = {agent: [s for s in episode.segments if s.agent_id == agent] for agent in slow.lives}
    for agent, lives in slow.lives.items():
        assert len(by_agent[agent]) == len(lives)
        for segment, life in zip(by_agent[agent], lives):
            single = segment.episode
            single.validate()
            assert segment.env_steps.tolist() == life["at"]
            assert segment.ended_at == life["ended"]
            assert (single.is_terminated, single.is_truncated) == life["flags"]
            np.testing.assert_array_equal(single.get_observations(), life["obs"])
            assert single.get_infos() == life["infos"]
            assert single.get_actions().tolist() == life["actions"]
            assert single.get_rewards().tolist() == life["rewards"]
            if life["actions"]:
                logps = [row["logp"] for row in life["outputs"]]
                assert single.get_extra_model_outputs("logp").tolist() == logps
    assert episode.pending_actions == {agent: taken["action"] for agent, taken in slow.open.items()}
    waiting = {
        agent: slow.rewards.get(agent, 0.0) + slow.left.get(agent, 0.0) for agent in {**slow.rewards, **slow.left}
    }
    found = episode.pending_rewards
    assert {agent: found.get(agent, 0.0) for agent in waiting} == waiting
    assert set(found) <= set(waiting)


@CASES
@given(schedule=schedules())
def test_lives_and_what_waits_are_those_of_the_slow_model(schedule: Schedule) -> None:
    for until in (len(schedule.steps) // 2, None):
        episode = schedule.play(MultiAgentEpisode, until)
        assert_same(episode, SlowAgents(schedule, until))
    assert episode.get_return(include_hanging_rewards=True) == schedule.rewards()
    acted = sum(len(step["actions"]) for step in schedule.steps)
    assert episode.agent_steps() + len(episode.pending_actions) == acted
    assert episode.env_steps() == len(episode) == episode.env_t == len(schedule.steps)


def played_in_chunks(schedule: Schedule, cuts: list[bool], lookback: int) -> list[MultiAgentEpisode]:
    episode = MultiAgentEpisode(id_="game")
    episode.add_env_reset(**schedule.reset)
    chunks = [episode]
    for cut, step in zip(cuts, schedule.steps):
        if cut:
            chunks.append(chunks[-1].cut(lookback))
        chunks[-1].add_env_step(**step)
    return chunks


def with_names_of(chunk: MultiAgentEpisode, other: MultiAgentEpisode) -> MultiAgentEpisode:
    """A copy whose single-agent episodes, which have random names, are called as those of another one."""
    chunk = copy.deepcopy(chunk)
    assert len(chunk.segments) == len(other.segments)
    for mine, yours in zip(chunk.segments, other.segments):
        mine.episode.id_ = yours.episode.id_
    return chunk


@CASES
@given(
    schedule=schedules(length=12), cuts=st.lists(st.booleans(), min_size=14, max_size=14), lookback=st.integers(0, 4)
)
def test_cut_anywhere_and_concatenated_is_uncut(schedule: Schedule, cuts: list[bool], lookback: int) -> None:
    uncut = schedule.play(MultiAgentEpisode)
    chunks = played_in_chunks(schedule, cuts, lookback)
    assert sum(chunk.get_return() for chunk in chunks) + sum(chunks[-1].pending_rewards.values()) == schedule.rewards()
    assert sum(chunk.agent_steps() for chunk in chunks) == uncut.agent_steps()
    assert sum(len(chunk) for chunk in chunks) == len(uncut)
    for left, right in pairwise(chunks):
        assert right.lookback >= min(lookback, left.lookback + len(left))
        assert all(s.steps[0] >= right.env_t_started - right.lookback for s in right.segments)
    assert list(chunks[-1].get_agents_to_act()) == list(uncut.get_agents_to_act())
    ends = [(s.agent_id, s.ended_at) for chunk in chunks for s in chunk.segments if s.ended_at is not None]
    assert len(ends) == len(set(ends))
    whole = copy.deepcopy(chunks[0])
    for chunk in chunks[1:]:
        before = copy.deepcopy(chunk)
        whole.concat_episode(chunk)
        assert chunk.equals(before)
    assert with_names_of(whole, uncut).equals(uncut)
    assert_same(whole, SlowAgents(schedule))


@CASES
@given(schedule=schedules(length=12), data=st.data())
def test_a_slice_is_what_a_cut_would_have_recorded(schedule: Schedule, data: st.DataObject) -> None:
    episode = schedule.play(MultiAgentEpisode)
    start = data.draw(st.integers(0, len(episode)))
    stop = data.draw(st.integers(start, len(episode)))
    lookback = data.draw(st.integers(0, 3))
    so_far = schedule.play(MultiAgentEpisode, start)
    if so_far.is_done:
        return
    recorded = so_far.cut(lookback)
    for step in schedule.steps[start:stop]:
        recorded.add_env_step(**step)
    if so_far.pending_actions:  # a cut keeps more for agents that wait, and a slice cannot know that they had acted
        lookback = recorded.lookback
    part = episode.slice(slice(start, stop), len_lookback_buffer=lookback)
    assert (part.env_t_started, part.env_t, part.lookback) == (start, stop, recorded.lookback)
    assert list(part.agent_ids) == list(recorded.agent_ids)
    recorded = with_names_of(recorded, part)
    for mine, yours in zip(part.segments, recorded.segments):
        if yours.episode.rewards.len_incl_lookback():
            assert mine.equals(yours)
        else:  # an empty slice of a column still has its type
            assert mine.steps == yours.steps
            assert mine.episode.observations == yours.episode.observations
            assert mine.episode.actions.len_incl_lookback() == 0
    slow = SlowAgents(schedule)
    for agent, action in part.pending_actions.items():
        under_way = part.agent_episodes[agent].get_observations(-1)
        (at,) = [t for t, row in slow.at("observations", agent).items() if np.array_equal(row, under_way)][:1]
        assert action == slow.at("actions", agent)[at]
    assert set(recorded.pending_actions) <= set(part.pending_actions)


@CASES
@given(schedule=schedules(), cuts=st.lists(st.booleans(), min_size=12, max_size=12), data=st.data())
def test_getters_by_env_step(schedule: Schedule, cuts: list[bool], data: st.DataObject) -> None:
    """Of the last chunk, whose lookback may reach back: rows are those at the env steps asked for."""
    chunk = played_in_chunks(schedule, cuts, 2)[-1]
    slow = SlowAgents(schedule)
    name = data.draw(st.sampled_from(["observations", "infos", "actions", "rewards", "extra_model_outputs"]))
    total = len(chunk) + chunk.lookback + (name in ("observations", "infos"))
    low = data.draw(st.integers(0, total))
    high = data.draw(st.integers(low, total))
    wanted = range(low, high)
    base = chunk.env_t_started - chunk.lookback
    ours = {}
    for agent in chunk.agent_ids:
        held = {int(t) for s in chunk.segments if s.agent_id == agent for t in s.env_steps}
        ours[agent] = {t - base: row for t, row in slow.at(name, agent).items() if t in held}
    expected = {agent: [rows[i] for i in wanted if i in rows] for agent, rows in ours.items()}
    expected = {agent: rows for agent, rows in expected.items() if rows}
    keys = {"key": "logp"} if name == "extra_model_outputs" else {}
    get = getattr(chunk, f"get_{name}")
    options = {**keys, "neg_index_as_lookback": True}
    span = slice(low - chunk.lookback, high - chunk.lookback)
    listed = [i - chunk.lookback for i in wanted]
    for indices in (span, listed):
        found = get(indices=indices, **options)
        assert list(found) == [agent for agent in chunk.agent_ids if agent in expected]
        for agent, rows in expected.items():
            assert_rows(name, found[agent], rows)
    dicts = get(indices=listed, return_list=True, **options)
    assert len(dicts) == len(wanted)
    for i, found in zip(wanted, dicts):
        assert set(found) == {agent for agent in ours if i in ours[agent]}
        for agent, row in found.items():
            assert_rows(name, [row], [ours[agent][i]])
        one = get(indices=i - chunk.lookback, **options)
        assert set(one) == set(found)
        for agent, row in one.items():
            assert_rows(name, [row], [ours[agent][i]])
    if name in ("actions", "rewards") and len(wanted):
        for agent, rows in get(indices=listed, fill=-9, **options).items():
            assert np.asarray(rows).tolist() == [ours[agent].get(i, -9) for i in wanted]


def assert_rows(name: str, found: Any, expected: list[Any]) -> None:
    if name == "infos":
        assert list(found) == expected
    elif name == "extra_model_outputs":
        assert np.asarray(found).tolist() == [row["logp"] for row in expected]
    else:
        np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


@CASES
@given(schedule=schedules(), cuts=st.lists(st.booleans(), min_size=12, max_size=12))
def test_state_copy_and_pickle_are_the_same_episode(schedule: Schedule, cuts: list[bool]) -> None:
    chunk = played_in_chunks(schedule, cuts, 2)[-1]
    chunk.custom_data["x"] = [1]
    copies = [
        MultiAgentEpisode.from_state(chunk.get_state()),
        copy.deepcopy(chunk),
        pickle.loads(pickle.dumps(chunk)),
        *sent([chunk]),
        *unpack_episodes(pack_episodes([chunk])),
    ]
    for other in copies:
        assert other.equals(chunk)
        if not other.is_done:
            for agent in other.get_agents_to_act():
                other.add_env_step({agent: np.zeros(2, np.float32)}, {agent: 0}, {agent: 0.0},
                                   extra_model_outputs={agent: chunk_outputs()})  # fmt: skip
                assert not other.equals(chunk)
                break


def chunk_outputs() -> dict[str, Any]:
    return {"logp": np.float32(0), "state_out": {"h": np.zeros(2, np.float32)}}


@CASES
@given(schedule=schedules(), data=st.data())
def test_what_a_getter_gives_can_be_set(schedule: Schedule, data: st.DataObject) -> None:
    episode = schedule.play(MultiAgentEpisode)
    before = copy.deepcopy(episode)
    span = slice(*sorted(data.draw(st.tuples(st.integers(0, 12), st.integers(0, 12)))))
    env_steps = data.draw(st.booleans())
    for name in ("observations", "infos", "actions", "rewards"):
        getter, setter = getattr(episode, f"get_{name}"), getattr(episode, f"set_{name}")
        for indices in (span, None):
            setter(new_data=getter(indices, env_steps=env_steps), at_indices=indices, env_steps=env_steps)
    assert episode.equals(before)
    raised = {agent: rows + 1 for agent, rows in episode.get_rewards(span, env_steps=env_steps).items()}
    episode.set_rewards(new_data=raised, at_indices=span, env_steps=env_steps)
    for agent, rows in episode.get_rewards(span, env_steps=env_steps).items():
        np.testing.assert_array_equal(rows, raised[agent])
    rows_raised = sum(len(rows) for rows in raised.values())
    gained = episode.get_return(True) - before.get_return(True)
    assert gained == rows_raised


WRONG = {
    # state of an agent -> what it must not be given
    "unborn": ["a", "ao"],
    "ready": ["o", "ao", "ax"],
    "pending": ["a", "ao", "x"],
    "dead": ["a", "r", "i", "oa"],
}
GIVEN = {
    "o": ("observations", np.zeros(2, np.float32)),
    "a": ("actions", 0),
    "r": ("rewards", 0.0),
    "i": ("infos", {}),
    "x": ("truncateds", True),
}


@CASES
@given(schedule=schedules(agents=2), data=st.data())
def test_a_refused_step_changes_nothing(schedule: Schedule, data: st.DataObject) -> None:
    until = data.draw(st.integers(0, len(schedule.steps)))
    episode = schedule.play(MultiAgentEpisode, until)
    if episode.is_done:
        return
    slow = SlowAgents(schedule, until)
    step = empty_step()
    for agent in [*episode.get_agents_to_act()]:  # what comes first in the step is right
        step["observations"][agent] = np.zeros(2, np.float32)
        step["actions"][agent], step["rewards"][agent] = 1, 0.5
        step["extra_model_outputs"][agent] = chunk_outputs()
    agent = data.draw(st.sampled_from(["b", "a", "new"]).filter(lambda one: one not in step["actions"]))
    state = "dead" if agent in slow.lives else "unborn"
    if slow.living(agent):
        state = "pending" if agent in slow.open else "ready"
    for letter in data.draw(st.sampled_from(WRONG[state])):
        column, value = GIVEN[letter]
        step[column][agent] = value
    before = copy.deepcopy(episode)
    with pytest.raises(AssertionError, match=f"agent '{agent}' at env step {until + 1}"):
        episode.add_env_step(**step)
    assert episode.equals(before)
    assert_same(episode, slow)
    for rest in schedule.steps[until:]:
        episode.add_env_step(**rest)
    assert_same(episode, SlowAgents(schedule))
