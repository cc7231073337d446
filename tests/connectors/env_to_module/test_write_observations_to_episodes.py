"""The batch's observations, back in the episodes."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.connectors.env_to_module import (
    AddObservationsFromEpisodesToBatch,
    EnvToModulePipeline,
    WriteObservationsToEpisodes,
)
from epibatch.core.errors import ColumnError, PipelineError
from epibatch.episodes import SingleAgentEpisode, VectorRecorder


def shorten(batch, episodes):
    """Keep the first entry, doubled, of each episode's observation."""
    batch["obs"] = {key: [2 * item[:1] for item in items] for key, items in batch["obs"].items()}


def pieces_of(lab):
    return [AddObservationsFromEpisodesToBatch(), lab.user(shorten), WriteObservationsToEpisodes()]


def test_what_stands_in_the_batch_is_in_the_episodes(lab):
    episodes = [lab.episode("a", 2), lab.episode("b", 3)]
    seen = lab.columns("env_to_module", pieces_of(lab), episodes)
    assert seen["obs"]["a",].tolist() == [[4.0]] and seen["obs"]["b",].tolist() == [[6.0]]
    assert [episode.get_observations(-1).tolist() for episode in episodes] == [[4.0], [6.0]]
    assert episodes[0].get_observations(-2).tolist() == [1.0, 11.0]


@pytest.mark.parametrize("plain", [False, True])
def test_a_recorded_block_keeps_what_was_written_and_no_memory_of_the_batch(lab, plain):
    recorder = VectorRecorder(2, lab.obs_space, lab.act_space)
    pieces = [*pieces_of(lab), *[lab.user()] * plain]
    pipeline = EnvToModulePipeline(lab.obs_space, lab.act_space, connectors=pieces)
    recorder.reset(np.ones((2, 2), np.float32))
    for step in range(1, 4):
        batch = pipeline(episodes=recorder.episodes)
        for items in batch["obs"].values():
            items[0][...] = -1
        recorder.commit()
        no = np.zeros(2, bool)
        recorder.step(np.zeros(2, np.int64), np.zeros(2), no, no, np.full((2, 2), step + 1, np.float32))
    pipeline(episodes=recorder.episodes)
    for episode in recorder.harvest(0):
        assert episode.get_observations().tolist() == [[2.0], [4.0], [6.0], [8.0]]


@pytest.mark.parametrize("nested", [False, True])
def test_strings_are_written_to_a_recorded_block_too(lab, nested):
    def louder(batch, episodes, **_):
        for items in batch["obs"].values():
            items[:] = [{"t": item["t"] + "!"} if nested else item + "!" for item in items]

    space = gym.spaces.Dict(t=gym.spaces.Text(8)) if nested else gym.spaces.Text(8)
    recorder = VectorRecorder(2, space, lab.act_space)
    pieces = [AddObservationsFromEpisodesToBatch(), lab.user(louder), WriteObservationsToEpisodes()]
    words = np.array(["yes", "no"], object)
    recorder.reset({"t": words} if nested else words)
    EnvToModulePipeline(space, lab.act_space, connectors=pieces)(episodes=recorder.episodes)
    columns = [episode.get_observations(slice(-1, None)) for episode in recorder.episodes]
    assert [(column["t"] if nested else column).tolist() for column in columns] == [["yes!"], ["no!"]]


def test_the_space_of_the_episodes_is_that_of_the_batch(lab):
    space = gym.spaces.Box(-9, 9, (1,))
    episode = SingleAgentEpisode(observations=[np.zeros(2, np.float32)])
    WriteObservationsToEpisodes(space)(batch={"obs": [np.ones(1, np.float32)]}, episodes=[episode])
    assert episode.observation_space == space
    pipeline = EnvToModulePipeline(lab.obs_space, connectors=pieces_of(lab))
    assert pipeline.episode_observation_space == pipeline[2].observation_space


@pytest.mark.parametrize("column", [[np.float32([1]), np.float32([2])], np.float32([[1], [2]])])
def test_a_column_that_nobody_gave_keys_goes_by_position(column):
    episodes = [SingleAgentEpisode(observations=[np.zeros(1)]) for _ in range(2)]
    batch = WriteObservationsToEpisodes()(batch={"obs": column}, episodes=episodes)
    assert batch["obs"] is column
    assert [episode.get_observations(-1).tolist() for episode in episodes] == [[1.0], [2.0]]


@pytest.mark.parametrize("column", [[np.zeros(2)], {("a",): [np.zeros(2)] * 2, ("b",): []}])
def test_one_row_per_episode_is_needed(lab, column):
    episodes = [lab.episode("a", 1), lab.episode("b", 1)]
    with pytest.raises(ColumnError, match=r"one row for each of 2 episodes(.|\n)*add_batch_item"):
        lab.call(WriteObservationsToEpisodes(), {"obs": column}, episodes=episodes)


def test_where_it_stands():
    with pytest.raises(PipelineError, match=r"'obs'(.|\n)*AddObservationsFromEpisodesToBatch"):
        EnvToModulePipeline(connectors=[WriteObservationsToEpisodes()])
    with pytest.raises(ColumnError, match="AddObservationsFromEpisodesToBatch before"):
        WriteObservationsToEpisodes()(batch={}, episodes=[SingleAgentEpisode(observations=[np.zeros(2)])])


def test_without_episodes_nothing_happens(lab):
    assert lab.call(WriteObservationsToEpisodes(), {}) == {}
