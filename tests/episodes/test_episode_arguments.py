from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.core.errors import CheckpointError, EpisodeError, SpaceError
from epibatch.episodes import SingleAgentEpisode
from epibatch.episodes.episode_arguments import as_flag, as_info


def started():
    episode = SingleAgentEpisode("ep")
    episode.add_env_reset(np.zeros(2))
    return episode


@pytest.mark.parametrize("value", [True, 1, np.True_, np.array(True), np.array([True]), np.int64(1)])
def test_flags_that_are_meant(value):
    assert as_flag(value, "terminated", "ep") is True
    assert as_flag(type(value)(0) if not isinstance(value, np.ndarray) else ~value, "terminated", "ep") is False
    episode = started()
    episode.add_env_step(np.zeros(2), 0, 0.0, terminated=value)
    assert episode.is_terminated is True and episode.is_truncated is False


@pytest.mark.parametrize("value", ["no", "", None, 2, 1.0, float("nan"), np.array([True, False]), [True]])
@pytest.mark.parametrize("name", ["terminated", "truncated"])
def test_flags_that_are_none(name, value):
    episode = started()
    with pytest.raises(EpisodeError, match=f"episode ep, {name}\n  expected: True or False"):
        episode.add_env_step(np.zeros(2), 0, 0.0, **{name: value})
    assert len(episode) == 0 and not episode.is_done, "a refused step changes nothing"
    with pytest.raises(EpisodeError, match=name):
        SingleAgentEpisode("ep", **{name: value})


@pytest.mark.parametrize("info", ["x", 3, [1], [("a", 1)]])
def test_infos_that_are_none(info):
    episode = started()
    with pytest.raises(EpisodeError, match="episode ep, infos"):
        episode.add_env_step(np.zeros(2), 0, 0.0, info)
    with pytest.raises(EpisodeError, match="infos"):
        SingleAgentEpisode("ep").add_env_reset(0, infos=info)
    assert len(episode) == 0


def test_infos_are_copied():
    given = {"a": 1}
    assert as_info(given, "ep") == given and as_info(given, "ep") is not given
    assert as_info(None, "ep") == {}


@pytest.mark.parametrize("value", [-1, 1.5, "2", True])
@pytest.mark.parametrize("name", ["t_started", "len_lookback_buffer"])
def test_steps_that_are_none(name, value):
    with pytest.raises(EpisodeError, match=f"episode ep, {name}\n  expected: a number of steps from 0 on"):
        SingleAgentEpisode("ep", observations=[0, 1], actions=[0], rewards=[0.0], **{name: value})


def test_numpy_integers_are_steps():
    assert SingleAgentEpisode(t_started=np.int64(3)).t_started == 3
    assert started().cut(len_lookback_buffer=np.int32(1)).lookback == 0


@pytest.mark.parametrize("name", ["observation_space", "action_space"])
def test_spaces_that_are_none(name):
    with pytest.raises(SpaceError, match=f"episode ep, {name}"):
        SingleAgentEpisode("ep", **{name: gym.spaces.Discrete})


@pytest.mark.parametrize("state", [{}, 3, None, {"id_": "ep"}])
def test_states_that_are_none(state):
    with pytest.raises(CheckpointError, match="expected: the state of an episode"):
        SingleAgentEpisode.from_state(state)


@pytest.mark.parametrize("other", [3, None, "ep"])
def test_chunks_that_are_none(other):
    with pytest.raises(EpisodeError, match="concat_episode"):
        started().concat_episode(other)
