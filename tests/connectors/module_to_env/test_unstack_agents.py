"""Outputs for rows of all agents reach each agent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from epibatch.connectors.common import (
    AddObservationsFromEpisodesToBatch,
    AgentToModuleMapping,
    BatchIndividualItems,
    StackAgents,
    TensorToNumpy,
)
from epibatch.connectors.connector_v2 import ConnectorV2
from epibatch.connectors.env_to_module import EnvToModulePipeline
from epibatch.connectors.module_to_env import (
    ListifyDataForVectorEnv,
    ModuleToAgentUnmapping,
    ModuleToEnvPipeline,
    UnBatchToIndividualItems,
    UnstackAgents,
)
from epibatch.core.errors import BatchLayoutError, ColumnError
from epibatch.episodes import MultiAgentEpisode

AGENTS = ["c", "a", "b"]


class Plain(ConnectorV2):
    def __call__(self, *, batch: Any, **_: Any) -> Any:
        return dict(batch)


def games() -> list[MultiAgentEpisode]:
    """Who observes: a and b, only c, nobody, all but c, of which b ends."""
    seen = ({"b": 1.0, "a": 2.0}, {"c": 3.0}, {}, {"a": 5.0, "b": 6.0})
    out = []
    for i, observations in enumerate(seen):
        fn = lambda agent, *_, **__: "solo" if agent == "c" else "team"  # noqa: E731
        episode = MultiAgentEpisode(id_=f"e{i}", agent_to_module_mapping_fn=fn)
        if i < 3:
            episode.add_env_reset(observations=observations)
        else:
            episode.add_env_reset(observations={"a": 0.0, "b": 0.0})
            acts = dict.fromkeys("ab", 0)
            episode.add_env_step(observations, acts, dict.fromkeys("ab", 0.0), terminateds={"b": True})
        out.append(episode)
    return out


def run(episodes: list[MultiAgentEpisode], module_ids: Any = None, make: Any = torch.as_tensor) -> tuple[Any, Any]:
    """Outputs are observations times ten."""
    to_module = EnvToModulePipeline(
        connectors=[
            AddObservationsFromEpisodesToBatch(),
            Plain(),
            AgentToModuleMapping(),
            BatchIndividualItems(),
            StackAgents(agent_ids=AGENTS, module_ids=module_ids),
        ]
    )
    to_env = ModuleToEnvPipeline(
        connectors=[
            UnstackAgents(),
            TensorToNumpy(),
            UnBatchToIndividualItems(),
            ModuleToAgentUnmapping(),
            Plain(),
            ListifyDataForVectorEnv(),
        ]
    )
    shared: dict[str, Any] = {}
    batch = to_module(rl_module=None, episodes=episodes, shared_data=shared)
    outputs = {name: {"actions": make(10 * columns["obs"])} for name, columns in batch.items()}
    return batch, to_env(rl_module=None, batch=outputs, episodes=episodes, shared_data=shared)


@pytest.mark.parametrize("make", [torch.as_tensor, np.asarray])
def test_each_agent_that_acts_gets_its_part(make: Any) -> None:
    batch, out = run(games(), make=make)
    assert batch["team"]["obs"].tolist() == [[0.0, 2.0, 1.0], [0.0, 5.0, 6.0]]  # b has ended, and was seen
    assert batch["team"]["agent_mask"].tolist() == [[False, True, True], [False, True, True]]
    assert batch["solo"]["obs"].tolist() == [[3.0, 0.0, 0.0]]
    assert out["actions"] == [{"b": 10.0, "a": 20.0}, {"c": 30.0}, {}, {"a": 50.0}]


def test_modules_that_are_not_stacked_are_left_alone() -> None:
    batch, out = run(games(), module_ids=["solo"])
    assert batch["team"]["obs"].tolist() == [1.0, 2.0, 5.0]
    assert out["actions"] == [{"b": 10.0, "a": 20.0}, {"c": 30.0}, {}, {"a": 50.0}]


def test_agents_that_end_in_between_get_nothing() -> None:
    episodes = games()
    to_module = EnvToModulePipeline(
        connectors=[
            AddObservationsFromEpisodesToBatch(),
            AgentToModuleMapping(),
            BatchIndividualItems(),
            StackAgents(agent_ids=AGENTS),
        ]
    )
    shared: dict[str, Any] = {}
    batch = to_module(rl_module=None, episodes=episodes, shared_data=shared)
    episodes[0].add_env_step({}, {}, {}, terminateds={"b": True})
    to_env = ModuleToEnvPipeline(
        connectors=[
            UnstackAgents(),
            TensorToNumpy(),
            UnBatchToIndividualItems(),
            ModuleToAgentUnmapping(),
            ListifyDataForVectorEnv(),
        ]
    )
    outputs = {name: {"actions": columns["obs"]} for name, columns in batch.items()}
    out = to_env(rl_module=None, batch=outputs, episodes=episodes, shared_data=shared)
    assert out["actions"][0].get("b") is None and out["actions"][3] == {"a": 5.0}


def test_outputs_of_another_shape_are_named() -> None:
    with pytest.raises(ColumnError, match=r"column 'actions'[\s\S]*shape \[2, 3, '...'\]"):
        run(games(), make=lambda obs: torch.as_tensor(obs)[:, :2])


def test_episodes_of_one_agent_are_refused() -> None:
    from epibatch.episodes import SingleAgentEpisode

    with pytest.raises(BatchLayoutError, match="multi-agent episodes"):
        ModuleToEnvPipeline(connectors=[UnstackAgents()])(
            batch={"actions": np.zeros(1)}, episodes=[SingleAgentEpisode(observations=[0])]
        )
