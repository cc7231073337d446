"""A common action space, and masks that say which of its actions are an agent's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

from epibatch.connectors.common import AddObservationsFromEpisodesToBatch, AgentToModuleMapping, BatchIndividualItems
from epibatch.connectors.connector_v2 import ConnectorV2
from epibatch.connectors.env_to_module import EnvToModulePipeline, PadActions, PadObservations
from epibatch.core.errors import BatchLayoutError, ConfigError, SpaceError, UnknownNameError
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode

SEEN = Box(-9, 9, (2,))
CHOICES = {"a": Discrete(2), "b": Discrete(4), "c": Discrete(3, start=2)}


class Plain(ConnectorV2):
    def __call__(self, *, batch: Any, **_: Any) -> Any:
        return dict(batch)


def pipeline(*pieces: Any, actions: Any, seen: Any = SEEN) -> EnvToModulePipeline:
    spaces = Dict({agent: seen[agent] if isinstance(seen, dict) else seen for agent in actions})
    mapping = AgentToModuleMapping(agent_to_module_mapping_fn=lambda *_: "shared")
    tail = [AddObservationsFromEpisodesToBatch(), mapping, BatchIndividualItems()]
    return EnvToModulePipeline(spaces, Dict(actions), connectors=[*pieces, *tail])


def episode_of(actions: Any, observations: dict[str, Any], seen: Any = None) -> MultiAgentEpisode:
    episode = MultiAgentEpisode(
        id_="e",
        observation_space=seen,
        action_space=actions,
        agent_to_module_mapping_fn=lambda *_, **__: "shared",
    )
    episode.add_env_reset(observations=observations)
    return episode


def test_masks_and_spaces_step_by_step() -> None:
    acting = pipeline(Plain(), PadActions(), actions=CHOICES)
    assert acting.action_space == Dict(shared=Discrete(5))
    assert acting.observation_space == Dict(shared=Dict(action_mask=MultiBinary(5), observations=SEEN))
    episode = episode_of(CHOICES, {"c": np.float32([1, 2]), "b": np.float32([3, 4])}, dict.fromkeys("abc", SEEN))
    batch = acting(rl_module=None, episodes=[episode])["shared"]["obs"]
    assert batch["action_mask"].tolist() == [[0, 0, 1, 1, 1], [1, 1, 1, 1, 0]]
    assert batch["observations"].tolist() == [[1, 2], [3, 4]]
    rows = {agent: np.float32([i, i]) for i, agent in enumerate("abc")}
    episode.add_env_step(rows, {"c": 2, "b": 0}, {"c": 0.0, "b": 0.0})
    batch = acting(rl_module=None, episodes=[episode])["shared"]["obs"]
    masks = {"c": [0, 0, 1, 1, 1], "b": [1, 1, 1, 1, 0], "a": [1, 1, 0, 0, 0]}
    assert batch["action_mask"].tolist() == list(masks.values())  # in the order of appearance
    for agent, own in episode.agent_episodes.items():
        newest = own.get_observations(-1)
        assert newest in own.observation_space and newest["action_mask"].tolist() == masks[agent]
        assert np.flatnonzero(newest["action_mask"]).tolist() == [x for x in range(5) if CHOICES[agent].contains(x)]


def test_a_mask_that_is_there_is_lengthened() -> None:
    actions = {"a": Discrete(2), "b": Discrete(4)}
    seen = {
        agent: Dict(action_mask=Box(0, 1, (int(space.n),), np.int8), observation=SEEN)
        for agent, space in actions.items()
    }
    acting = pipeline(PadActions(), actions=actions, seen=seen)
    assert acting.observation_space["shared"] == Dict(action_mask=MultiBinary(4), observation=SEEN)
    rows = {
        "a": {"action_mask": np.int8([0, 1]), "observation": np.float32([1, 1])},
        "b": {"action_mask": np.int8([1, 0, 0, 1]), "observation": np.float32([2, 2])},
    }
    batch = acting(rl_module=None, episodes=[episode_of(actions, rows, seen)])["shared"]["obs"]
    assert batch["action_mask"].tolist() == [[0, 1, 0, 0], [1, 0, 0, 1]] and batch["action_mask"].dtype == np.int8
    assert batch["observation"].tolist() == [[1, 1], [2, 2]]
    rows["a"]["action_mask"] = np.int8([1, 1, 1])
    with pytest.raises(SpaceError, match=r"'action_mask' of agent 'a'[\s\S]*shape \(3,\)"):
        acting(rl_module=None, episodes=[episode_of(actions, rows)])


def test_boxes_have_a_common_space_and_no_mask() -> None:
    actions = {"a": Box(-2, 2, (1,)), "b": Box(1, 3, (3,))}
    acting = pipeline(PadActions(), actions=actions)
    assert acting.action_space["shared"] == Box(np.float32([-2, 0, 0]), np.float32([3, 3, 3]))
    assert acting.observation_space["shared"] == SEEN
    episode = episode_of(actions, {"a": np.float32([1, 2])})
    assert acting(rl_module=None, episodes=[episode])["shared"]["obs"].tolist() == [[1, 2]]


def test_equal_spaces_and_agents_that_are_not_meant_stay() -> None:
    acting = pipeline(PadActions(), actions={"a": Discrete(3), "b": Discrete(3)})
    assert acting.action_space["shared"] == Discrete(3) and acting.observation_space["shared"] == SEEN
    piece = PadActions(Dict(dict.fromkeys("abc", SEEN)), Dict(CHOICES), multi_agent=True, agent_ids=["a", "b"])
    assert piece.action_space == Dict(a=Discrete(4), b=Discrete(4), c=CHOICES["c"])
    assert piece.observation_space["c"] == SEEN
    episode = episode_of(CHOICES, {agent: np.float32([1, 2]) for agent in "abc"}, dict.fromkeys("abc", SEEN))
    piece(batch={}, episodes=[episode])
    newest = episode.get_observations(-1)
    assert newest["c"].tolist() == [1, 2] and newest["a"]["action_mask"].tolist() == [1, 1, 0, 0]
    assert episode.agent_episodes["c"].observation_space == SEEN


def test_padded_observations_first() -> None:
    seen = {"a": Box(-1, 1, (1,)), "b": Box(-1, 1, (3,))}
    actions = {"a": Discrete(3), "b": Discrete(2)}
    acting = pipeline(PadObservations(), PadActions(), actions=actions, seen=seen)
    episode = episode_of(actions, {"a": np.float32([1]), "b": np.float32([1, 1, 1])}, seen)
    batch = acting(rl_module=None, episodes=[episode])["shared"]["obs"]
    assert batch["observations"].tolist() == [[1, 0, 0], [1, 1, 1]]
    assert batch["action_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]


def test_mistakes_are_named() -> None:
    for wrong in ({"a": Discrete(2), "b": Box(0, 1, (1,))}, {"a": MultiDiscrete([2]), "b": MultiDiscrete([3])}):
        with pytest.raises(SpaceError, match="PadActions, action spaces"):
            pipeline(PadActions(), actions=wrong)
    with pytest.raises(SpaceError, match=r"Discrete spaces, or Boxes[\s\S]*MultiBinary"):
        pipeline(PadActions(), actions={"a": MultiBinary(2), "b": MultiBinary(3)})
    with pytest.raises(UnknownNameError, match="'z'"):
        pipeline(PadActions(agent_ids=["a", "z"]), actions=CHOICES)
    with pytest.raises(ConfigError, match="agent_ids"):
        PadActions(agent_ids="a")
    with pytest.raises(SpaceError, match="a Dict of the agents' action spaces"):
        PadActions()(batch={}, episodes=[episode_of(CHOICES, {"a": np.float32([1, 2])})])
    with pytest.raises(BatchLayoutError, match="multi-agent episodes"):
        PadActions()(batch={}, episodes=[SingleAgentEpisode(observations=[0])])
