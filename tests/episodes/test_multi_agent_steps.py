"""Env steps of several agents: who ends, what waits, and that a refused step leaves nothing behind."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.core.errors import SpaceError
from epibatch.episodes import MultiAgentEpisode
from fixture_episodes import joint_step, meeting


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


def test_flags_of_agents_that_never_appeared_end_nobody() -> None:
    episode = meeting("b")
    episode.add_env_step({"b": 1.0}, {"b": 0}, {"b": 0.0, "a": 0.5}, terminateds={"a": True})
    assert not episode.is_done and list(episode.agent_ids) == ["b"]
    episode.add_env_step({"a": 1.0, "b": 1.0}, {"b": 0}, {"b": 0.0})
    episode.add_env_step(**joint_step("a", "b", terminateds={"__all__": True}))
    assert episode.agent_episodes["a"].get_rewards().tolist() == [1.0]
    with pytest.raises(AssertionError, match="ended at env step 3"):
        episode.add_env_step({}, {}, {})


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
