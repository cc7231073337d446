"""What was observed behind each step."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.connectors.learner import (
    AddNextObservationsFromEpisodesToTrainBatch,
    AddOneTsToEpisodesAndTruncate,
    BatchIndividualItems,
)
from epibatch.episodes import VectorRecorder


def test_each_step_has_the_observation_behind_it(lab):
    chunk = lab.episode("b", 2, t_started=4, lookback=2)
    episodes = [lab.episode("a", 3), chunk]
    columns = lab.columns("learner", [AddNextObservationsFromEpisodesToTrainBatch()], episodes)
    assert columns["new_obs"]["a",].tolist() == [[1, 11], [2, 12], [3, 13]]
    assert columns["new_obs"]["b",].tolist() == [[5, 15], [6, 16]]


def test_a_bootstrap_row_repeats_the_last_one(lab):
    pieces = [AddOneTsToEpisodesAndTruncate(), AddNextObservationsFromEpisodesToTrainBatch()]
    columns = lab.columns("learner", pieces, [lab.episode("a", 2), lab.episode("b", 1)])
    assert columns["new_obs"]["a",].tolist() == [[1, 11], [2, 12], [2, 12]]
    assert columns["new_obs"]["b",].tolist() == [[1, 11], [1, 11]]


def test_nested_observations(lab):
    space = gym.spaces.Dict(a=gym.spaces.Discrete(9), b=gym.spaces.Box(0, 9, (1,)))
    rows = [{"a": t, "b": np.float32([t])} for t in range(4)]
    episode = lab.episode("a", 3, observations=rows, observation_space=space)
    pieces = [AddNextObservationsFromEpisodesToTrainBatch(), BatchIndividualItems()]
    batch = lab.run("learner", pieces, [episode], spaces=(space, lab.act_space))
    assert batch["new_obs"]["a"].tolist() == [1, 2, 3] and batch["new_obs"]["b"].tolist() == [[1], [2], [3]]


@pytest.mark.parametrize("end", ["terminated", None])
def test_a_recorded_block_is_read_as_its_episodes_are(lab, end):
    recorder = VectorRecorder(2, lab.obs_space, lab.act_space)
    recorder.reset(np.ones((2, 2), np.float32))
    for step in range(1, 6):
        recorder.commit()
        ended = np.array([end == "terminated" and step == 3, False])
        no = np.zeros(2, bool)
        recorder.step(np.zeros(2, np.int64), np.zeros(2), ended, no, np.full((2, 2), step + 1, np.float32))
    recorder.commit()
    episodes = recorder.harvest(0)
    columns = lab.columns("learner", [AddNextObservationsFromEpisodesToTrainBatch()], episodes)
    for key, rows in columns["new_obs"].items():
        (episode,) = (one for one in episodes if one.id_ == key[0])
        assert rows.tolist() == episode.get_observations(slice(1, None)).tolist()


def test_a_column_that_is_there_stays(lab):
    def own(batch, episodes):
        batch["new_obs"] = {(episodes[0].id_,): [np.float32(7)]}

    pieces = [lab.user(own), AddNextObservationsFromEpisodesToTrainBatch()]
    assert lab.see("learner", pieces, [lab.episode("a", 1)])["new_obs"]["a",] == [7]


def test_without_episodes_nothing_happens(lab):
    assert lab.call(AddNextObservationsFromEpisodesToTrainBatch(), {}) == {}
