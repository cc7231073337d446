"""Infos of each step, as dicts."""

from __future__ import annotations

import numpy as np
import pytest

from epibatch.algorithms import PPOConfig
from epibatch.connectors.learner import AddInfosFromEpisodesToTrainBatch, AddOneTsToEpisodesAndTruncate


def test_each_step_has_the_info_of_the_observation_in_front_of_it(lab):
    chunk = lab.episode("b", 2, t_started=4, lookback=2)
    seen = lab.see("learner", [AddInfosFromEpisodesToTrainBatch()], [lab.episode("a", 3), chunk])
    assert seen["infos"] == {("a",): [{"t": 0}, {"t": 1}, {"t": 2}], ("b",): [{"t": 4}, {"t": 5}]}


def test_a_bootstrap_row_has_the_last_info(lab):
    pieces = [AddOneTsToEpisodesAndTruncate(), AddInfosFromEpisodesToTrainBatch()]
    assert lab.see("learner", pieces, [lab.episode("a", 1)])["infos"] == {("a",): [{"t": 0}, {"t": 1}]}


def test_through_the_default_pieces_they_stay_a_list_of_dicts(lab):
    pieces = [AddInfosFromEpisodesToTrainBatch(), *lab.defaults("learner", ppo=True)]
    batch = lab.run("learner", pieces, [lab.episode("a", 2), lab.episode("b", 1)], rl_module=lab.module())
    assert batch["infos"] == [{"t": 0}, {"t": 1}, {"t": 2}, {"t": 0}, {"t": 1}]


def test_a_column_that_is_there_stays(lab):
    def own(batch, episodes):
        batch["infos"] = {(episodes[0].id_,): [{"own": 1}]}

    pieces = [lab.user(own), AddInfosFromEpisodesToTrainBatch()]
    assert lab.see("learner", pieces, [lab.episode("a", 1)])["infos"] == {("a",): [{"own": 1}]}


def test_without_episodes_nothing_happens(lab):
    assert lab.call(AddInfosFromEpisodesToTrainBatch(), {}) == {}


@pytest.mark.parametrize("use_lstm", [False, True])
def test_a_learner_trains_beside_them(use_lstm):
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .training(train_batch_size=64, minibatch_size=32, num_epochs=1)
        .learners(learner_connector=lambda *spaces: AddInfosFromEpisodesToTrainBatch())
        .rl_module(model_config={"use_lstm": use_lstm, "fcnet_hiddens": [8]})
    )
    algorithm = config.build_algo()
    assert np.isfinite(algorithm.train()["learners"]["default_policy"]["total_loss"])
    algorithm.stop()
