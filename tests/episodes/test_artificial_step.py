"""Copies with an artificial step, against the step added by hand."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from epibatch.core.errors import ColumnError
from epibatch.episodes import SingleAgentEpisode


def added_by_hand(episode: SingleAgentEpisode) -> SingleAgentEpisode:
    out = episode[:]
    out.is_terminated = out.is_truncated = False
    out.given_observation_space = None
    out.add_env_step(
        out.get_observations(-1),
        out.get_actions(-1),
        0.0,
        out.get_infos(-1),
        terminated=episode.is_terminated,
        truncated=episode.is_truncated or not episode.is_terminated,
        extra_model_outputs={key: out.get_extra_model_outputs(key, -1) for key in out.extra_model_outputs},
    )
    return out


ROWS: dict[str, Any] = {
    "numbers": {"observations": [0.5, 1.5, 2.5], "actions": [0, 1], "rewards": [1.0, 2.0]},
    "whole_rewards": {"observations": [0, 1, 2], "actions": [0, 1], "rewards": np.array([1, 2])},
    "vectors": {"observations": np.eye(3), "actions": np.ones((2, 4), np.float32), "rewards": [1.0, 2.0]},
    "nested": {
        "observations": [{"a": np.full(2, i), "b": (i, 0.5)} for i in range(3)],
        "actions": [{"left": 1}, {"left": 2}],
        "rewards": [1.0, 2.0],
        "extra_model_outputs": {"state": {"h": np.ones((2, 3)), "c": np.zeros((2, 3))}, "logp": [0.1, 0.2]},
    },
    "objects": {
        "observations": [np.ones(1), np.ones(2), np.ones(3)],
        "actions": ["left", "right"],
        "rewards": np.ones((2, 2)),
        "infos": [{}, {"seen": 1}, {"seen": 2}],
    },
}


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("lookback", [0, 1])
@pytest.mark.parametrize("ends", [(False, False), (True, False), (False, True)])
def test_the_copy_is_the_episode_with_a_step_added_by_hand(rows: str, lookback: int, ends: tuple[bool, bool]) -> None:
    terminated, truncated = ends
    episode = SingleAgentEpisode(
        id_="a", len_lookback_buffer=lookback, terminated=terminated, truncated=truncated, t_started=3, **ROWS[rows]
    )
    before = copy.deepcopy(episode)
    out = episode.with_artificial_step()
    assert out.equals(added_by_hand(episode))
    assert (len(out), out.t_started, out.observations.t_started) == (len(episode) + 1, 3, 3)
    out.set_rewards(new_data=5.0, at_indices=0)
    out.get_infos(-1)["new"] = 1
    assert episode.equals(before)
    assert out.get_infos(-2) == before.get_infos(-1)


def test_a_newest_observation_of_another_shape_may_be_replaced_once_more() -> None:
    episode = SingleAgentEpisode(id_="a")
    episode.add_env_reset(np.zeros(2))
    episode.add_env_step(np.ones(2), 1, 1.0)
    episode.set_observations(new_data=np.ones(3), at_indices=-1)
    out = episode.with_artificial_step()
    assert out.equals(added_by_hand(episode))
    out.set_observations(new_data=np.full(5, 7.0), at_indices=-1)
    assert out.get_observations(-1).tolist() == [7.0] * 5


def test_an_observation_that_is_nested_differently_is_named() -> None:
    episode = SingleAgentEpisode(id_="a")
    episode.add_env_reset({"a": 1.0})
    episode.add_env_step({"a": 2.0}, 1, 1.0)
    episode.set_observations(new_data={"b": 2.0}, at_indices=-1)
    with pytest.raises(ColumnError, match="episode a, column 'obs' at t=1"):
        episode.with_artificial_step()
