"""Statistics of pieces in the state of their pipeline, whole or in part."""

from __future__ import annotations

import copy

import gymnasium as gym
import numpy as np
import pytest

from epibatch.connectors.common import AddObservationsFromEpisodesToBatch
from epibatch.connectors.env_to_module import EnvToModulePipeline, MeanStdFilter
from epibatch.connectors.learner import AddColumnsFromEpisodesToTrainBatch, LearnerConnectorPipeline
from epibatch.connectors.rewards import CountBasedReward, NormalizeReward
from epibatch.core.errors import UnknownNameError
from epibatch.episodes import SingleAgentEpisode

BOX, TWO = gym.spaces.Box(-9.0, 9.0, (2,)), gym.spaces.Discrete(2)


def learner():
    pieces = [NormalizeReward(), CountBasedReward()]
    defaults = [AddObservationsFromEpisodesToBatch(as_learner_connector=True), AddColumnsFromEpisodesToTrainBatch()]
    return LearnerConnectorPipeline(BOX, TWO, connectors=[*pieces, *defaults])


def episodes():
    observations = np.arange(8, dtype=np.float32).reshape(4, 2)
    return [
        SingleAgentEpisode(id_="e", observations=observations, actions=[0, 1, 0], rewards=[1.0, 2.0, 4.0],
                           len_lookback_buffer=0, observation_space=BOX, action_space=TWO)
    ]  # fmt: skip


def test_a_state_of_before_the_first_call_takes_back_what_was_learned():
    pipe = learner()
    fresh = copy.deepcopy(pipe.get_state())
    assert fresh == {"normalize_reward": {}, "count_based_reward": {}}
    first = pipe(episodes=episodes())["rewards"]["e",][0]
    assert pipe.get_state()["normalize_reward"]["modules"]["default_policy"]["since"]["count"] == 3
    pipe.set_state(fresh)
    assert pipe.get_state() == fresh
    np.testing.assert_array_equal(pipe(episodes=episodes())["rewards"]["e",][0], first)


def test_pieces_that_a_state_says_nothing_of_stay_as_they_are():
    pipe, fresh = learner(), learner().get_state("normalize_reward")
    assert set(fresh) == {"normalize_reward"}
    pipe(episodes=episodes())
    counted = copy.deepcopy(pipe.get_state()["count_based_reward"])
    assert counted
    pipe.set_state(fresh)
    assert pipe.get_state()["normalize_reward"] == {}
    np.testing.assert_equal(pipe.get_state()["count_based_reward"], counted)
    pipe.set_state({})
    np.testing.assert_equal(pipe.get_state()["count_based_reward"], counted)


def test_a_refused_state_leaves_pieces_as_they_were_that_knew_nothing():
    known = learner()
    known(episodes=episodes())
    pipe = learner()
    with pytest.raises(Exception, match="CountBasedReward"):
        pipe.set_state({**known.get_state(), "count_based_reward": {"counts": 3}})
    assert pipe.get_state() == {"normalize_reward": {}, "count_based_reward": {}}


def test_pipelines_in_pipelines_are_reset_as_well():
    inner = EnvToModulePipeline(connectors=[MeanStdFilter()])
    fresh = inner.get_state()
    outer = EnvToModulePipeline(BOX, TWO, connectors=[inner, AddObservationsFromEpisodesToBatch()])
    name = next(iter(outer.names))
    outer(episodes=[SingleAgentEpisode(observations=[np.ones(2, np.float32)], observation_space=BOX)])
    assert inner.get_state()["mean_std_filter"]["since"]["count"] == 1
    outer.set_state({name: fresh})
    assert inner.get_state()["mean_std_filter"]["since"]["count"] == 0


def test_only_states_that_say_something_need_their_piece():
    pipe = EnvToModulePipeline(BOX, TWO, connectors=[AddObservationsFromEpisodesToBatch()])
    pipe.set_state({"get_actions": {}})
    with pytest.raises(UnknownNameError, match="get_actions"):
        pipe.set_state({"get_actions": {"generator": 1}})


def test_merged_are_the_copies_that_know_something():
    fresh, known = learner(), learner()
    known(episodes=episodes())
    merged = fresh.merge_states([fresh.get_state(), known.get_state()])
    assert merged["normalize_reward"]["modules"]["default_policy"]["synchronised"]["count"] == 3
    assert fresh.merge_states([fresh.get_state()]) == {}
