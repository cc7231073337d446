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


def test_parts_own_their_rows_and_their_custom_data() -> None:
    episode = episode_of("a")
    episode.custom_data["x"] = [1]
    for part in (episode.cut(4), episode[:]):
        part.custom_data["x"].append(2)
        part.set_observations(new_data={"a": 9.0}, at_indices=-1)
        assert episode.custom_data == {"x": [1]}
        assert episode.get_observations(-1) == {"a": 1.0}


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
