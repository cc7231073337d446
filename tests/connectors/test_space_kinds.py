"""Episodes of equal spaces are of one kind, whichever objects the spaces are."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple

from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors._engine.grouping import SpaceKinds
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode


def test_equal_spaces_are_one_kind() -> None:
    def episode(size: int, choices: int) -> SingleAgentEpisode:
        return SingleAgentEpisode(
            observation_space=Box(-1, 1, (size,), np.float32), action_space=Discrete(choices), agent_id="a"
        )

    kinds = SpaceKinds()
    made = [episode(*sizes) for sizes in ((2, 3), (2, 4), (2, 3), (3, 3), (2, 4))]
    assert [kinds.of(one) for one in made] == [0, 1, 0, 2, 1]
    assert [kinds.of(one) for one in made] == [0, 1, 0, 2, 1]


def test_agents_without_spaces_are_told_apart_by_their_name() -> None:
    kinds = SpaceKinds()
    assert [kinds.of(SingleAgentEpisode(agent_id=name)) for name in "abba"] == [0, 1, 1, 0]


def test_observations_of_different_spaces_that_a_piece_made_alike_are_of_two_kinds() -> None:
    kinds = SpaceKinds()
    made = [SingleAgentEpisode(observation_space=Box(-1, 1, (size,), np.float32)) for size in (2, 3, 3)]
    for episode in made:
        episode.observation_space = Box(-1, 1, (5,), np.float32)
    assert [kinds.of(one) for one in made] == [0, 1, 1]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Box(-1, 1, (2,), np.float32), Box(-1, 2, (2,), np.float32)),
        (Box(-1, 1, (2,), np.float32), Box(-2, 1, (2,), np.float32)),
        (Box(-1, 1, (2, 1), np.float32), Box(-1, 1, (1, 2), np.float32)),
        (Box(0, 1, (2,), np.int64), Box(0, 1, (2,), np.uint64)),
        (Discrete(3), Discrete(3, start=1)),
        (Dict(a=Discrete(2), b=Discrete(3)), Dict(a=Discrete(2), c=Discrete(3))),
        (Tuple((Discrete(2), Discrete(3))), Tuple((Discrete(3), Discrete(2)))),
        (Dict(a=Tuple((Discrete(2),))), Dict(a=Tuple((Discrete(3),)))),
    ],
)
def test_kinds_are_those_of_comparing_spaces(one: gym.Space[Any], other: gym.Space[Any]) -> None:
    kinds = SpaceKinds()
    spaces = [one, other, pickle.loads(pickle.dumps(one)), pickle.loads(pickle.dumps(other))]
    assert [kinds.of_agent("a", space, None) for space in spaces] == [0, 1, 0, 1]


def test_boxes_that_differ_by_rounding_and_dicts_of_another_order_are_of_one_kind() -> None:
    kinds = SpaceKinds()
    third, a, b = np.float32(1 / 3), Discrete(2), Discrete(3)
    assert Box(-third, third, (2,)) == Box(-third, np.nextafter(third, np.float32(1)), (2,))
    assert kinds.of_agent("a", Box(-third, third, (2,)), None) == 0
    assert kinds.of_agent("a", Box(-third, np.nextafter(third, np.float32(1)), (2,)), None) == 0
    assert kinds.of_agent("a", Dict({"a": a, "b": b}), None) == 1
    assert kinds.of_agent("a", Dict({"b": b, "a": a}), None) == 1


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
