"""Spaces of observations that a view replaces."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.connectors.views import TrajectoryViews, View
from epibatch.connectors.views.trajectory_views import stacked_space
from epibatch.core.errors import SpaceError, UnknownNameError
from epibatch.core.spaces import get_base_struct_from_space

BOX = gym.spaces.Box(1, 255, (4, 3), np.uint8)


def test_several_shifts_put_an_axis_in_front():
    space = gym.spaces.Dict(image=BOX, some=gym.spaces.Tuple([gym.spaces.Discrete(3), gym.spaces.MultiBinary(2)]))
    stacked = stacked_space(space, View("obs", "-1:0"))
    assert stacked["image"] == gym.spaces.Box(0, 255, (2, 4, 3), np.uint8)
    assert stacked["some"][0] == gym.spaces.MultiDiscrete([3, 3])
    assert stacked["some"][1] == gym.spaces.MultiBinary([2, 2])
    nvec = gym.spaces.MultiDiscrete([2, 3])
    assert stacked_space(nvec, View("obs", "-1:0")) == gym.spaces.MultiDiscrete([[2, 3], [2, 3]])


def test_one_shift_leaves_the_shape_and_takes_in_the_fill_value():
    assert stacked_space(BOX, View("obs", -1, fill=0)) == gym.spaces.Box(0, 255, (4, 3), np.uint8)
    assert stacked_space(gym.spaces.Discrete(3), View("obs", -1)) == gym.spaces.Discrete(3)
    assert stacked_space(gym.spaces.Dict(a=BOX, b=BOX), View("obs/a", -1)).shape == (4, 3)
    assert stacked_space(gym.spaces.Tuple([BOX, gym.spaces.Discrete(2)]), View("obs/1", -1)).n == 2


@pytest.mark.parametrize("shift", [-1, "-2:0", [0, -3]])
def test_rows_are_in_the_space(shift):
    from epibatch.episodes import SingleAgentEpisode

    rng = np.random.default_rng(0)
    space = gym.spaces.Dict(image=BOX, kind=gym.spaces.MultiDiscrete([2, 3]))
    space.seed(0)
    rows = [space.sample() for _ in range(4)]
    episode = SingleAgentEpisode(observations=rows, actions=[0] * 3, rewards=rng.random(3), len_lookback_buffer=0)
    piece = TrajectoryViews(space, gym.spaces.Discrete(2), views={"obs": View(shift=shift)}, as_learner_connector=True)
    found = next(iter(piece(batch={}, episodes=[episode])["obs"].values()))[0]
    own = get_base_struct_from_space(piece.observation_space)
    for key, leaf in found.items():
        assert all(own[key].contains(row.astype(own[key].dtype)) for row in leaf)


@pytest.mark.parametrize("space", [gym.spaces.Text(3), gym.spaces.Discrete(3, start=1)])
def test_spaces_without_stacks(space):
    with pytest.raises(SpaceError, match="FlattenObservations"):
        stacked_space(space, View("obs", "-1:0"))


def test_a_part_that_is_not_there():
    with pytest.raises(UnknownNameError, match="did you mean 'camera'"):
        stacked_space(gym.spaces.Dict(camera=BOX), View("obs/camra", -1))
