"""The learner's side gives the observations that the acting side gave, bootstrap rows included."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from epibatch.connectors.env_to_module import EnvToModulePipeline, PrevActionsPrevRewards
from epibatch.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    AddObservationsFromEpisodesToBatch,
    AddOneTsToEpisodesAndTruncate,
    BatchIndividualItems,
    PrevActionsPrevRewardsLearner,
)
from epibatch.core.errors import ConfigError, LookbackError, SpaceError
from epibatch.episodes import VectorRecorder

COUNTS = {"n_prev_actions": 3, "n_prev_rewards": 2}


def recorded(lab, wrapped, mode="next_step", steps=17, fragment=6):
    """The same run, recorded with the acting piece in front or without; delivered fragment by fragment."""
    pieces = [PrevActionsPrevRewards(**COUNTS)] * wrapped
    pipeline = EnvToModulePipeline(lab.obs_space, lab.act_space, connectors=pieces)
    recorder, rng = VectorRecorder(3, lab.obs_space, lab.act_space, autoreset=mode), np.random.default_rng(3)
    recorder.reset(rng.normal(size=(3, 2)).astype(np.float32))
    pipeline(episodes=recorder.episodes)
    recorder.commit()
    delivered = []
    for step in range(1, steps + 1):
        ends, final = rng.random(3) < 0.2, rng.normal(size=(3, 2)).astype(np.float32)
        ends[recorder.waiting] = False
        columns = rng.integers(0, 2, 3), rng.normal(size=3), ends, np.zeros(3, bool)
        observations = rng.normal(size=(3, 2)).astype(np.float32)
        ended = recorder.step(*columns, observations, final_observations=final if mode == "same_step" else None)
        if ended and mode == "same_step":
            pipeline(episodes=[recorder.view(chunk) for chunk in ended])
        pipeline(episodes=recorder.episodes)
        recorder.commit()
        if step % fragment == 0:
            delivered.append(recorder.harvest(3))
    return delivered


def batch_of(lab, first, episodes):
    """A train batch of arrays with bootstrap rows."""
    rest = [AddObservationsFromEpisodesToBatch(as_learner_connector=True), AddColumnsFromEpisodesToTrainBatch()]
    pieces = [*first, AddOneTsToEpisodesAndTruncate(), *rest, BatchIndividualItems()]
    return lab.run("learner", pieces, episodes)


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_both_sides_give_the_same_observation_for_the_same_step(lab, mode):
    acted, plain = recorded(lab, True, mode), recorded(lab, False, mode)
    assert len(acted) == len(plain) == 2 and sum(map(len, acted)) > 8
    for one, other in zip(acted, plain):
        found = batch_of(lab, [], one)["obs"]
        rebuilt = batch_of(lab, [PrevActionsPrevRewardsLearner(**COUNTS)], other)["obs"]
        assert found.keys() == rebuilt.keys() == {"_orig_obs", "prev_n_actions", "prev_n_rewards"}
        for key in found:
            assert found[key].dtype == rebuilt[key].dtype == np.float32
            np.testing.assert_array_equal(found[key], rebuilt[key])


def test_the_episodes_stay_as_they_are(lab):
    [episodes, *_] = recorded(lab, False)
    before = [episode.get_observations().copy() for episode in episodes]
    batch_of(lab, [PrevActionsPrevRewardsLearner(**COUNTS)], episodes)
    for episode, rows in zip(episodes, before):
        np.testing.assert_array_equal(episode.get_observations(), rows)


def test_one_row_per_step_and_the_declared_space(lab):
    piece = PrevActionsPrevRewardsLearner(lab.obs_space, lab.act_space, n_prev_actions=0, n_prev_rewards=2)
    columns = lab.columns("learner", [piece], [lab.episode("a", 3, t_started=4, lookback=2)])
    rows = columns["obs"][("a",)]
    assert rows["prev_n_rewards"].tolist() == [[2.5, 3.5], [3.5, 4.5], [4.5, 5.5]]
    assert piece.lookback == 2 and "prev_n_actions" not in rows
    assert {key: value[0] for key, value in rows.items()} in piece.observation_space


def test_observations_that_show_earlier_steps_already_are_refused(lab):
    [episodes, *_] = recorded(lab, True)
    with pytest.raises(SpaceError, match=r"leave this piece out"):
        batch_of(lab, [PrevActionsPrevRewardsLearner()], episodes)
    piece = PrevActionsPrevRewardsLearner(
        PrevActionsPrevRewards(lab.obs_space, lab.act_space).observation_space, lab.act_space
    )
    with pytest.raises(SpaceError, match=r"leave this piece out"):
        _ = piece.observation_space
    assert isinstance(PrevActionsPrevRewardsLearner(Dict(a=Discrete(2)), Discrete(2)).observation_space, Dict)


def test_too_little_history_is_an_error(lab):
    with pytest.raises(LookbackError, match="PrevActionsPrevRewardsLearner, episode 'a'"):
        lab.run("learner", [PrevActionsPrevRewardsLearner()], [lab.episode("a", 3, t_started=4)])


def test_a_wrong_number_is_named():
    with pytest.raises(ConfigError, match=r"PrevActionsPrevRewardsLearner\.n_prev_rewards"):
        PrevActionsPrevRewardsLearner(n_prev_rewards=-2)


def test_the_space_of_box_actions_has_no_bounds():
    piece = PrevActionsPrevRewardsLearner(Discrete(2), Box(-1, 1, (2,)))
    assert piece.observation_space["prev_n_actions"] == Box(-np.inf, np.inf, (2,))
