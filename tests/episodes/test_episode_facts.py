"""What an episode says about itself."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.episodes.single_agent_episode import SingleAgentEpisode


def make(**options: bool) -> SingleAgentEpisode:
    return SingleAgentEpisode(
        observations=[0, 1, 2, 3], actions=[5, 6, 7], rewards=[1.0, 2.0, 4.0], t_started=9, len_lookback_buffer=1,
        extra_model_outputs={"e": [0.0, 0.1, 0.2]}, **options,
    )  # fmt: skip


def test_lengths_and_times() -> None:
    episode = make()
    assert (len(episode), episode.env_steps(), episode.agent_steps(), episode.lookback) == (2, 2, 2, 1)
    assert (episode.t_started, episode.t) == (9, 11)
    episode.t_started = 3
    assert episode.t == 5 and episode.observations.t_started == episode.extra_model_outputs["e"].t_started == 3


@pytest.mark.parametrize(("terminated", "truncated"), [(False, False), (True, False), (False, True), (True, True)])
def test_the_data_dict_has_the_flags_at_its_last_step(terminated: bool, truncated: bool) -> None:
    episode = make(terminated=terminated, truncated=truncated)
    data = episode.get_data_dict()
    assert episode.is_done == (terminated or truncated)
    assert {key: list(value) for key, value in data.items() if key != "infos"} == {
        "obs": [1, 2], "actions": [6, 7], "rewards": [2.0, 4.0], "e": [0.1, 0.2],
        "terminateds": [False, terminated], "truncateds": [False, truncated], "t": [9, 10], "eps_id": [episode.id_] * 2,
    }  # fmt: skip
    assert data["infos"] == [{}, {}]


def test_totals_of_an_episode_without_steps() -> None:
    episode = SingleAgentEpisode()
    assert (episode.get_return(), episode.get_duration_s(), episode.is_reset) == (0.0, 0.0, False)
    assert [len(column) for column in episode.get_data_dict().values()] == [0] * 8
    assert make().get_return() == 6.0


def test_duration_grows_with_the_steps() -> None:
    episode = SingleAgentEpisode()
    episode.add_env_reset(0)
    assert episode.get_duration_s() == 0.0
    episode.add_env_step(1, 0, 0.0)
    first = episode.get_duration_s()
    episode.add_env_step(1, 0, 0.0)
    assert 0.0 < first < episode.get_duration_s() < 10.0


def test_spaces_may_be_set() -> None:
    episode = make()
    episode.observation_space = gym.spaces.Discrete(4)
    episode.action_space = gym.spaces.Discrete(8)
    assert episode.get_actions(0, one_hot_discrete=True).argmax() == 6
    np.testing.assert_array_equal(episode.get_observations(-1, one_hot_discrete=True), [0, 0, 0, 1])
