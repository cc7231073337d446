"""Which parts of multi-agent episodes a call is about, and what they are called."""

from __future__ import annotations

from typing import Any

from epibatch.connectors.agent_chunks import acting_chunks, chunks_of_rows, rows_by_module, training_chunks
from epibatch.connectors.batch_items import single_agent_episode_iterator
from epibatch.episodes import MultiAgentEpisode


def game(id_: str = "e") -> MultiAgentEpisode:
    """`b` and `a` step; `b` ends, comes back and steps again; `c` has only observed."""
    episode = MultiAgentEpisode(id_=id_, agent_to_module_mapping_fn=lambda agent_id, *_, **__: agent_id.upper())
    episode.add_env_reset(observations={"b": 0, "a": 10})
    episode.add_env_step({"b": 1, "a": 11}, {"b": 0, "a": 0}, {"b": 0.0, "a": 0.0}, terminateds={"b": True})
    episode.add_env_step({"b": 2, "c": 20}, {"a": 0}, {})
    episode.add_env_step({"b": 3}, {"b": 0}, {"b": 0.0})
    return episode


def told(chunks: Any) -> list[tuple[int, Any, list[int]]]:
    return [(owner, key, part.get_observations().tolist()) for owner, key, part in chunks]


def test_training_takes_every_life_that_has_steps() -> None:
    assert told(training_chunks([game()])) == [
        (0, ("e", "b_0", "B"), [0, 1]),
        (0, ("e", "b_1", "B"), [2, 3]),
        (0, ("e", "a", "A"), [10, 11]),
    ]


def test_episodes_that_share_an_id_have_keys_of_their_own() -> None:
    keys = [key for _, key, _ in training_chunks([game(), game()])]
    assert [key[0] for key in keys] == ["e_0"] * 3 + ["e_1"] * 3
    assert len(set(keys)) == 6


def test_acting_takes_the_newest_life_of_agents_with_a_new_observation() -> None:
    episode = game()
    assert told(acting_chunks([episode])) == [(0, ("e", "b", "B"), [2, 3])]
    episode.add_env_step({"a": 12, "b": 4}, {"b": 0}, {"a": 0.0, "b": 0.0}, terminateds={"b": True})
    chunks = acting_chunks([episode])
    assert [key for _, key, _ in chunks] == [("e", "b", "B"), ("e", "a", "A")], "the one that has just ended too"
    rows = rows_by_module(chunks)
    assert rows == {"B": [("e", "b")], "A": [("e", "a")]}
    found = {module_id: [own and own.key for own in chunks] for module_id, chunks in chunks_of_rows([episode], rows)}
    assert found == {"B": [None], "A": [("e", "a", "A")]}


def test_the_iterator_goes_by_life_or_by_new_observation() -> None:
    episodes = [game(), game("f")]
    every = [part.get_observations().tolist() for part in single_agent_episode_iterator(episodes, False)]
    assert every == [[0, 1], [2, 3], [10, 11], [20]] * 2
    newest = [part.get_observations().tolist() for part in single_agent_episode_iterator(episodes)]
    assert newest == [[2, 3]] * 2
    column = {("e", "b", "B"): [1.5], ("f", "b", "B"): [2.5]}
    zipped = [
        (part.multi_agent_episode_id, item) for part, item in single_agent_episode_iterator(episodes, True, column)
    ]
    assert zipped == [("e", 1.5), ("f", 2.5)]


def test_an_agent_that_ended_without_an_observation_is_not_shown_again() -> None:
    episode = MultiAgentEpisode(id_="e")
    episode.add_env_reset(observations={"a": 0.0, "b": 0.0, "c": 0.0})
    rewards = {"a": 0.0, "b": 0.0, "c": 0.0}
    episode.add_env_step({"a": 1.0, "c": 1.0}, {"a": 0, "b": 0, "c": 0}, rewards, terminateds={"b": True, "c": True})
    assert [chunk.key[1] for chunk in acting_chunks([episode])] == ["a", "c"]
