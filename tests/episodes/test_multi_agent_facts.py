"""What a multi-agent episode says about itself."""

from __future__ import annotations

import time

import pytest

from epibatch.core.errors import EpisodeStateError
from epibatch.episodes import MultiAgentEpisode


def turns() -> MultiAgentEpisode:
    episode = MultiAgentEpisode(id_="game")
    episode.add_env_reset(observations={"player": 0.0})
    episode.add_env_step({"o": 1.0}, {"player": 1}, {"player": 0.5}, extra_model_outputs={"player": {"v": 2.0}})
    episode.add_env_step({"player": 2.0}, {"o": 2}, {"player": 0.25}, extra_model_outputs={"o": {"v": 3.0}})
    return episode


def test_agents_come_in_the_order_of_their_first_observation() -> None:
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"z": 0.0, "m": 0.0})
    episode.add_env_step({"z": 1.0}, {"z": 0}, {"z": 0.0, "early": 1.0, "other": 1.0})
    episode.add_env_step({"a": 1.0, "early": 0.0, "z": 1.0}, {"z": 0}, {"z": 0.0})
    episode.add_env_step({"other": 0.0}, {}, {})
    order = ["z", "m", "a", "early", "other"]
    assert [*episode.agent_ids] == [*episode.agent_episodes] == [*episode.agent_episode_ids] == order
    assert [segment.agent_id for segment in episode.segments] == order
    assert episode.agent_ids == set(order) and episode.agent_ids - {"z"} == set(order[1:])
    assert [*episode.cut().agent_ids] == order


def test_agent_episodes_cannot_be_replaced_in_silence() -> None:
    with pytest.raises(TypeError):
        turns().agent_episodes["o"] = None  # type: ignore[index]


def test_what_is_pending() -> None:
    episode = turns()
    assert episode.pending_actions == {"o": 2}
    assert episode.pending_extra_model_outputs == {"o": {"v": 3.0}}
    assert episode.pending_rewards == {}
    assert (episode.get_return(), episode.agent_steps()) == (0.75, 1)


def test_the_map_of_env_steps_starts_with_the_lookback() -> None:
    chunk = turns().cut(1)
    chunk.add_env_step({"o": 3.0}, {"player": 0}, {"player": 0.0}, extra_model_outputs={"player": {"v": 0.0}})
    rows = {agent: row.data for agent, row in chunk.env_t_to_agent_t.items()}
    assert rows == {"player": ["S", 1, "S"], "o": [0, "S", 1]}
    assert chunk.env_t_to_agent_t["o"].get(-1, neg_index_as_lookback=True) == 0
    assert chunk.agent_t_started == {"player": 1, "o": 0}


def test_print_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    turns().cut(1).print()
    assert capsys.readouterr().out.splitlines() == [
        "ts       -1    0",
        "player         x",
        "o         x",
    ]
    MultiAgentEpisode().print()
    assert capsys.readouterr().out == "ts    0\n"


def test_duration_counts_from_the_reset() -> None:
    assert MultiAgentEpisode().get_duration_s() == 0.0
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0.0})
    time.sleep(0.01)
    episode.add_env_step({"a": 1.0}, {"a": 0}, {"a": 0.0})
    assert episode.get_duration_s() >= 0.01
    assert episode.cut().get_duration_s() == episode.get_duration_s()


def test_an_agent_that_ends_without_an_observation_steps_and_does_not_observe() -> None:
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0.0, "b": 0.0, "c": 0.0})
    assert list(episode.get_agents_that_observed()) == ["a", "b", "c"]
    rewards = {"a": 0.0, "b": 0.0, "c": 0.0}
    episode.add_env_step({"a": 1.0, "c": 1.0}, {"a": 0, "b": 0, "c": 0}, rewards, terminateds={"b": True, "c": True})
    assert list(episode.get_agents_that_stepped()) == ["a", "b", "c"]
    assert list(episode.get_agents_that_observed()) == ["a", "c"]
    episode.add_env_step({"b": 5.0}, {"a": 0}, {})
    assert list(episode.get_agents_that_observed()) == ["b"]


def test_a_refused_end_without_an_observation_leaves_no_mark() -> None:
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0.0, "b": 0.0})
    ends = {"terminateds": {"a": True}, "truncateds": {"b": True}}
    with pytest.raises(EpisodeStateError):
        episode.add_env_step({}, {"a": 0, "b": 0}, {"a": 1.0, "b": 1.0}, **ends)
    assert list(episode.get_agents_that_observed()) == ["a", "b"] and episode.get_return() == 0.0


def test_agents_without_an_action_may_have_observed_long_ago():
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"x": 0, "y": 0, "z": 0})
    episode.add_env_step({"y": 1}, {"x": 0, "y": 0}, {"y": 0.0}, terminateds={"z": True})
    assert list(episode.get_agents_without_action()) == ["y"]
    episode.add_env_step({"x": 2}, {}, {})
    assert list(episode.get_agents_without_action()) == ["x", "y"]
    assert list(episode.get_agents_to_act()) == ["x"]


def test_a_mapping_function_that_fails_says_for_whom():
    def first_letter(agent_id, episode):
        return agent_id[0]

    episode = MultiAgentEpisode(id_="game", agent_to_module_mapping_fn=first_letter)
    with pytest.raises(TypeError, match=r"asked for agent 7 of episode game:\n.*not subscriptable"):
        episode.module_for(7)
