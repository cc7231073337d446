"""Cutting, slicing and concatenating episodes of several agents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from epibatch.core.errors import EpisodeError
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode


def step_of(*agents: str, **flags: Any) -> dict[str, Any]:
    return {
        "observations": dict.fromkeys(agents, 1.0),
        "actions": dict.fromkeys(agents, 0),
        "rewards": dict.fromkeys(agents, 0.5),
        "extra_model_outputs": {agent: {"v": 1.0} for agent in agents},
        **flags,
    }


def episode_of(*agents: str, steps: int = 4) -> MultiAgentEpisode:
    episode = MultiAgentEpisode(id_="game")
    episode.add_env_reset(observations=dict.fromkeys(agents, 0.0), infos={a: {"t": 0} for a in agents})
    for t in range(steps):
        episode.add_env_step(**step_of(*agents, infos={agent: {"t": t + 1} for agent in agents}))
    return episode


@pytest.mark.parametrize(("asked", "kept"), [(0, 0), (1, 1), (3, 3), (9, 4)])
def test_a_cut_keeps_the_lookback_that_is_asked_for_and_there(asked: int, kept: int) -> None:
    chunk = episode_of("a", "b").cut(asked)
    assert (chunk.lookback, chunk.env_t_started, len(chunk)) == (kept, 4, 0)
    single = chunk.agent_episodes["a"]
    assert (single.lookback, single.t_started, len(single)) == (kept, 4, 0)
    assert chunk.get_infos(slice(-kept, None), neg_index_as_lookback=True)["a"] == [
        {"t": t} for t in range(4 - kept, 5)
    ]


def test_concatenating_keeps_both_flags_of_an_agent_that_ended_both_ways() -> None:
    left = episode_of("a", "b")
    right = left.cut()
    right.add_env_step(**step_of("a", "b", terminateds={"a": True}, truncateds={"a": True}))
    left.concat_episode(right)
    single = left.agent_episodes["a"]
    assert (single.is_terminated, single.is_truncated, left.is_done) == (True, True, False)


def test_parts_own_their_rows_and_their_custom_data() -> None:
    episode = episode_of("a")
    episode.custom_data["x"] = [1]
    for part in (episode.cut(4), episode[:]):
        part.custom_data["x"].append(2)
        part.set_observations(new_data={"a": 9.0}, at_indices=-1)
        assert episode.custom_data == {"x": [1]}
        assert episode.get_observations(-1) == {"a": 1.0}


def test_a_slice_keeps_infos_names_and_spaces_and_the_end_if_it_is_in_it() -> None:
    episode = episode_of("a", "b")
    episode.add_env_step(**step_of("a", "b", truncateds={"b": True}))
    episode.add_env_step(**step_of("a", terminateds={"__all__": True}))
    part = episode.slice(slice(1, 5), len_lookback_buffer=1)
    assert part.get_infos(0)["a"] == {"t": 1}
    assert part.agent_episode_ids == episode.agent_episode_ids
    assert (part.is_done, part.lookback, part.env_t_started, part.env_t) == (False, 1, 1, 5)
    assert part.get_truncateds() == {"a": False, "b": True, "__all__": False}
    assert episode[4:].get_terminateds() == {"a": True, "b": False, "__all__": True}
    assert list(episode[5:].agent_ids) == ["a"]  # b had ended by then, as after a cut


def test_pending_values_go_along_and_are_copies() -> None:
    episode = episode_of("b")
    action = np.array([1.0, 2.0])
    episode.add_env_step({"a": 0.0, "b": 0.0}, {"b": 0}, {"b": 0.0, "late": 0.5}, extra_model_outputs={"b": {"v": 0.0}})
    episode.add_env_step({}, {"a": action}, {"a": 0.25}, {"a": {"i": 1}})
    for part in (episode.cut(), episode[:], episode[3:]):
        assert part.pending_actions["a"].tolist() == [1, 2]
        part.pending_actions["a"][0] = -1.0
        assert part.pending_rewards == {"late": 0.5, "a": 0.25}
        part.add_env_step({"a": 1.0, "late": 1.0}, {}, {"a": 0.5})
        assert part.get_infos(-1) == {"a": {"i": 1}, "late": {}}
    assert episode.pending_actions["a"].tolist() == [1, 2]
    assert episode[:5].pending_rewards == {}  # before the step in which it acted; what was early is known at the end
    action[:] = 7.0
    assert episode.pending_actions["a"].tolist() == [1, 2]


def test_a_slice_that_stops_within_an_agents_step_has_it_pending_with_its_whole_reward() -> None:
    episode = episode_of("a", "b", steps=1)
    episode.add_env_step({}, {"a": 5}, {"a": 0.25}, extra_model_outputs={"a": {"v": 2.0}})
    episode.add_env_step({"a": 3.0}, {}, {"a": 0.5})
    part = episode[:2]
    assert (part.pending_actions, part.pending_rewards) == ({"a": 5}, {"a": 0.75})
    assert part.pending_extra_model_outputs == {"a": {"v": 2.0}}
    rest = episode[2:]
    assert (rest.lookback, rest.agent_episodes["a"].get_rewards().tolist()) == (1, [0.75])
    part.concat_episode(rest)
    assert part.equals(episode)


def test_concatenating_takes_over_the_end_and_what_is_pending() -> None:
    left = episode_of("a", "b")
    left.add_env_step({}, {"a": 1}, {"a": 0.25}, extra_model_outputs={"a": {"v": 0.0}})
    right = left.cut(1)
    right.custom_data["x"] = 1
    right.add_env_step({"a": 2.0, "c": 0.0}, {}, {"a": 0.5})
    right.add_env_step(**step_of("b", "a", "c", truncateds={"c": True}))
    right.add_env_step(**step_of("b", "a", terminateds={"__all__": True}))
    left.concat_episode(right)
    assert (len(left), left.is_terminated, left.custom_data) == (8, True, {"x": 1})
    assert left.agent_episodes["a"].get_rewards().tolist() == [0.5] * 4 + [0.75, 0.5, 0.5]
    assert left.get_return(True) == left.get_return()
    assert left.segments[2].env_steps.tolist() == [6, 7]
    left.set_rewards(new_data={"c": [9.0]})
    assert right.get_rewards(agent_ids="c")["c"].tolist() == [0.5]


def test_an_agent_without_a_step_on_the_left_may_have_outputs_on_the_right() -> None:
    left = episode_of("a", steps=1)
    left.add_env_step({"a": 1.0, "new": 0.0}, {"a": 0}, {"a": 0.0}, extra_model_outputs={"a": {"v": 0.0}})
    right = left.cut()
    right.add_env_step(**step_of("a", "new"))
    left.concat_episode(right)
    assert left.get_extra_model_outputs("v", agent_ids="new")["new"].tolist() == [1.0]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda e: episode_of("a"), "starts at env step 4"),
        (lambda e: MultiAgentEpisode(id_="x"), "a chunk of episode game"),
        (lambda e: SingleAgentEpisode(id_="game"), "pass a MultiAgentEpisode"),
        (lambda e: e.slice(slice(2, None)), "starts at env step 4"),
        (lambda e: MultiAgentEpisode(id_="game", env_t_started=4), "in which agents .'a'. go on"),
        (lambda e: changed(e.cut()), "(?s)agent 'a'.*the observation this chunk ends with"),
    ],
)
def test_chunks_that_do_not_continue_are_refused(other: Any, words: str) -> None:
    episode = episode_of("a")
    before = episode[:]
    with pytest.raises(ValueError, match=words):
        episode.concat_episode(other(episode))
    assert episode.equals(before)


def changed(chunk: MultiAgentEpisode) -> MultiAgentEpisode:
    chunk.set_observations(new_data={"a": 7.0}, at_indices=-1)
    return chunk


def test_nothing_follows_an_episode_that_is_done() -> None:
    episode = episode_of("a")
    chunk = episode.cut()
    episode.add_env_step(**step_of("a", terminateds={"__all__": True}))
    with pytest.raises(AssertionError, match="a running episode"):
        episode.concat_episode(chunk)
    with pytest.raises(AssertionError, match="ended at env step 5"):
        episode.cut()


@pytest.mark.parametrize(
    ("wanted", "own", "slow", "fast"), [(0, 0, 0, 1), (1, 0, 0, 1), (0, 2, 2, 7), (3, 1, 1, 4), (9, 9, 2, 7)]
)
def test_a_cut_keeps_steps_of_each_agents_own(wanted, own, slow, fast):
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"slow": 0, "fast": 0})
    for t in range(1, 8):  # slow observes at 0, 3 and 6, and acts one step later
        seen = {"fast": t, **({"slow": t} if t % 3 == 0 else {})}
        acting = ["fast", *(["slow"] if t % 3 == 1 else [])]
        episode.add_env_step(seen, dict.fromkeys(acting, 0), dict.fromkeys(acting, 0.0))
    chunk = episode.cut(wanted, agent_steps=own)
    assert {agent: one.lookback for agent, one in chunk.agent_episodes.items()} == {"slow": slow, "fast": fast}
    with pytest.raises(EpisodeError, match="agent_steps"):
        episode.cut(agent_steps=-1)


@pytest.mark.parametrize(("wanted", "own"), [(0, [6]), (1, [6]), (2, [6]), (3, [3, 6]), (4, [3, 6]), (6, [0, 3, 6])])
def test_an_agent_that_waits_for_its_next_observation_keeps_as_much_as_in_rllib(wanted, own):
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"slow": 0, "fast": 0})
    for t in range(1, 8):  # slow observes at 0, 3 and 6, and acts at once
        seen = {"fast": t, **({"slow": t} if t % 3 == 0 else {})}
        acting = ["fast", *(["slow"] if t % 3 == 1 else [])]
        episode.add_env_step(seen, dict.fromkeys(acting, 0), dict.fromkeys(acting, 0.0))
    kept = episode.cut(wanted).agent_episodes["slow"].observations.data.tolist()  # at the lookback's env steps
    assert kept == own


def test_lives_that_ended_stay_as_far_as_the_lookback_reaches() -> None:
    """b and c end at env steps 2 and 4; a's rows are at every env step."""
    episode = episode_of("a", "b", "c", steps=1)
    episode.add_env_step(**step_of("a", "b", "c", terminateds={"b": True}))
    episode.add_env_step(**step_of("a", "c"))
    episode.add_env_step(**step_of("a", "c", truncateds={"c": True}))

    def past(part: MultiAgentEpisode) -> list[tuple[str, list[int], int]]:
        return [(life.agent_id, life.env_steps.tolist(), len(life.episode)) for life in part.past_segments]

    assert not episode.past_segments
    for lookback, kept in ((0, [("c", [4], 0)]), (1, [("c", [3, 4], 0)]), (2, [("b", [2], 0), ("c", [2, 3, 4], 0)])):
        chunk = episode.cut(lookback)
        assert past(chunk) == kept and list(chunk.agent_ids) == ["a"]
        state = MultiAgentEpisode.from_state(chunk.get_state())
        assert past(state) == kept and [one.episode.is_truncated for one in state.past_segments][-1:] == [True]
    chunk = episode.cut(2)
    for _ in range(3):
        chunk.add_env_step(**step_of("a"))
    assert past(episode.cut(2)) == past(chunk)
    assert past(chunk.cut(3)) == [("c", [4], 0)] and not past(chunk.cut(2))
    whole = episode_of("a")
    whole.concat_episode(whole.cut())
    assert not whole.past_segments
    assert past(episode.slice(slice(3, None), len_lookback_buffer=1)) == [("b", [2], 0)]
    chunk.past_segments[0].episode.set_observations(new_data=7.0, at_indices=-1)
    assert episode.agent_episodes["b"].get_observations(-1) == 1.0
