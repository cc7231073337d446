"""Masks of legal actions, and random actions within them."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.core.errors import SpaceError
from epibatch.core.spaces import choice_counts, has_legal_choices, random_legal_actions

SPACES = [
    (gym.spaces.Discrete(4, start=-2), [4]),
    (gym.spaces.MultiDiscrete([3, 1, 2], start=[0, 5, 1]), [3, 1, 2]),
    (gym.spaces.MultiDiscrete([[2, 3], [1, 2]], dtype=np.int32), [2, 3, 1, 2]),
    (gym.spaces.MultiBinary(3), [2, 2, 2]),
]


@pytest.mark.parametrize(("space", "counts"), SPACES, ids=str)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 5))
def test_drawn_actions_are_legal_wherever_that_is_possible(space, counts, seed, rows):
    assert choice_counts(space) == counts
    rng = np.random.default_rng(seed)
    mask = rng.random((rows, sum(counts))) < 0.5
    actions = random_legal_actions(space, mask, rng)
    assert actions.dtype == space.dtype and all(space.contains(action) for action in actions)
    ends = np.cumsum(counts)
    for row, action, possible in zip(mask, actions, has_legal_choices(mask, counts)):
        parts = [row[end - count : end] for end, count in zip(ends, counts)]
        assert possible == all(part.any() for part in parts)
        chosen = np.ravel(action - getattr(space, "start", 0))
        assert not possible or all(part[choice] for part, choice in zip(parts, chosen))


def test_legal_ones_are_drawn_alike():
    mask = np.tile([True, False, True, True], (9000, 1))
    drawn = random_legal_actions(gym.spaces.Discrete(4), mask, np.random.default_rng(0))
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / 9000, [1 / 3, 0, 1 / 3, 1 / 3], atol=0.02)


def test_other_spaces_are_named():
    with pytest.raises(SpaceError, match="mask_logits"):
        choice_counts(gym.spaces.Box(0, 1, (2,)))
