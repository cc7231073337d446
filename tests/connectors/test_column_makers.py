"""A column that one piece changes is not made anew by another."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms import PPOConfig
from epibatch.connectors.authoring import ColumnTransform
from epibatch.connectors.common import AddObservationsFromEpisodesToBatch, FlattenObservations, FrameStacking
from epibatch.connectors.env_to_module import EnvToModulePipeline, WriteObservationsToEpisodes
from epibatch.connectors.learner import LearnerConnectorPipeline, PrevActionsPrevRewardsLearner
from epibatch.connectors.observations import Affine
from epibatch.core.errors import PipelineError
from epibatch.episodes import SingleAgentEpisode

FRAMES = gym.spaces.Box(0, 99, (2, 1), np.float32)


class Halve(ColumnTransform):
    columns = "obs"
    monotonic = True

    def transform(self, x):
        return x / np.float32(2)


@pytest.mark.parametrize(
    "second",
    [
        lambda: FrameStacking(num_frames=2, as_learner_connector=True),
        lambda: PrevActionsPrevRewardsLearner(),
        lambda: FlattenObservations(as_learner_connector=True),
    ],
)
@pytest.mark.parametrize("first", [Halve, lambda: AddObservationsFromEpisodesToBatch(as_learner_connector=True)])
def test_what_would_be_lost_is_refused_with_both_names(first, second):
    with pytest.raises(PipelineError) as raised:
        LearnerConnectorPipeline(connectors=[first(), second()])
    one, other = type(first()).__name__, type(second()).__name__
    assert f"piece 1 ({other})" in str(raised.value)
    assert f"piece 0 ({one})" in str(raised.value)
    assert f"move {other} before {one}" in str(raised.value)
    LearnerConnectorPipeline(FRAMES, gym.spaces.Discrete(2), connectors=[second(), first()])


def test_observations_in_the_episodes_can_be_stacked():
    pieces = [Halve(), WriteObservationsToEpisodes(), FrameStacking(num_frames=2)]
    pipeline = EnvToModulePipeline(FRAMES, gym.spaces.Discrete(2), connectors=pieces)
    episode = SingleAgentEpisode(observations=[np.float32([[2], [4]])], observation_space=FRAMES)
    first = pipeline(episodes=[episode])["obs"][(episode.id_,)][0]
    assert first.tolist() == [[0.0, 1.0], [0.0, 2.0]]
    episode.add_env_step(np.float32([[6], [8]]), 0, 0.0)
    second = pipeline(episodes=[episode])["obs"][(episode.id_,)][0]
    assert second.tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert episode.get_observations().tolist() == [[[1.0], [2.0]], [[3.0], [4.0]]]


def test_the_way_out_is_named_for_acting():
    with pytest.raises(PipelineError, match="put WriteObservationsToEpisodes between the two"):
        EnvToModulePipeline(connectors=[Halve(), FrameStacking(num_frames=2)])


def test_stacks_are_not_written_to_episodes():
    with pytest.raises(PipelineError, match=r"move WriteObservationsToEpisodes before FrameStacking"):
        EnvToModulePipeline(connectors=[FrameStacking(num_frames=2), WriteObservationsToEpisodes()])
    EnvToModulePipeline(connectors=[FrameStacking(num_frames=1), WriteObservationsToEpisodes()])


class Rewarded(ColumnTransform):
    columns = "rewards"
    takes_tensors = True

    def transform(self, x):
        return 2 * x


class Behind(Rewarded):
    columns = "obs"
    training_only = True


def test_what_advantages_were_made_of_stays_as_it_is():
    config = PPOConfig()
    pipeline = config.build_learner_connector(FRAMES, gym.spaces.Discrete(2))
    config.extend_learner_connector(pipeline)
    with pytest.raises(PipelineError) as raised:
        pipeline.append(Rewarded())
    assert "column 'rewards' as it was" in str(raised.value)
    assert "move Rewarded before GeneralAdvantageEstimation" in str(raised.value)
    with pytest.raises(PipelineError, match="column 'obs' as it was"):
        pipeline.append(Affine(scale=2.0))
    pipeline.append(Behind())
    pipeline.insert_before("GeneralAdvantageEstimation", Rewarded())
    assert pipeline.names[-3:] == ["rewarded", "general_advantage_estimation", "behind"]
