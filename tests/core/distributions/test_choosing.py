"""Which distribution each action space gets, and that what it draws is a member."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_map

from epibatch.core.distributions import (
    Categorical,
    DiagGaussian,
    MultiCategorical,
    MultiDistribution,
    SquashedGaussian,
    distribution_for,
)
from epibatch.core.errors import SpaceError
from epibatch.core.spaces import EnvActions

Box, Discrete = gym.spaces.Box, gym.spaces.Discrete
NESTED = gym.spaces.Dict(
    {"z": Discrete(2), "a": gym.spaces.Tuple([Box(-1, 1, (2,)), gym.spaces.MultiBinary(3)]), "m": Box(0, 1, ())}
)
SPACES = [
    (Discrete(4), Categorical, 4),
    (Discrete(4, start=-2), Categorical, 4),
    (gym.spaces.MultiDiscrete([2, 5]), MultiCategorical, 7),
    (gym.spaces.MultiDiscrete([[2, 5], [3, 3]], start=[[1, 0], [-4, 9]]), MultiCategorical, 13),
    (gym.spaces.MultiDiscrete([2, 5], dtype=np.int32), MultiCategorical, 7),
    (gym.spaces.MultiBinary((2, 2)), MultiCategorical, 8),
    (Box(-3, 3, (2,), np.int8), MultiCategorical, 14),
    (Box(-128, 127, (), np.int8), MultiCategorical, 256),
    (Box(0, 1, (2,), np.bool_), MultiCategorical, 4),
    (Box(-1, 1, (3,)), DiagGaussian, 6),
    (Box(-1, np.inf, (2, 3)), DiagGaussian, 12),
    (Box(-np.inf, np.inf, ()), DiagGaussian, 2),
    (NESTED, MultiDistribution, 4 + 6 + 2 + 2),
]


@pytest.mark.parametrize(("space", "cls", "count"), SPACES)
def test_kind_and_inputs(space, cls, count):
    found = distribution_for(space)
    assert issubclass(found, cls)
    assert found.required_input_dim(space) == count


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize(("space", "cls", "count"), SPACES)
def test_what_reaches_the_environment_is_a_member(space, cls, count, squash, greedy):
    dist = distribution_for(space, squash=squash).from_logits(torch.randn(300, count) * 3)
    drawn = (dist.to_deterministic() if greedy else dist).sample()
    actions = EnvActions(space)(tree_map(lambda leaf: leaf.numpy(), drawn))
    for i in range(300):
        action = tree_map(lambda leaf, i=i: np.asarray(leaf[i]), actions)
        assert space.contains(action if not isinstance(space, Discrete) else action[()]), action


def test_plain_classes_where_nothing_must_be_fixed():
    assert distribution_for(Discrete(2)) is Categorical
    assert distribution_for(Box(-1, 1, (3,))) is DiagGaussian
    assert distribution_for(Box(-1, 1, (3,)), squash=True) is SquashedGaussian
    assert distribution_for(Box(-1, np.inf, (3,)), squash=True) is DiagGaussian


@pytest.mark.parametrize(
    ("space", "dtype"),
    [
        (gym.spaces.MultiBinary(3), torch.int8),
        (gym.spaces.MultiDiscrete([2, 3], dtype=np.int16), torch.int16),
        (Box(-3, 3, (2,), np.int8), torch.int8),
        (Box(-128, 127, (2,), np.int8), torch.int64),
    ],
)
def test_types_are_the_spaces_if_they_hold_the_integers(space, dtype):
    cls = distribution_for(space)
    drawn = cls.from_logits(torch.zeros(2, cls.required_input_dim(space))).sample()
    assert (drawn.dtype, drawn.shape) == (dtype, (2, *space.shape))


def test_numbers_of_inputs_of_the_parts():
    assert MultiDistribution.required_input_dim(NESTED) == 14
    assert MultiDistribution.required_input_dim(NESTED, as_list=True) == [4, 6, 2, 2]
    assert MultiDistribution.required_input_dim(NESTED, input_lens=[1, 2]) == 3


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (None, "get_exploration_action_dist_cls"),
        (gym.spaces.Text(3), "get_exploration_action_dist_cls"),
        (gym.spaces.Tuple([]), "get_exploration_action_dist_cls"),
        (Box(-np.inf, 5, (2,), np.int64), "bound the environment's actions"),
        (Box(0, 2**40, (1,), np.int64), "float Box and round"),
        (gym.spaces.Dict(a=Discrete(2), b=gym.spaces.Tuple([gym.spaces.Text(2)])), r"at \['b'\]\[0\]"),
    ],
)
def test_spaces_without_a_distribution(space, message):
    with pytest.raises(SpaceError, match=message):
        distribution_for(space)
