"""Agents whose observations differ share a module."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from epibatch.connectors.common import AddObservationsFromEpisodesToBatch, AgentToModuleMapping, BatchIndividualItems
from epibatch.connectors.connector_v2 import ConnectorV2
from epibatch.connectors.env_to_module import AgentIndicator, EnvToModulePipeline, FlattenObservations, PadObservations
from epibatch.connectors.learner import AddColumnsFromEpisodesToTrainBatch, LearnerConnectorPipeline
from epibatch.core.errors import BatchLayoutError, ConfigError, SpaceError, UnknownNameError
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode
from oracle.agents import Schedule, schedules
from oracle.cases import random_cases

SIZES = {"a": 1, "b": 4, "c": 2, "d": 4}
SPACES = gym.spaces.Dict({agent: Box(-np.inf, np.inf, (size,), np.float32) for agent, size in SIZES.items()})


class Plain(ConnectorV2):
    def __call__(self, *, batch: Any, **_: Any) -> Any:
        return dict(batch)


def own(agent: str, observation: Any) -> Any:
    return np.resize(observation, SIZES[agent]).astype(np.float32)


def pipeline(*pieces: Any, spaces: Any = SPACES) -> EnvToModulePipeline:
    actions = gym.spaces.Dict(dict.fromkeys(spaces.spaces, Discrete(4)))
    mapping = AgentToModuleMapping(agent_to_module_mapping_fn=lambda agent, _: "shared")
    tail = [AddObservationsFromEpisodesToBatch(), mapping, BatchIndividualItems()]
    return EnvToModulePipeline(spaces, actions, connectors=[*pieces, *tail])


def episode_of(spaces: Any, observations: dict[str, Any]) -> MultiAgentEpisode:
    episode = MultiAgentEpisode(id_="e", observation_space=spaces, agent_to_module_mapping_fn=lambda *_, **__: "shared")
    episode.add_env_reset(observations=observations)
    return episode


@random_cases(schedule=schedules(agents=4, length=8))
def test_in_every_step_and_in_the_train_batch(schedule: Schedule) -> None:
    acting, seen = pipeline(Plain(), PadObservations(), Plain()), {}

    def expected(agent: str, observation: Any) -> list[float]:
        return [*own(agent, observation).tolist(), *[0.0] * (4 - SIZES[agent])]

    def act(observations: dict[str, Any]) -> None:
        batch = acting(rl_module=None, episodes=[episode])
        to_act = list(episode.get_agents_to_act())
        rows = batch["shared"]["obs"].tolist() if to_act else []
        assert rows == [expected(agent, observations[agent]) for agent in to_act]
        seen[episode.env_t] = {agent: expected(agent, one) for agent, one in observations.items()}

    episode = episode_of(SPACES, {a: own(a, o) for a, o in schedule.reset["observations"].items()})
    act(schedule.reset["observations"])
    for step in schedule.steps:
        given = {a: own(a, o) for a, o in step["observations"].items()}
        episode.add_env_step(**{**step, "observations": given})
        act(step["observations"])
    if not episode.agent_steps():
        return
    learner = LearnerConnectorPipeline(
        connectors=[
            AddObservationsFromEpisodesToBatch(as_learner_connector=True),
            AddColumnsFromEpisodesToTrainBatch(),
            AgentToModuleMapping(as_learner_connector=True),
            BatchIndividualItems(),
        ]
    )
    rows = learner(rl_module=None, episodes=[episode])["shared"]["obs"].tolist()
    steps = [(part.agent_id, t) for part in episode.segments for t in part.steps[:-1]]
    assert rows == [seen[t][agent] for agent, t in steps]


def test_spaces_of_agents_and_modules() -> None:
    spaces = gym.spaces.Dict(a=Discrete(3), b=Discrete(5))
    acting = pipeline(PadObservations(), spaces=spaces)
    assert acting.observation_space == gym.spaces.Dict(shared=Discrete(5))
    episode = episode_of(spaces, {"a": 2, "b": 4})
    assert acting(rl_module=None, episodes=[episode])["shared"]["obs"].tolist() == [2, 4]
    assert {one.observation_space for one in map(repr_of, episode.agent_episodes.values())} == {"Discrete(5)"}


class repr_of:
    def __init__(self, episode: Any) -> None:
        self.observation_space = repr(episode.observation_space)


def test_only_some_agents_and_more_pieces() -> None:
    """a and c are padded and told apart; b and d of another kind are as they were, up to the indicator."""
    acting = EnvToModulePipeline(
        SPACES,
        None,
        connectors=[
            PadObservations(agent_ids=["a", "c"]),
            AgentIndicator(),
            AddObservationsFromEpisodesToBatch(),
            AgentToModuleMapping(
                agent_to_module_mapping_fn=lambda agent, _: "small" if agent in "ac" else "large",
                rl_module_specs={"small", "large"},
            ),
            BatchIndividualItems(),
        ],
    )
    assert {name: space.shape for name, space in acting.observation_space.spaces.items()} == {
        "small": (6,),
        "large": (8,),
    }
    episode = MultiAgentEpisode(
        id_="e",
        observation_space=SPACES,
        agent_to_module_mapping_fn=lambda agent, *_, **__: "small" if agent in "ac" else "large",
    )
    episode.add_env_reset(observations={agent: own(agent, [1, 2]) for agent in "dcba"})
    batch = acting(rl_module=None, episodes=[episode])
    assert batch["small"]["obs"].tolist() == [[1, 2, 0, 0, 1, 0], [1, 0, 1, 0, 0, 0]]
    assert batch["large"]["obs"].tolist() == [[1, 2, 1, 2, 0, 0, 0, 1], [1, 2, 1, 2, 0, 1, 0, 0]]


def test_observations_of_different_kinds_are_flattened_first() -> None:
    spaces = gym.spaces.Dict(a=Discrete(3), b=Box(-1, 1, (2, 2)))
    with pytest.raises(SpaceError, match=r"Discrete\(3\) and Box[\s\S]*FlattenObservations"):
        pipeline(PadObservations(), spaces=spaces)
    acting = pipeline(FlattenObservations(), PadObservations(), spaces=spaces)
    episode = episode_of(spaces, {"a": 1, "b": np.ones((2, 2), np.float32)})
    assert acting(rl_module=None, episodes=[episode])["shared"]["obs"].tolist() == [[0, 1, 0, 0], [1, 1, 1, 1]]


def test_mistakes_are_named() -> None:
    episode = episode_of(None, {"a": np.zeros(1, np.float32)})
    with pytest.raises(SpaceError, match="a Dict of the agents' observation spaces"):
        PadObservations()(batch={}, episodes=[episode])
    with pytest.raises(UnknownNameError, match="'z'"):
        PadObservations(SPACES, None, multi_agent=True, agent_ids=["a", "z"]).observation_space  # noqa: B018
    with pytest.raises(ConfigError, match="agent_ids"):
        PadObservations(agent_ids="a")
    with pytest.raises(SpaceError, match=r"agent 'a'[\s\S]*shape \(3,\)"):
        PadObservations(SPACES, None, multi_agent=True)(
            batch={}, episodes=[episode_of(None, {"a": np.zeros(3, np.float32)})]
        )
    single = SingleAgentEpisode(observations=[np.zeros(1)])
    with pytest.raises(BatchLayoutError, match="multi-agent episodes"):
        PadObservations(SPACES, None, multi_agent=True)(batch={}, episodes=[single])
