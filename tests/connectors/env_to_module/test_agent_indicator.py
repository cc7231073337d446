"""One-hots of agents, appended or beside the observation, on both sides."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from epibatch.connectors.common import AddObservationsFromEpisodesToBatch, AgentToModuleMapping, BatchIndividualItems
from epibatch.connectors.connector_v2 import ConnectorV2
from epibatch.connectors.env_to_module import AgentIndicator, EnvToModulePipeline, MeanStdFilter
from epibatch.connectors.learner import AddColumnsFromEpisodesToTrainBatch, LearnerConnectorPipeline
from epibatch.core.errors import BatchLayoutError, ConfigError, PipelineError, SpaceError, UnknownNameError
from epibatch.core.registry import build_piece, piece_to_dict
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode

VECTOR = Box(np.float32([-10, -20]), np.float32([30, 40]))
MODULES = {"x": "m", "y": "n", "z": "m"}


class Plain(ConnectorV2):
    def __call__(self, *, batch: Any, **_: Any) -> Any:
        return dict(batch)


def game(*rows: dict[str, Any], name: str = "e", space: Any = VECTOR) -> MultiAgentEpisode:
    """An episode in which whoever observes acts; the pieces run after each row in `walk`."""
    episode = MultiAgentEpisode(
        id_=name,
        observation_space=dict.fromkeys("xyz", space),
        agent_to_module_mapping_fn=lambda agent, *_, **__: MODULES[agent],
    )
    episode.add_env_reset(observations=rows[0])
    return episode


def step(episode: MultiAgentEpisode, row: dict[str, Any]) -> None:
    acting = episode.get_agents_to_act()
    episode.add_env_step(row, dict.fromkeys(acting, 0), dict.fromkeys(acting, 0.0))


def v(*numbers: float) -> Any:
    return np.float32(numbers)


def pipeline(*pieces: Any, space: Any = VECTOR, agents: str = "xyz") -> EnvToModulePipeline:
    mapping = AgentToModuleMapping(agent_to_module_mapping_fn=lambda agent, _: MODULES[agent])
    return EnvToModulePipeline(
        gym.spaces.Dict(dict.fromkeys(agents, space)),
        gym.spaces.Dict({agent: Discrete(2) for agent in agents}),
        connectors=[*pieces, AddObservationsFromEpisodesToBatch(), Plain(), mapping, BatchIndividualItems()],
    )


def test_rows_of_several_steps_and_modules_when_acting_and_in_training() -> None:
    rows = [{"z": v(1, 1), "x": v(2, 2)}, {"y": v(3, 3)}, {"z": v(4, 4), "x": v(5, 5), "y": v(6, 6)}]
    episode, acting = game(*rows), pipeline(Plain(), AgentIndicator())
    seen = []
    for i, row in enumerate(rows):
        if i:
            step(episode, row)
        seen.append({name: own["obs"].tolist() for name, own in acting(rl_module=None, episodes=[episode]).items()})
    assert seen == [
        {"m": [[1, 1, 0, 0, 1], [2, 2, 1, 0, 0]]},
        {"n": [[3, 3, 0, 1, 0]]},
        {"m": [[4, 4, 0, 0, 1], [5, 5, 1, 0, 0]], "n": [[6, 6, 0, 1, 0]]},
    ]
    learner = LearnerConnectorPipeline(
        acting.episode_observation_space,
        acting.input_action_space,
        connectors=[
            AddObservationsFromEpisodesToBatch(as_learner_connector=True),
            AddColumnsFromEpisodesToTrainBatch(),
            AgentToModuleMapping(as_learner_connector=True),
            BatchIndividualItems(),
        ],
    )
    batch = learner(rl_module=None, episodes=[episode])
    assert batch["m"]["obs"].tolist() == [[1, 1, 0, 0, 1], [2, 2, 1, 0, 0]]
    assert batch["n"]["obs"].tolist() == [[3, 3, 0, 1, 0]]
    space = Box(v(-10, -20, 0, 0, 0), v(30, 40, 1, 1, 1))
    assert acting.observation_space == gym.spaces.Dict(m=space, n=space)
    assert all(own.observation_space == space for own in episode.agent_episodes.values())
    assert episode.get_observations(-1)["x"] in space


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (Discrete(7), np.int64(5)),
        (Box(0, 255, (2, 2, 1), np.uint8), np.full((2, 2, 1), 9, np.uint8)),
        (gym.spaces.Dict(p=Box(-9, 9, (2,)), q=Discrete(2)), {"p": np.float32([1, 2]), "q": np.int64(1)}),
        (VECTOR, np.float32([0, 1])),
    ],
)
def test_any_observation_beside_the_one_hot(space: Any, value: Any) -> None:
    acting = pipeline(AgentIndicator(in_dict=True), space=space)
    episode = game({"y": value}, space=space)
    acting(rl_module=None, episodes=[episode])
    found = episode.get_observations(-1)["y"]
    assert found in acting.observation_space["n"]
    assert found["agent"].tolist() == [0.0, 1.0, 0.0] and found["agent"].dtype == np.float32
    assert np.all(found["obs"] == value) if not isinstance(value, dict) else found["obs"]["q"] == 1


def test_types_stay_and_the_order_can_be_given() -> None:
    space = Box(0, 255, (2,), np.uint8)
    piece = AgentIndicator(gym.spaces.Dict(x=space, y=space), None, multi_agent=True, agent_ids=["late", "y", "x"])
    episode = game({"y": np.uint8([7, 8]), "x": np.uint8([1, 2])}, space=space)
    piece(batch={}, episodes=[episode])
    found = episode.get_observations(-1)
    assert found["y"].tolist() == [7, 8, 0, 1, 0] and found["x"].tolist() == [1, 2, 0, 0, 1]
    assert found["y"].dtype == np.uint8 and found["y"] in piece.observation_space["y"]
    rebuilt = build_piece(piece_to_dict(AgentIndicator(agent_ids=["a"], in_dict=True)))
    assert repr(rebuilt) == "AgentIndicator(agent_ids=['a'], in_dict=True)"


def test_it_goes_with_other_pieces_that_rewrite() -> None:
    """Normalised first, so that the one-hot stays one."""
    acting = pipeline(MeanStdFilter(), AgentIndicator())
    episodes = [game({"x": v(i, 2 * i), "z": v(-i, 0)}, name=f"e{i}") for i in range(4)]
    batch = acting(rl_module=None, episodes=episodes)
    assert batch["m"]["obs"][:, 2:].tolist() == [[1, 0, 0], [0, 0, 1]] * 4
    assert abs(float(batch["m"]["obs"][::2, 0].mean())) < 1e-6


def test_mistakes_are_named() -> None:
    episode = game({"y": v(1, 2)})
    with pytest.raises(UnknownNameError, match=r"the agents 'a', 'b'[\s\S]*'y'"):
        AgentIndicator(agent_ids=["a", "b"])(batch={}, episodes=[episode])
    with pytest.raises(SpaceError, match="pass agent_ids"):
        AgentIndicator()(batch={}, episodes=[episode])
    with pytest.raises(SpaceError, match=r"agent 'x'[\s\S]*in_dict=True"):
        pipeline(AgentIndicator(), space=Discrete(4))
    image = game({"y": np.zeros((2, 2), np.float32)}, space=None)
    with pytest.raises(SpaceError, match="in_dict=True"):
        AgentIndicator(agent_ids=["y"])(batch={}, episodes=[image])
    with pytest.raises(ConfigError, match="agent_ids"):
        AgentIndicator(agent_ids="xyz")
    with pytest.raises(BatchLayoutError, match="multi-agent episodes"):
        AgentIndicator(agent_ids=["y"])(batch={}, episodes=[SingleAgentEpisode(observations=[v(1, 2)])])
    with pytest.raises(PipelineError, match="move AgentIndicator before"):
        EnvToModulePipeline(connectors=[AddObservationsFromEpisodesToBatch(), AgentIndicator(agent_ids=["y"])])
