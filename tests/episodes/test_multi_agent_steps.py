"""Env steps of several agents: who ends, what waits, and that a refused step leaves nothing behind."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from epibatch.core.errors import SpaceError
from epibatch.episodes import MultiAgentEpisode
from fixture_episodes import joint_step, meeting


@pytest.mark.parametrize(
    ("flags", "agents", "episode_flags"),
    [
        ({"terminateds": {"__all__": True}}, {"a": (True, False), "b": (True, False)}, (True, False)),
        ({"truncateds": {"__all__": True}}, {"a": (False, True), "b": (False, True)}, (False, True)),
        (
            {"truncateds": {"__all__": True, "a": True, "b": True}},
            {"a": (False, True), "b": (False, True)},
            (False, True),
        ),
        ({"truncateds": {"a": True, "b": True}}, {"a": (False, True), "b": (False, True)}, (False, True)),
        (
            {"truncateds": {"a": True}, "terminateds": {"b": True}},
            {"a": (False, True), "b": (True, False)},
            (True, False),
        ),
        (
            {"terminateds": {"a": True}, "truncateds": {"__all__": True}},
            {"a": (True, True), "b": (False, True)},
            (False, True),
        ),
        ({"terminateds": {"a": np.True_, "__all__": False}}, {"a": (True, False), "b": (False, False)}, (False, False)),
    ],
)
def test_each_agent_ends_by_its_own_flags_and_those_for_all(flags: Any, agents: Any, episode_flags: Any) -> None:
    episode = meeting("a", "b")
    episode.add_env_step(**joint_step("a", "b", **flags))
    ends = {a: (one.is_terminated, one.is_truncated) for a, one in episode.agent_episodes.items()}
    assert ends == agents
    assert (episode.is_terminated, episode.is_truncated) == episode_flags
    assert episode.get_terminateds() == {**{a: end[0] for a, end in agents.items()}, "__all__": episode_flags[0]}
    assert episode.get_truncateds() == {**{a: end[1] for a, end in agents.items()}, "__all__": episode_flags[1]}


def test_the_episode_ends_with_its_last_agent_cut_or_not() -> None:
    episode = meeting("a", "b")
    episode.add_env_step(**joint_step("a", "b", truncateds={"a": True}))
    assert not episode.is_done
    chunk = episode.cut()
    for one in (episode, chunk):
        one.add_env_step(**joint_step("b", truncateds={"b": True}))
        assert (one.is_terminated, one.is_truncated) == (False, True)


def test_an_agent_may_end_both_ways_at_once() -> None:
    """Nothing follows a termination, so that no observation is needed to estimate it from."""
    episode = meeting("a", "b")
    step = joint_step("b", terminateds={"a": True}, truncateds={"a": True})
    step["actions"]["a"], step["rewards"]["a"] = 3, 0.25
    episode.add_env_step(**step)
    single = episode.agent_episodes["a"]
    assert (single.is_terminated, single.is_truncated, episode.is_done) == (True, True, False)
    assert (single.get_observations().tolist(), single.get_rewards().tolist()) == ([0, 0], [0.25])
    episode.add_env_step(**joint_step("b", truncateds={"b": True}))
    assert (episode.is_terminated, episode.is_truncated) == (True, False)


def test_a_newcomer_keeps_the_episode_going() -> None:
    episode = meeting("a")
    step = joint_step("a", terminateds={"a": True})
    step["observations"]["new"] = 7.0
    episode.add_env_step(**step)
    assert not episode.is_done
    assert list(episode.get_agents_to_act()) == ["new"]


def test_no_agent_yet_is_no_end() -> None:
    episode = meeting()
    assert episode.is_reset and not episode.get_agents_to_act()
    episode.add_env_step({}, {}, {})
    assert not episode.is_done and len(episode) == 1
    episode.add_env_step({"a": 0.0}, {}, {})
    assert list(episode.get_agents_to_act()) == ["a"]


def test_an_agent_that_ends_unseen_has_its_rewritten_observation_again() -> None:
    """A piece made a vector of it, which the space of what the environment gives does not have."""
    space = gym.spaces.Discrete(3)
    episode = MultiAgentEpisode(observation_space={"a": space, "b": space})
    episode.add_env_reset(observations={"a": 2, "b": 0})
    single = episode.agent_episodes["a"]
    single.set_observations(new_data=np.array([0.0, 0.0, 1.0]), at_indices=-1)
    episode.add_env_step({}, {"a": 1}, {"a": 0.5}, terminateds={"a": True})
    assert single.is_terminated
    assert single.get_observations().tolist() == [[0.0, 0.0, 1.0]] * 2
    assert single.get_state()["given_observation_space"]["n"] == 3


def test_an_idle_agent_ends_and_its_late_reward_stays_pending() -> None:
    episode = meeting("a", "b")
    episode.add_env_step(**joint_step("a", "b"))
    step = joint_step("b", truncateds={"__all__": True})
    step["rewards"]["a"] = 0.25
    episode.add_env_step(**step)
    idle = episode.agent_episodes["a"]
    assert (idle.is_truncated, len(idle), idle.get_rewards().tolist()) == (True, 1, [0.5])
    assert episode.pending_rewards == {"a": 0.25}
    assert (episode.get_return(), episode.get_return(True)) == (1.5, 1.75)


def test_a_left_over_reward_belongs_to_no_later_life() -> None:
    episode = meeting("a", "b")
    episode.add_env_step(**{**joint_step("b", terminateds={"a": True}), "rewards": {"a": 0.25, "b": 0.0}})
    episode.add_env_step(**{**joint_step("b"), "observations": {"a": 0.0, "b": 0.0}})
    episode.add_env_step(**joint_step("a", "b"))
    assert episode.agent_episodes["a"].get_rewards().tolist() == [0.5]
    assert episode.cut().pending_rewards == episode.pending_rewards == {"a": 0.25}
    episode.add_env_step(**{**joint_step("b", terminateds={"a": True}), "rewards": {"a": 0.5, "b": 0.0}})
    assert episode.pending_rewards == {"a": 0.75}


def test_a_life_may_end_with_its_first_observation() -> None:
    episode = meeting("b")
    step = joint_step("b", terminateds={"a": True})
    step["observations"]["a"], step["rewards"]["a"] = 3.0, 0.5
    episode.add_env_step(**step)
    born = episode.agent_episodes["a"]
    assert (len(born), born.is_terminated, born.get_observations().tolist()) == (0, True, [3.0])
    assert episode.pending_rewards == {"a": 0.5}


def test_flags_of_agents_that_never_appeared_end_nobody() -> None:
    episode = meeting("b")
    episode.add_env_step({"b": 1.0}, {"b": 0}, {"b": 0.0, "a": 0.5}, terminateds={"a": True})
    assert not episode.is_done and list(episode.agent_ids) == ["b"]
    episode.add_env_step({"a": 1.0, "b": 1.0}, {"b": 0}, {"b": 0.0})
    episode.add_env_step(**joint_step("a", "b"))
    assert episode.agent_episodes["a"].get_rewards().tolist() == [1.0]


def test_an_agent_may_wait_before_it_acts_and_keeps_its_rewards() -> None:
    episode = meeting("a", "b")
    episode.add_env_step(**{**joint_step("b"), "rewards": {"a": 0.25, "b": 0.0}})
    assert episode.get_rewards(agent_ids="a") == {} and episode.pending_rewards == {"a": 0.25}
    chunk = episode.cut()
    for one in (episode, chunk):
        one.add_env_step({"b": 1.0}, {"a": 4, "b": 0}, {"a": 0.5, "b": 0.0})
        one.add_env_step(**{**joint_step("b"), "observations": {"a": 9.0, "b": 1.0}, "rewards": {"a": 1.0, "b": 0.0}})
        waited = one.agent_episodes["a"]
        assert (waited.get_actions().tolist(), waited.get_rewards().tolist()) == ([4], [1.75])
        assert not waited.is_done


def test_an_info_without_an_observation_goes_with_the_next_one() -> None:
    episode = meeting("a")
    episode.add_env_step({}, {"a": 0}, {}, {"a": {"x": 1, "y": 1}, "late": {"z": 1}, "__common__": {"w": 1}})
    episode.add_env_step({"a": 1.0, "late": 1.0}, {}, {"a": 0.0}, {"a": {"y": 2}})
    assert episode.get_infos(-1) == {"a": {"x": 1, "y": 2}, "late": {"z": 1}}
    assert list(episode.agent_ids) == ["a", "late"]


def test_the_last_observation_again_has_the_last_info_again_unless_the_end_brings_one() -> None:
    for given, expected in (({}, {"n": 0}), ({"a": {"n": 1}}, {"n": 1})):
        episode = MultiAgentEpisode()
        episode.add_env_reset(observations={"a": 0.0}, infos={"a": {"n": 0}})
        episode.add_env_step({}, {"a": 0}, {"a": 1.0}, given, terminateds={"a": True})
        assert episode.agent_episodes["a"].get_infos() == [{"n": 0}, expected]


def test_rows_that_change_a_column_go_the_long_way() -> None:
    """Types promote, shapes may change, model outputs are nested: as in single-agent episodes."""
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": np.zeros(2, np.float32), "b": 0})
    rows = [(1, 0.5), (np.int64(2), 1), (2.5, np.float32(0))]
    for t, (action, reward) in enumerate(rows):
        observations = {"a": np.full(2 + t, t, np.float32), "b": t + 0.5}
        outputs = {"a": {"h": {"x": np.ones(t + 1)}}, "b": {"v": t}}
        episode.add_env_step(observations, {"a": action, "b": 0}, {"a": reward, "b": 1}, extra_model_outputs=outputs)
    assert episode.get_actions(agent_ids="a")["a"].tolist() == [1.0, 2.0, 2.5]
    assert episode.get_observations(agent_ids="b")["b"].tolist() == [0, 0.5, 1.5, 2.5]
    assert episode.get_extra_model_outputs("v")["b"].tolist() == [0, 1, 2]


def test_a_late_model_output_takes_back_what_other_agents_got_in_that_step() -> None:
    episode = meeting("a", "b", "c")
    outputs = {agent: {"v": 1.0} for agent in "abc"}
    episode.add_env_step(**joint_step("a", "b", "c"), extra_model_outputs=outputs)
    before = episode[:]
    with pytest.raises(ValueError, match=r"(?s)agent 'b' at env step 2.*late key 'w'"):
        episode.add_env_step(
            **joint_step("a", "b", "new"), extra_model_outputs={"a": {"v": 2.0}, "b": {"v": 2.0, "w": 0.0}, "new": {}}
        )
    assert episode.equals(before)
    first = meeting("a", "b")
    before = first[:]
    with pytest.raises(ValueError, match="True or False"):
        first.add_env_step(**joint_step("a", "b", truncateds={"b": 7}))
    with pytest.raises(ValueError, match="dict of one step"):
        first.add_env_step(**joint_step("a", "b"), infos={"b": "no"})
    assert first.equals(before)
    first.add_env_step(**joint_step("a", "b"))
    assert first.agent_steps() == 2


def test_an_observation_that_a_piece_made_longer_is_repeated_at_a_termination_without_one() -> None:
    short, long = gym.spaces.Box(-9, 9, (1,), np.float32), gym.spaces.Box(-9, 9, (3,), np.float32)
    episode = MultiAgentEpisode(observation_space={"a": short, "b": short})
    episode.add_env_reset(observations={"a": np.float32([1]), "b": np.float32([2])})
    for agent in "ab":
        episode.set_observations(new_data={agent: np.float32([1, 2, 3])}, at_indices=-1)
        episode.agent_episodes[agent].observation_space = long
    episode.add_env_step({}, {"a": 0, "b": 0}, {"a": 0.5}, terminateds={"a": True})
    single = episode.agent_episodes["a"]
    assert single.get_observations().tolist() == [[1, 2, 3]] * 2 and single.is_terminated
    with pytest.raises(SpaceError, match=r"shape \(2,\)"):
        episode.add_env_step({"b": np.zeros(2, np.float32)}, {}, {"b": 0.0})
