"""Pieces that rewrite the newest observations: where they may stand, and what the episodes keep."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.connectors._engine.observation_rewriter import ObservationRewriter
from epibatch.connectors.env_to_module import AddObservationsFromEpisodesToBatch, EnvToModulePipeline
from epibatch.connectors.learner import LearnerConnectorPipeline
from epibatch.core.errors import PipelineError
from epibatch.episodes import VectorRecorder


class Doubled(ObservationRewriter):
    """Doubles observations, as float64."""

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return gym.spaces.Box(-np.inf, np.inf, input_observation_space.shape, np.float64)

    def rewrite(self, observations, call):
        return observations * np.float64(2)


class Nested(ObservationRewriter):
    """Puts observations into a dict."""

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return gym.spaces.Dict(inner=input_observation_space)

    def rewrite(self, observations, call):
        return {"inner": observations}


def test_what_is_written_is_in_the_episodes_and_in_the_batch(lab):
    episodes = [lab.episode("a", 2), lab.episode("b", 3)]
    seen = lab.columns("env_to_module", [Doubled(), AddObservationsFromEpisodesToBatch()], episodes)
    assert seen["obs"][("a",)].tolist() == [[4.0, 24.0]] and seen["obs"][("b",)].tolist() == [[6.0, 26.0]]
    assert episodes[0].get_observations(-1).tolist() == [4.0, 24.0]
    assert episodes[0].get_observations(-2).tolist() == [1.0, 11.0]


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(("piece", "read"), [(Doubled, lambda rows: rows), (Nested, lambda rows: rows["inner"])])
def test_a_recorded_block_keeps_what_was_written(lab, plain, piece, read):
    recorder = VectorRecorder(2, lab.obs_space, lab.act_space)
    pieces = [piece(), AddObservationsFromEpisodesToBatch()]
    pipeline = EnvToModulePipeline(lab.obs_space, lab.act_space, connectors=[lab.user()] * plain + pieces)
    recorder.reset(np.ones((2, 2), np.float32))
    for step in range(1, 4):
        pipeline(episodes=recorder.episodes)
        recorder.commit()
        rows = np.full((2, 2), step + 1, np.float32)
        no = np.zeros(2, bool)
        recorder.step(np.zeros(2, np.int64), np.zeros(2), no, no, rows)
    pipeline(episodes=recorder.episodes)
    scale = 2 if piece is Doubled else 1
    for episode in recorder.harvest(0):
        assert (read(episode.get_observations())[:, 0] / scale).tolist() == [1, 2, 3, 4]


def test_the_space_of_the_episodes_is_that_of_the_last_one_that_writes(lab):
    adds = AddObservationsFromEpisodesToBatch
    pipeline = EnvToModulePipeline(lab.obs_space, lab.act_space, connectors=[Doubled(), Nested(), adds()])
    assert pipeline.episode_observation_space == pipeline[1].observation_space
    assert isinstance(pipeline.episode_observation_space, gym.spaces.Dict)
    assert EnvToModulePipeline(lab.obs_space, connectors=[adds()]).episode_observation_space == lab.obs_space
    nested = EnvToModulePipeline(lab.obs_space, connectors=[EnvToModulePipeline(connectors=[Doubled()]), adds()])
    assert nested.episode_observation_space.dtype == np.float64


def test_behind_a_piece_that_took_the_observations_is_too_late(lab):
    with pytest.raises(PipelineError, match=r"piece 1 \(Doubled\)(.|\n)*before .*AddObservationsFromEpisodes"):
        EnvToModulePipeline(connectors=[AddObservationsFromEpisodesToBatch(), Doubled()])
    took = lab.user(lambda batch, episodes: {"obs": {(episodes[0].id_,): [np.zeros(2)]}})
    with pytest.raises(PipelineError, match=r"Doubled(.|\n)*column 'obs'(.|\n)*before that piece"):
        lab.run("env_to_module", [took, Doubled()], [lab.episode("a", 1)])


def test_a_learner_pipeline_is_no_place_for_it():
    with pytest.raises(PipelineError, match=r"piece 0 \(Doubled\)(.|\n)*env-to-module pipeline"):
        LearnerConnectorPipeline(connectors=[Doubled()])


def test_without_episodes_nothing_happens(lab):
    assert lab.call(Doubled(), {}) == {}
