"""The way back: each agent gets its row of its module's outputs, whatever happened in between."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from epibatch.connectors.common import AddObservationsFromEpisodesToBatch, AgentToModuleMapping
from epibatch.connectors.env_to_module import BatchIndividualItems, EnvToModulePipeline
from epibatch.connectors.module_to_env import (
    ListifyDataForVectorEnv,
    ModuleToAgentUnmapping,
    ModuleToEnvPipeline,
    TensorToNumpy,
    UnBatchToIndividualItems,
)
from epibatch.core.errors import BatchLayoutError, ColumnError
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode

MODULES = {"x": "m", "y": "n", "z": "m"}


def game(id_: str, **observations: Any) -> MultiAgentEpisode:
    episode = MultiAgentEpisode(id_=id_, agent_to_module_mapping_fn=lambda agent_id, *_, **__: MODULES[agent_id])
    episode.add_env_reset(observations=observations)
    return episode


def back(episodes: list[Any], batch: Any, shared: dict[str, Any] | None = None, between: Any = None) -> Any:
    shared = {} if shared is None else shared
    pieces = [AddObservationsFromEpisodesToBatch(), AgentToModuleMapping(), BatchIndividualItems()]
    EnvToModulePipeline(connectors=pieces)(episodes=episodes, shared_data=shared)
    if between:
        between()
    pieces = [TensorToNumpy(), UnBatchToIndividualItems(), ModuleToAgentUnmapping(), ListifyDataForVectorEnv()]
    return ModuleToEnvPipeline(connectors=pieces)(episodes=episodes, batch=batch, shared_data=shared)


def test_rows_go_back_to_their_agents() -> None:
    episodes = [game("e", z=1.0, y=2.0, x=3.0), game("f", x=4.0)]
    found = back(episodes, {"m": {"a": np.array([10, 30, 40])}, "n": {"a": np.array([20]), "b": np.array([5])}})
    assert found == {"a": [{"z": 10, "y": 20, "x": 30}, {"x": 40}], "b": [{"y": 5}, {}]}
    assert list(found["a"][0]) == ["z", "y", "x"]


@pytest.mark.parametrize(
    "other", [np.array([2.5], np.float32), np.array([2], np.int8), np.array([[5, 6]]), np.array(["t"], object)]
)
def test_columns_that_differ_between_modules_keep_their_kinds(other: Any) -> None:
    found = back([game("e", y=2.0, x=3.0)], {"m": {"a": np.array([10])}, "n": {"a": other}})["a"][0]
    assert found["x"] == 10 and np.asarray(found["x"]).dtype == np.int64
    assert np.array_equal(found["y"], other[0]) and np.asarray(found["y"]).dtype == np.asarray(other[0]).dtype


def test_agents_that_ended_in_between_get_nothing_and_the_others_their_own() -> None:
    episode = game("e", z=1.0, y=2.0, x=3.0)

    def z_ends() -> None:
        episode.add_env_step({}, {}, {}, terminateds={"z": True})

    found = back([episode], {"m": {"a": np.array([10, 30])}, "n": {"a": np.array([20])}}, between=z_ends)
    assert found == {"a": [{"y": 20, "x": 30}]}


def test_too_few_rows_are_named() -> None:
    with pytest.raises(ColumnError, match=r"for module 'm'[\s\S]*expected: 2 rows[\s\S]*found: +1"):
        back([game("e", x=1.0, z=2.0)], {"m": {"a": np.array([1])}})


def test_outputs_of_a_module_that_was_given_nothing_are_named() -> None:
    with pytest.raises(BatchLayoutError, match=r"found: +'n'"):
        back([game("e", x=1.0)], {"m": {"a": np.array([1])}, "n": {"a": np.array([2])}})


def test_a_module_that_gave_nothing_for_its_rows_is_named() -> None:
    with pytest.raises(BatchLayoutError, match=r"given rows: 'm', 'n'[\s\S]*found: +none of 'n'"):
        back([game("e", x=1.0, y=2.0)], {"m": {"a": np.array([1])}})


def test_single_agent_episodes_are_refused() -> None:
    pipeline = ModuleToEnvPipeline(connectors=[TensorToNumpy(), UnBatchToIndividualItems(), ModuleToAgentUnmapping()])
    with pytest.raises(BatchLayoutError, match="leave this piece out"):
        pipeline(episodes=[SingleAgentEpisode(observations=[0])], batch={"a": np.array([1])})
