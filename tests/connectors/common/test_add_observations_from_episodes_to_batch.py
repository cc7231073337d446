"""Observations of episodes in the batch."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.connectors.common.add_observations_from_episodes_to_batch import AddObservationsFromEpisodesToBatch


def learner_piece():
    return AddObservationsFromEpisodesToBatch(as_learner_connector=True)


def test_env_side_gives_the_newest_observation_of_each_episode(lab):
    episodes = [lab.episode("a", 0, numpy=False), lab.episode("b", 3, numpy=False)]
    seen = lab.see("env_to_module", [AddObservationsFromEpisodesToBatch()], episodes)
    assert list(seen) == ["obs"]
    assert list(seen["obs"]) == [("a",), ("b",)]
    assert [len(items) for items in seen["obs"].values()] == [1, 1]
    assert [items[0].tolist() for items in seen["obs"].values()] == [[0.0, 10.0], [3.0, 13.0]]
    assert seen["obs"]["a",][0].dtype == np.float32


def test_learner_side_gives_the_observations_that_were_acted_on(lab):
    episodes = [lab.episode("a", 3), lab.episode("b", 2, t_started=4, lookback=2)]
    columns = lab.columns("learner", [learner_piece()], episodes)
    assert columns["obs"]["a",].tolist() == [[0.0, 10.0], [1.0, 11.0], [2.0, 12.0]]
    assert columns["obs"]["b",].tolist() == [[4.0, 14.0], [5.0, 15.0]]


def test_nested_observations_keep_their_structure(lab):
    space = gym.spaces.Dict(x=lab.obs_space, y=gym.spaces.Discrete(9))
    observations = [{"x": np.full(2, i, np.float32), "y": i} for i in range(4)]
    episodes = [lab.episode("a", 3, observations=observations, observation_space=space)]
    columns = lab.columns("learner", [learner_piece()], episodes, spaces=(space, lab.act_space))
    assert columns["obs"]["a",]["x"].tolist() == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]
    assert columns["obs"]["a",]["y"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("kind", ["env_to_module", "learner"])
def test_observations_that_are_there_already_stay(lab, kind):
    mine = {"obs": {("a",): [np.zeros(7)]}}
    piece = AddObservationsFromEpisodesToBatch(as_learner_connector=kind == "learner")
    episodes = [lab.episode("a", 1, numpy=kind == "learner")]
    seen = lab.see(kind, [piece], episodes, batch=mine)
    assert seen["obs"]["a",][0].shape == (7,)


def test_ids_are_never_rewritten(lab):
    episodes = [lab.episode("a", 2), lab.episode("a", 2, t_started=2)]
    for _ in range(2):
        lab.run("learner", [learner_piece()], episodes)
    assert [episode.id_ for episode in episodes] == ["a", "a"]


@pytest.mark.parametrize("id_", ["a", "my_x", "a_0"])
def test_two_chunks_of_one_episode_have_keys_of_their_own(lab, id_):
    episodes = [lab.episode(id_, 2), lab.episode(id_, 1, t_started=2)]
    columns = lab.columns("learner", [learner_piece()], episodes)
    assert list(columns["obs"]) == [(f"{id_}_0",), (f"{id_}_1",)]
    assert columns["obs"][f"{id_}_0",][:, 0].tolist() == [0.0, 1.0]
    assert columns["obs"][f"{id_}_1",][:, 0].tolist() == [2.0]


def test_chunk_keys_avoid_ids_that_look_like_them(lab):
    episodes = [lab.episode("a", 2), lab.episode("a_1", 1, offset=50), lab.episode("a", 1, t_started=2)]
    columns = lab.columns("learner", [learner_piece()], episodes)
    assert [value[:, 0].tolist() for value in columns["obs"].values()] == [[0.0, 1.0], [50.0], [2.0]]


def test_unknown_keywords_are_refused():
    with pytest.raises(TypeError, match="as_learner_conector"):
        AddObservationsFromEpisodesToBatch(as_learner_conector=True)
