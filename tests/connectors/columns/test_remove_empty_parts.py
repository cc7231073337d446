"""Parts that hold nothing go, in spaces and in rows."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.connectors.columns import RemoveEmptyParts
from epibatch.core.errors import ColumnError
from epibatch.episodes import SingleAgentEpisode
from epibatch.testing import check_connector

BOX = gym.spaces.Box(-1, 1, (2,))
NONE = gym.spaces.Box(-1, 1, (0, 3))
SPACE = gym.spaces.Dict(a=BOX, b=gym.spaces.Dict(c=NONE), d=gym.spaces.Tuple([NONE, BOX, gym.spaces.Dict()]))
LEFT = gym.spaces.Dict(a=BOX, d=gym.spaces.Tuple([BOX]))


def row(t):
    value, nothing = np.full(2, t / 8, np.float32), np.zeros((0, 3), np.float32)
    return {"a": value, "b": {"c": nothing}, "d": (nothing, -value, {})}


def episode(steps):
    rows = [row(t) for t in range(steps + 1)]
    return SingleAgentEpisode(observations=rows, actions=[0] * steps, rewards=[0.0] * steps, len_lookback_buffer=0)


def test_rows_and_space_on_both_sides(nested):
    trained = nested.train([RemoveEmptyParts()], [episode(3)], space=SPACE)["obs"]
    acting, pipeline = nested.act([RemoveEmptyParts()], [episode(2)], space=SPACE)
    assert trained.keys() == acting["obs"].keys() == {"a", "d"}
    assert trained["a"][:, 0].tolist() == [0, 0.125, 0.25] and trained["d"][0][:, 0].tolist() == [0, -0.125, -0.25]
    assert acting["obs"]["a"][0].tolist() == trained["a"][2].tolist()
    assert pipeline.observation_space == LEFT
    assert pipeline.observation_space.contains({"a": acting["obs"]["a"][0], "d": (acting["obs"]["d"][0][0],)})


def test_what_is_full_stays_as_it_is(nested):
    batch = nested.train([RemoveEmptyParts(columns=["obs"])], [nested.episode(2)])
    assert batch["obs"]["info"]["gear"].tolist() == [0, 1]
    assert RemoveEmptyParts(nested.space).observation_space == nested.space


def test_nothing_left_is_named(nested):
    rows = [{"a": np.zeros(0)}] * 2
    one = SingleAgentEpisode(observations=rows, actions=[0], rewards=[0.0], len_lookback_buffer=0)
    with pytest.raises(ColumnError, match="a part of 'obs' that stays"):
        nested.train([RemoveEmptyParts()], [one], space=None)


def test_by_contract():
    check_connector(RemoveEmptyParts(), spaces=gym.spaces.Dict(a=BOX, b=NONE))
