"""What the module is shown beside an observation, and that episodes keep it."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple

from epibatch.connectors.env_to_module import (
    AddObservationsFromEpisodesToBatch,
    EnvToModulePipeline,
    MeanStdFilter,
    PrevActionsPrevRewards,
)
from epibatch.connectors.learner import LearnerConnectorPipeline
from epibatch.core.errors import ConfigError, PipelineError, SpaceError
from epibatch.episodes import SingleAgentEpisode


def walk(steps, observation=lambda t: np.full(2, t, np.float32), action=lambda t: t % 2):
    episode = SingleAgentEpisode(id_="walk")
    episode.add_env_reset(observation(0))
    for t in range(steps):
        episode.add_env_step(observation(t + 1), action(t), t + 0.5)
    return episode


def test_observation_actions_and_rewards_side_by_side(lab):
    piece = PrevActionsPrevRewards(lab.obs_space, lab.act_space, n_prev_actions=2, n_prev_rewards=3)
    episodes = [walk(0), walk(1), walk(5)]
    seen = lab.see("env_to_module", [piece, AddObservationsFromEpisodesToBatch()], episodes)
    rows = [items[0] for items in seen["obs"].values()]
    assert [row["_orig_obs"].tolist() for row in rows] == [[0, 0], [1, 1], [5, 5]]
    assert [row["prev_n_actions"].tolist() for row in rows] == [[0, 0, 0, 0], [0, 0, 1, 0], [0, 1, 1, 0]]
    assert [row["prev_n_rewards"].tolist() for row in rows] == [[0, 0, 0], [0, 0, 0.5], [2.5, 3.5, 4.5]]
    space = piece.observation_space
    assert space["_orig_obs"] == lab.obs_space and space["prev_n_actions"] == Box(0, 1, (4,))
    assert all(row in space for row in rows)
    assert [row[key].dtype for row in rows for key in sorted(row)] == [np.float32] * 9
    assert episodes[2].get_observations(-1)["prev_n_rewards"].tolist() == [2.5, 3.5, 4.5]
    assert piece.lookback == 3


@pytest.mark.parametrize(
    ("space", "action", "vector"),
    [
        (Box(-1, 1, (2,), np.float64), np.array([0.25, 5.0]), [0.25, 5.0]),
        (MultiDiscrete([2, 3]), np.array([1, 2]), [0, 1, 0, 0, 1]),
        (Discrete(3, start=7), np.int64(8), [0, 1, 0]),
        (Dict(b=Box(-1, 1, ()), a=Discrete(2)), {"b": np.float32(0.5), "a": np.int64(1)}, [0, 1, 0.5]),
        (Tuple([Discrete(2), Discrete(2)]), (np.int64(0), np.int64(1)), [1, 0, 0, 1]),
    ],
)
def test_any_action_space(space, action, vector):
    piece = PrevActionsPrevRewards(Discrete(9), space)
    episode = walk(1, observation=lambda t: t, action=lambda t: action)
    piece(batch={}, episodes=[episode])
    shown = episode.get_observations(-1)["prev_n_actions"]
    assert shown.tolist() == vector and shown in piece.observation_space["prev_n_actions"]


def test_observations_of_any_nesting_go_under_their_key():
    space = Dict(a=Discrete(3), b=Tuple([Box(0, 9, (1,))]))
    piece = PrevActionsPrevRewards(space, Discrete(2))
    episode = walk(1, observation=lambda t: {"a": t, "b": (np.full(1, t, np.float32),)})
    piece(batch={}, episodes=[episode])
    shown = episode.get_observations(-1)
    assert shown["_orig_obs"]["b"][0].tolist() == [1.0] and shown["prev_n_rewards"].tolist() == [0.5]
    assert piece.observation_space["_orig_obs"] == space


def test_zero_leaves_a_key_out():
    piece = PrevActionsPrevRewards(Discrete(9), Discrete(2), n_prev_actions=0)
    assert list(piece.observation_space.spaces) == ["_orig_obs", "prev_n_rewards"] and piece.lookback == 1
    none = PrevActionsPrevRewards(Discrete(9), None, n_prev_actions=0, n_prev_rewards=0)
    assert list(none.observation_space.spaces) == ["_orig_obs"] and none.lookback == 0
    episode = walk(2, observation=lambda t: t)
    none(batch={}, episodes=[episode])
    assert episode.get_observations(-1) == {"_orig_obs": 2}


def test_behind_a_filter_it_shows_filtered_observations_and_raw_rewards(lab):
    pieces = [MeanStdFilter(), PrevActionsPrevRewards()]
    pipeline = EnvToModulePipeline(lab.obs_space, lab.act_space, connectors=pieces)
    episode = walk(3)
    pipeline(episodes=[episode])
    assert episode.get_observations(-1)["_orig_obs"].tolist() == [0.0, 0.0]
    assert episode.get_observations(-1)["prev_n_rewards"].tolist() == [2.5]
    assert pipeline.observation_space["_orig_obs"] == Box(-10, 10, (2,))


def test_its_place_is_the_env_to_module_pipeline():
    with pytest.raises(PipelineError, match=r"piece 0 \(PrevActionsPrevRewards\)(.|\n)*learner pieces find"):
        LearnerConnectorPipeline(connectors=[PrevActionsPrevRewards()])


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"n_prev_actions": -1}, ConfigError, "PrevActionsPrevRewards.n_prev_actions"),
        ({"n_prev_rewards": 1.0}, ConfigError, "n_prev_rewards"),
        ({"n_prev_rewards": True}, ConfigError, "True"),
    ],
)
def test_wrong_settings_are_named(settings, error, words):
    with pytest.raises(error, match=words):
        PrevActionsPrevRewards(**settings)


def test_without_an_action_space_it_says_what_it_needs():
    with pytest.raises(SpaceError, match="pass the action space"):
        PrevActionsPrevRewards()(batch={}, episodes=[walk(1)])
