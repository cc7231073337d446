from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.connectors.common import BatchIndividualItems, FrameStacking
from epibatch.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from epibatch.connectors.learner import AddObservationsFromEpisodesToBatch, LearnerConnectorPipeline
from epibatch.core.errors import (
    BatchLayoutError,
    CheckpointError,
    PieceError,
    PipelineError,
    SpaceError,
)
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode


def episode():
    return SingleAgentEpisode(observations=[np.zeros(2)] * 3, actions=[0, 0], rewards=[0.0, 0.0], len_lookback_buffer=0)


def pipeline():
    pieces = [AddObservationsFromEpisodesToBatch(as_learner_connector=True), BatchIndividualItems()]
    return LearnerConnectorPipeline(connectors=pieces)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: LearnerConnectorPipeline(3), SpaceError, ["input_observation_space", "int 3"]),
        (
            lambda: LearnerConnectorPipeline(None, gym.spaces.Box),
            SpaceError,
            ["input_action_space", "env.action_space"],
        ),
        (lambda: LearnerConnectorPipeline([FrameStacking()]), PieceError, ["as `connectors=`", "a list"]),
        (
            lambda: LearnerConnectorPipeline(connectors=FrameStacking()),
            PieceError,
            ["a list of pieces", "FrameStacking"],
        ),
        (lambda: LearnerConnectorPipeline(connectors="frame_stacking"), PieceError, ["a list of pieces", "str"]),
        (lambda: LearnerConnectorPipeline(connectors={"piece": "frame_stacking"}), PieceError, ["a list of pieces"]),
        (lambda: LearnerConnectorPipeline(connectrs=[]), PieceError, ["connectrs", "did you mean 'connectors'"]),
    ],
)
def test_constructor_arguments(make, error, words):
    with pytest.raises(error) as caught:
        make()
    message = str(caught.value)
    assert message.startswith("LearnerConnectorPipeline")
    assert [word for word in words if word not in message] == [], message


def test_a_subclass_of_somebody_elses_may_pass_keywords_on():
    class Own(ConnectorPipelineV2):
        pass

    assert len(Own(connectors=[], anything=1)) == 0


@pytest.mark.parametrize(
    ("episodes", "found"),
    [
        (None, "a NoneType"),
        (3, "a int"),
        ("ab", "a str of str at position 0"),
        ([3], "a list of int at position 0"),
        ([episode(), None], "a list of NoneType at position 1"),
        ([[episode()]], "a list of list at position 0"),
        (episode(), "a SingleAgentEpisode"),
    ],
)
def test_what_is_no_list_of_episodes(episodes, found):
    with pytest.raises(
        PipelineError, match=f"expected: a list of SingleAgentEpisode, or of MultiAgentEpisode\n  found:    {found}\n"
    ):
        pipeline()(episodes=episodes)


@pytest.mark.parametrize("batch", [3, [], "x"])
def test_what_is_no_batch(batch):
    with pytest.raises(
        BatchLayoutError, match=r"LearnerConnectorPipeline\(batch=\.\.\.\)\n  expected: a dict of columns"
    ):
        pipeline()(batch=batch, episodes=[episode()])


@pytest.mark.parametrize("state", [3, None, [], {"batch_individual_items": 3}])
def test_what_is_no_state(state):
    with pytest.raises(CheckpointError, match=r"LearnerConnectorPipeline\.set_state"):
        pipeline().set_state(state)


def test_episodes_of_several_agents_are_episodes_too():
    several = MultiAgentEpisode(id_="e")
    several.add_env_reset(observations={"a": np.zeros(2), "b": np.ones(2)})
    several.add_env_step({"a": np.zeros(2), "b": np.ones(2)}, {"a": 0, "b": 1}, {"a": 0.0, "b": 1.0})
    with pytest.raises(PipelineError, match="found:    a MultiAgentEpisode"):
        pipeline()(rl_module=None, batch={}, episodes=several)
    with pytest.raises(PipelineError, match="AgentToModuleMapping"):
        pipeline()(rl_module=None, batch={}, episodes=[several])
    batch = pipeline()(rl_module=None, batch={}, episodes=[segment.episode for segment in several.segments])
    assert batch["obs"].tolist() == [[0, 0], [1, 1]]
