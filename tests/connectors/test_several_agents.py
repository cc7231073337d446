"""Several agents: keys and groups of their rows, plain layouts and back, and agents in the order that pieces know."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple

from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors import ColumnarPiece, ConnectorV2
from epibatch.connectors.common import AddObservationsFromEpisodesToBatch, AgentToModuleMapping
from epibatch.connectors.env_to_module import AgentIndicator, EnvToModulePipeline
from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    BatchIndividualItems,
    LearnerConnectorPipeline,
)
from epibatch.core.errors import BatchLayoutError, ColumnError, ConfigError, UnknownNameError
from epibatch.core.spaces import BatchedNdArray
from epibatch.episodes import MultiAgentEpisode
from fixture_pieces import UserPiece

MODULES = {"x": "m", "y": "n", "z": "m"}


def game(id_: str = "e") -> MultiAgentEpisode:
    episode = MultiAgentEpisode(id_=id_, agent_to_module_mapping_fn=lambda agent_id, *_, **__: MODULES[agent_id])
    episode.add_env_reset(observations={"z": 0.0, "y": 10.0, "x": 20.0})
    for t in (1.0, 2.0):
        rewards = {"z": t, "y": 10 + t, "x": 20 + t}
        episode.add_env_step(rewards, dict.fromkeys("zyx", 0), rewards)
    return episode


def lives(id_: str = "e") -> MultiAgentEpisode:
    """`b` and `a` step; `b` ends, comes back and steps again; `c` has only observed."""
    episode = MultiAgentEpisode(id_=id_, agent_to_module_mapping_fn=lambda agent_id, *_, **__: agent_id.upper())
    episode.add_env_reset(observations={"b": 0, "a": 10})
    episode.add_env_step({"b": 1, "a": 11}, {"b": 0, "a": 0}, {"b": 0.0, "a": 0.0}, terminateds={"b": True})
    episode.add_env_step({"b": 2, "c": 20}, {"a": 0}, {})
    episode.add_env_step({"b": 3}, {"b": 0}, {"b": 0.0})
    return episode


def run(*pieces: Any, episodes: Any = None) -> Any:
    return LearnerConnectorPipeline(connectors=list(pieces))(episodes=episodes or [game()], batch={})


def rows() -> list[Any]:
    return [AddObservationsFromEpisodesToBatch(as_learner_connector=True), AddColumnsFromEpisodesToTrainBatch()]


def seen(*pieces: Any, episodes: Any) -> Any:
    """What a plain piece after these sees: {column: {key: list}}."""
    found: dict[str, Any] = {}
    run(*pieces, UserPiece(lambda batch, episodes: found.update(batch)), episodes=episodes)
    return {name: {key: items[0].tolist() for key, items in own.items()} for name, own in found.items()}


def test_training_takes_every_life_that_has_steps_and_all_keys_differ() -> None:
    found = seen(*rows()[:1], episodes=[lives()])["obs"]
    assert found == {("e", "b_0", "B"): [0], ("e", "b_1", "B"): [2], ("e", "a", "A"): [10]}
    episode = MultiAgentEpisode(id_="e")
    episode.add_env_reset(observations={"a": 0, "a_1": 10})
    episode.add_env_step({"a": 1, "a_1": 11}, {"a": 0, "a_1": 0}, {"a": 0, "a_1": 0}, terminateds={"a": True})
    episode.add_env_step({"a": 2}, {}, {})
    episode.add_env_step({"a": 3}, {"a": 0}, {"a": 0})
    found = seen(*rows()[:1], episodes=[episode])["obs"]
    assert list(found) == [("e", name, "default_policy") for name in ("a_0", "a_1_", "a_1")]


def test_acting_takes_the_newest_life_of_agents_with_a_new_observation() -> None:
    pieces = [AddObservationsFromEpisodesToBatch(), AgentToModuleMapping()]
    episode, shared = lives(), {}
    assert EnvToModulePipeline(connectors=pieces[:1])(episodes=[episode])["obs"] == {("e", "b", "B"): [3]}
    episode.add_env_step({"a": 12, "b": 4}, {"b": 0}, {"a": 0.0, "b": 0.0}, terminateds={"b": True})
    acting = EnvToModulePipeline(connectors=pieces)
    assert acting(episodes=[episode], shared_data=shared) == {"A": {"obs": [12]}}, "b has ended"
    ended = MultiAgentEpisode(id_="e")
    ended.add_env_reset(observations={"a": 0, "b": 10, "c": 20})
    rewards = dict.fromkeys("abc", 0.0)
    ended.add_env_step({"a": 1, "c": 21}, dict.fromkeys("abc", 0), rewards, terminateds={"b": True, "c": True})
    shown = EnvToModulePipeline(connectors=[AddObservationsFromEpisodesToBatch()])(episodes=[ended])["obs"]
    assert [key[1] for key in shown] == ["a", "c"], "b ended without an observation"


def test_the_iterator_goes_by_life_or_by_new_observation() -> None:
    episodes, iterate = [lives(), lives("f")], ConnectorV2.single_agent_episode_iterator
    every = [part.get_observations().tolist() for part in iterate(episodes, agents_that_stepped_only=False)]
    assert every == [[0, 1], [2, 3], [10, 11], [20]] * 2
    assert [part.get_observations().tolist() for part in iterate(episodes)] == [[2, 3]] * 2
    column = {("e", "b", "B"): [1.5], ("f", "b", "B"): [2.5]}
    zipped = [(part.multi_agent_episode_id, item) for part, item in iterate(episodes, zip_with_batch_column=column)]
    assert zipped == [("e", 1.5), ("f", 2.5)]


def test_plain_pieces_see_keys_of_three_parts_in_the_order_of_agents() -> None:
    found: dict[str, Any] = {}
    run(*rows(), UserPiece(lambda batch, episodes: found.update(batch)))
    assert list(found["rewards"]) == [("e", "z", "m"), ("e", "y", "n"), ("e", "x", "m")]
    (items,) = found["rewards"]["e", "y", "n"]
    assert isinstance(items, BatchedNdArray) and items.tolist() == [11.0, 12.0]


def test_what_a_plain_piece_adds_by_agent_is_a_column_of_its_module() -> None:
    def add(batch: Any, episodes: Any) -> None:
        for part in ConnectorV2.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            ConnectorV2.add_n_batch_items(batch, "twice", 2 * part.get_rewards(), len(part), part)
        batch["note"] = "mine"

    found = run(*rows(), UserPiece(add), AgentToModuleMapping(as_learner_connector=True), BatchIndividualItems())
    assert found["m"]["twice"].tolist() == [2.0, 4.0, 42.0, 44.0]
    assert found["n"]["twice"].tolist() == [22.0, 24.0]
    assert found["note"] == "mine", "what belongs to no module travels along"


def test_what_a_plain_piece_changes_by_module_stays_changed_and_lost_rows_are_named() -> None:
    def change(batch: Any, episodes: Any) -> None:
        batch["m"]["rewards"] = [2 * item for item in batch["m"]["rewards"]]

    def lose(batch: Any, episodes: Any) -> None:
        batch["m"]["rewards"] = batch["m"]["rewards"][:1]

    mapping = AgentToModuleMapping(as_learner_connector=True)
    found = run(*rows(), mapping, UserPiece(change), BatchIndividualItems())
    assert found["m"]["rewards"].tolist() == [2.0, 4.0, 42.0, 44.0]
    assert found["n"]["rewards"].tolist() == [11.0, 12.0]
    with pytest.raises(ColumnError, match=r"(?s)column 'rewards' of module 'm'.*expected: 4 rows.*found: +2 rows"):
        run(*rows(), mapping.clone(), UserPiece(lose), BatchIndividualItems())


def test_keys_that_are_nobodys_are_named() -> None:
    def stray(batch: Any, episodes: Any) -> None:
        batch["rewards"]["e", "w", "m"] = [1.0]

    with pytest.raises(BatchLayoutError, match=r"such as \('e', 'z', 'm'\)[\s\S]*\('e', 'w', 'm'\)"):
        run(*rows(), UserPiece(stray), AgentToModuleMapping(as_learner_connector=True))


# -- groups of equal spaces ----------------------------------------------------------------------


class Groups(ColumnarPiece):
    """Counts the groups of chunks that it is given."""

    reads = writes = ()

    def run(self, batch: Any, group: Any) -> Any:
        self.count = getattr(self, "count", 0) + 1
        return batch


def groups_of(*spaces: gym.Space[Any] | None) -> int:
    """How many groups the agents of one module are in, that have these observation spaces."""
    names = [f"a{i}" for i in range(len(spaces))]
    given = {} if spaces[0] is None else {"observation_space": dict(zip(names, spaces))}
    episode = MultiAgentEpisode(**given)
    seen = {name: 0 if space is None else space.sample() for name, space in zip(names, spaces)}
    episode.add_env_reset(observations=seen)
    piece = Groups()
    EnvToModulePipeline(connectors=[piece])(episodes=[episode])
    return int(piece.count)


THIRD = np.float32(1 / 3)


@pytest.mark.parametrize(
    ("one", "other", "groups"),
    [
        (Box(-1, 1, (2,), np.float32), Box(-1, 2, (2,), np.float32), 2),
        (Box(-1, 1, (2,), np.float32), Box(-2, 1, (2,), np.float32), 2),
        (Box(-1, 1, (2, 1), np.float32), Box(-1, 1, (1, 2), np.float32), 2),
        (Box(0, 1, (2,), np.int64), Box(0, 1, (2,), np.uint64), 2),
        (Discrete(3), Discrete(3, start=1), 2),
        (Dict(a=Discrete(2), b=Discrete(3)), Dict(a=Discrete(2), c=Discrete(3)), 2),
        (Tuple((Discrete(2), Discrete(3))), Tuple((Discrete(3), Discrete(2))), 2),
        (Dict(a=Tuple((Discrete(2),))), Dict(a=Tuple((Discrete(3),))), 2),
        (Box(-THIRD, THIRD, (2,)), Box(-THIRD, np.nextafter(THIRD, np.float32(1)), (2,)), 1),
        (Dict({"a": Discrete(2), "b": Discrete(3)}), Dict({"b": Discrete(3), "a": Discrete(2)}), 1),
        (None, None, 2),
    ],
)
def test_groups_are_those_of_comparing_spaces(one: Any, other: Any, groups: int) -> None:
    """Whichever objects the spaces are; agents without spaces are told apart by their names."""
    assert groups_of(one, other) == groups
    if one is not None:
        assert groups_of(one, other, pickle.loads(pickle.dumps(one)), pickle.loads(pickle.dumps(other))) == groups


AGENTS = ("left", "right", "top")


def episode_of_agents(steps: int) -> MultiAgentEpisode:
    boxes = {agent: Box(-1, 1, (2,), np.float32) for agent in AGENTS}
    observations = dict.fromkeys(AGENTS, np.zeros(2, np.float32))
    episode = MultiAgentEpisode(observation_space=Dict(boxes), action_space=Dict(dict.fromkeys(AGENTS, Discrete(2))))
    episode.add_env_reset(observations=observations)
    for _ in range(steps):
        episode.add_env_step(observations, dict.fromkeys(AGENTS, 0), dict.fromkeys(AGENTS, 1.0))
    return episode


@pytest.mark.parametrize("training", [True, False])
def test_no_boxes_are_compared_for_episodes_that_came_through_pickle(training: bool, monkeypatch: Any) -> None:
    episodes = [pickle.loads(pickle.dumps(episode_of_agents(2))) for _ in range(20)]
    spaces = episodes[0].observation_space, episodes[0].action_space
    config = PPOConfig().environment(observation_space=spaces[0], action_space=spaces[1])
    config = config.multi_agent(policies={"all"}, policy_mapping_fn=lambda agent, episode, **kwargs: "all")
    if training:
        pipeline = config.build_learner_connector(*spaces)
    else:
        pipeline = config.build_env_to_module_connector(
            env=None, spaces=dict.fromkeys(("__env_single__", "__env__"), spaces)
        )
    pipeline(batch={}, episodes=episodes)  # the first batch is compared with the declared spaces
    compared: list[Any] = []
    equal = Box.__eq__

    def count(self: Box, other: Any) -> bool:
        compared.append(other)
        return equal(self, other)

    monkeypatch.setattr(Box, "__eq__", count)
    pipeline(batch={}, episodes=[pickle.loads(pickle.dumps(one)) for one in episodes])
    assert not compared


# -- agents that pieces are told of ----------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["ab", [], ["a", "b", "a"], {"a"}, 3])
def test_what_is_no_list_of_agents(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="agent_ids"):
        AgentIndicator(agent_ids=wrong)


@pytest.mark.parametrize(
    ("agents", "found", "do"),
    [
        ([0, 1], "1", "write 1: ids are of type int here, not str"),
        (["0", "1"], 1, "write '1': ids are of type str here, not int"),
        (["left", "right"], "lift", "did you mean 'left'?"),
        (["left", "right"], "q", "name it in agent_ids"),
    ],
)
def test_an_agent_that_is_not_in_the_list_is_told_apart_from_the_one_that_was_meant(
    agents: Any, found: Any, do: str
) -> None:
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={found: np.zeros(1, np.float32)})
    with pytest.raises(UnknownNameError) as caught:
        AgentIndicator(agent_ids=agents)(batch={}, episodes=[episode])
    assert do in str(caught.value)
