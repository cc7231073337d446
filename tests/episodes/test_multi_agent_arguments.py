"""Multi-agent episodes made from data."""

from __future__ import annotations

from typing import Any

import pytest

from epibatch.episodes import MultiAgentEpisode

OBSERVATIONS = [{"a": 0.0, "b": 0.0}, {"a": 1.0}, {"b": 2.0}, {"a": 3.0, "b": 3.0, "c": 3.0}]
ACTIONS = [{"a": 10, "b": 20}, {"a": 11}, {"b": 22}]
REWARDS = [{"a": 0.5, "b": 0.25}, {"b": 0.5}, {"a": 1.0, "b": 2.0}]


def made(**keywords: Any) -> MultiAgentEpisode:
    return MultiAgentEpisode(**{"observations": OBSERVATIONS, "actions": ACTIONS, "rewards": REWARDS, **keywords})


def test_given_steps_are_lookback_unless_it_is_said_how_many() -> None:
    auto = made(env_t_started=10)
    assert (len(auto), auto.lookback, auto.env_t_started, auto.env_t) == (0, 3, 10, 10)
    assert {s.agent_id: s.env_steps.tolist() for s in auto.segments} == {"a": [7, 8, 10], "b": [7, 9, 10], "c": [10]}
    assert made(len_lookback_buffer=9).lookback == 3
    whole = made(len_lookback_buffer=0)
    assert (len(whole), whole.agent_steps(), whole.env_t) == (3, 4, 3)
    assert whole.agent_episodes["b"].get_rewards().tolist() == [0.75, 2.0]


def test_an_agents_step_that_ends_behind_the_start_is_in_the_chunk() -> None:
    chunk = made(len_lookback_buffer=2, agent_t_started={"a": 4, "b": 7})
    a, b, c = chunk.agent_episodes.values()
    assert (a.lookback, len(a), a.t_started, a.get_rewards().tolist()) == (1, 1, 4, [1.0])
    assert (b.lookback, len(b), b.t_started, b.get_rewards().tolist()) == (1, 1, 7, [2.0])
    assert (c.lookback, len(c), c.t_started) == (0, 0, 0)
    assert chunk.agent_steps() == 2


def test_the_same_as_step_by_step() -> None:
    outputs = [{agent: {"v": 1.0} for agent in acts} for acts in ACTIONS]
    infos = [{agent: {"t": t} for agent in sees} for t, sees in enumerate(OBSERVATIONS)]
    ids = {"a": "A", "b": "B", "c": "C"}
    one = made(infos=infos, extra_model_outputs=outputs, len_lookback_buffer=0, id_="game", agent_episode_ids=ids)
    other = MultiAgentEpisode(id_="game", agent_episode_ids=ids)
    other.add_env_reset(observations=OBSERVATIONS[0], infos=infos[0])
    for t in range(3):
        step = (OBSERVATIONS[t + 1], ACTIONS[t], REWARDS[t], infos[t + 1])
        other.add_env_step(*step, extra_model_outputs=outputs[t])
    assert one.equals(other)
    one.add_env_step({"a": 4.0, "b": 4.0, "c": 4.0}, dict.fromkeys("abc", 0), dict.fromkeys("abc", 0.0),
                     extra_model_outputs={agent: {"v": 0.0} for agent in "abc"})  # fmt: skip
    assert len(one) == 4


def test_as_many_actions_as_observations_leave_the_last_ones_pending() -> None:
    episode = made(actions=[*ACTIONS, {"a": 13}], rewards=[*REWARDS, {"a": 0.5}], len_lookback_buffer=0)
    assert (len(episode), episode.pending_actions, episode.pending_rewards) == (4, {"a": 13}, {"a": 0.5})


def test_flags_end_agents_at_their_last_observation() -> None:
    episode = made(terminateds={"b": True}, truncateds={"c": True}, len_lookback_buffer=0)
    assert episode.get_terminateds() == {"a": False, "b": True, "c": False, "__all__": False}
    assert episode.get_truncateds() == {"a": False, "b": False, "c": True, "__all__": False}
    assert [segment.ended_at for segment in episode.segments] == [None, 3, 3]
    assert made(truncateds=True).is_truncated and not made(truncateds=True).is_terminated
    assert made(terminateds={"__all__": True}).get_terminateds()["a"] is True
    assert not made(terminateds=False).is_done


def test_a_flag_for_an_agent_that_acted_last_needs_an_observation_to_be_truncated() -> None:
    last = {"actions": [*ACTIONS, {"a": 13}], "rewards": [*REWARDS, {"a": 0.5}]}
    ended = made(**last, terminateds={"a": True}, len_lookback_buffer=0).agent_episodes["a"]
    assert (ended.get_observations().tolist(), ended.is_terminated) == ([0, 1, 3, 3], True)
    with pytest.raises(ValueError, match="truncated"):
        made(**last, truncateds={"a": True})


@pytest.mark.parametrize(
    "wrong",
    [
        {"actions": ACTIONS[:2]},
        {"rewards": REWARDS[:2]},
        {"observations": OBSERVATIONS[:2]},
        {"observations": None},
        {"infos": [{}]},
        {"extra_model_outputs": [{}]},
    ],
)
def test_lengths_that_do_not_fit_are_named(wrong: Any) -> None:
    with pytest.raises(ValueError, match="a dict by agent for each env step"):
        made(**wrong)


@pytest.mark.parametrize("space", [3, {"a": 3}])
def test_spaces_that_are_none_are_refused(space: Any) -> None:
    with pytest.raises(ValueError, match="action_space"):
        MultiAgentEpisode(action_space=space)
