"""Which parts of multi-agent episodes a call is about, and what they are called."""

from __future__ import annotations

from typing import Any

from epibatch.connectors._engine.batch_items import single_agent_episode_iterator
from epibatch.connectors._engine.grouping import (
    AgentRows,
    RowsByModule,
    acting_rows,
    merged_rows,
    rows_given_back,
    training_rows,
)
from epibatch.episodes import MultiAgentEpisode


def game(id_: str = "e") -> MultiAgentEpisode:
    """`b` and `a` step; `b` ends, comes back and steps again; `c` has only observed."""
    episode = MultiAgentEpisode(id_=id_, agent_to_module_mapping_fn=lambda agent_id, *_, **__: agent_id.upper())
    episode.add_env_reset(observations={"b": 0, "a": 10})
    episode.add_env_step({"b": 1, "a": 11}, {"b": 0, "a": 0}, {"b": 0.0, "a": 0.0}, terminateds={"b": True})
    episode.add_env_step({"b": 2, "c": 20}, {"a": 0}, {})
    episode.add_env_step({"b": 3}, {"b": 0}, {"b": 0.0})
    return episode


def told(groups: dict[Any, AgentRows]) -> dict[Any, list[tuple[int, Any, list[int]]]]:
    return {
        group: [(place, key, part.get_observations().tolist()) for place, key, part in zip(*side_by_side(own))]
        for group, own in groups.items()
    }


def side_by_side(own: AgentRows) -> tuple[list[int], list[Any], list[Any]]:
    return own.places, own.keys(["e", "f"]), own.parts


def test_training_takes_every_life_that_has_steps() -> None:
    assert told(training_rows([game()])) == {
        ("B", 0): [(0, ("e", "b_0", "B"), [0, 1]), (1, ("e", "b_1", "B"), [2, 3])],
        ("A", 1): [(2, ("e", "a", "A"), [10, 11])],
    }


def test_an_agent_may_be_called_like_the_second_life_of_another() -> None:
    episode = MultiAgentEpisode(id_="e")
    episode.add_env_reset(observations={"a": 0, "a_1": 10})
    episode.add_env_step({"a": 1, "a_1": 11}, {"a": 0, "a_1": 0}, {"a": 0, "a_1": 0}, terminateds={"a": True})
    episode.add_env_step({"a": 2}, {}, {})
    episode.add_env_step({"a": 3}, {"a": 0}, {"a": 0})
    keys = [own.keys(["e"]) for own in training_rows([episode]).values()]
    assert [key for own in keys for key in own] == [("e", name, "default_policy") for name in ("a_0", "a_1_", "a_1")], (
        "keys are all different"
    )


def test_acting_takes_the_newest_life_of_agents_with_a_new_observation() -> None:
    episode = game()
    assert told(acting_rows([episode])) == {("B", 0): [(0, ("e", "b", "B"), [2, 3])]}
    episode.add_env_step({"a": 12, "b": 4}, {"b": 0}, {"a": 0.0, "b": 0.0}, terminateds={"b": True})
    groups = acting_rows([episode])
    assert {group: own.acting for group, own in groups.items()} == {("B", 0): [False], ("A", 1): [True]}
    rows = RowsByModule({own.module_id: own for own in groups.values()}, [episode], ["e"])
    assert dict(rows) == {"B": [("e", "b")], "A": [("e", "a")]} and len(rows) == 2
    assert rows.are_about([episode]) and not rows.are_about([game()]) and not rows.are_about([])
    left, kept = rows_given_back([episode], ["e"], rows)
    assert kept == {"B": [False], "A": [True]}
    assert {module_id: own.agents for module_id, own in left.items()} == {"A": ["a"]}
    episode.add_env_step({"a": 13}, {"a": 0}, {"a": 0.0})
    assert not rows.are_about([episode]), "a step was added"


def test_an_end_without_an_observation_is_not_seen_again() -> None:
    episode = MultiAgentEpisode(id_="e")
    episode.add_env_reset(observations={"a": 0, "b": 10})
    episode.add_env_step({"b": 11}, {"a": 0, "b": 0}, {"a": 0.0, "b": 0.0}, terminateds={"a": True})
    (own,) = acting_rows([episode]).values()
    assert own.agents == ["b"]


def test_groups_of_one_module_are_put_together_in_order() -> None:
    first, second = AgentRows("m"), AgentRows("m")
    for place in (0, 3):
        first.add(place // 2, "a", place, place)
    for place in (1, 2):
        second.add(place // 2, "b", place, place, place == 1)
    whole = merged_rows([first, second])
    assert (whole.places, whole.agents, whole.parts) == ([0, 1, 2, 3], ["a", "b", "b", "a"], [0, 1, 2, 3])
    assert whole.acting == [True, True, False, True]
    assert whole.taken([1, 3]).owners == [0, 1]


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
    assert [own.agents for own in acting_rows([episode]).values()] == [["a"], ["c"]], "they have no spaces"
