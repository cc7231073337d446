"""Between modules' actions and environments': scaling, types, and masks of legal actions."""

from __future__ import annotations

import pickle
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.core.errors import ColumnError, SpaceError
from epibatch.core.spaces import (
    EnvActions,
    choice_counts,
    has_legal_choices,
    normalize_action,
    random_legal_actions,
    unsquash_action,
)

BOX = spaces.Box(np.array([-2, 0], np.float32), np.array([4, 1], np.float32))
HALF = spaces.Box(np.array([-np.inf, 0, -np.inf, -2], np.float32), np.array([4, np.inf, np.inf, 2], np.float32))
INT_BOX = spaces.Box(-2, 5, (2,), np.int32)


def rows(*values, dtype=np.float32):
    return np.array(values, dtype)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("bounds", [(0.1, 0.3), (-7.0, -0.7), (-3e4, 6e4)])
def test_scaled_actions_lie_in_boxes_of_every_type(bounds, dtype):
    box = spaces.Box(*bounds, (2,), dtype)
    actions = np.random.default_rng(0).uniform(-1.5, 1.5, (500, 2)).astype(np.float32)
    actions[:2] = [[-1.0, 1.0], [1e30, -1e30]]
    for normalize, clip in ((True, False), (False, True)):
        made = EnvActions(box, normalize=normalize, clip=clip)(actions)
        assert made.dtype == dtype
        assert all(box.contains(row) for row in made)
    middle = EnvActions(box)(np.zeros((1, 2), np.float32))
    assert np.allclose(middle.astype(float), np.mean(bounds), rtol=2e-3)


def test_scaling_is_what_unsquash_gives():
    actions = np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32)
    assert np.allclose(EnvActions(HALF)(actions), unsquash_action(actions, HALF))
    assert unsquash_action(np.float32(0.5), spaces.Box(-2, 2, ())) == 1.0
    assert unsquash_action(np.array([1, 9]), BOX).tolist() == [4.0, 1.0]
    assert unsquash_action(np.array([5.0, -3.0, 7.0, 0.5]), HALF).tolist() == [4.0, 0.0, 7.0, 1.0]
    assert normalize_action(np.array([3.0, 3.0, 3.0, 1.0]), HALF).tolist() == [3.0, 3.0, 3.0, 0.5]
    assert normalize_action(np.array([1, 3]), INT_BOX).tolist() == [1, 3]
    assert normalize_action(np.array([2.0]), spaces.Box(2, 2, (1,))) == 2.0
    box = spaces.Box(-7, 9, (2,), np.int8)
    made = unsquash_action(np.array([3, 16], np.int8), box)
    assert made.tolist() == [-4, 9] and box.contains(made)


def test_huge_bounds_do_not_overflow():
    for dtype in (np.float32, np.float64):
        most = np.finfo(dtype).max
        made = EnvActions(spaces.Box(-most, most, (1,), dtype))(rows([-1.0], [0.5], [1.0], [9.0]))
        assert np.allclose(made[:, 0] / most, [-1.0, 0.5, 1.0, 1.0])


@pytest.mark.parametrize("switches", [{}, {"normalize": False, "from_low": True}])
def test_integers_count_from_the_lower_bound(switches):
    to_env = EnvActions(INT_BOX, **switches)
    made = to_env(rows([0, 7], [3, 1], dtype=np.int64))
    assert made.tolist() == [[-2, 5], [1, -1]]
    assert made.dtype == np.int32
    wide = spaces.Box(-128, 127, (1,), np.int8)
    assert EnvActions(wide, **switches)(rows([0], [255], dtype=np.int64)).tolist() == [[-128], [127]]
    assert EnvActions(INT_BOX, normalize=False)(rows([0, 5], [-2, 1], dtype=np.int64)).tolist() == [[0, 5], [-2, 1]]
    clipped = EnvActions(INT_BOX, normalize=False, clip=True)(rows([9, -9], dtype=np.int64))
    assert clipped.tolist() == [[5, -2]] and clipped.dtype == np.int32
    open_ = spaces.Box(-np.inf, 5, (1,), np.int64)
    assert EnvActions(open_, **switches)(rows([-9], [4], dtype=np.int64)).tolist() == [[-9], [4]]


def test_types_are_the_spaces():
    assert EnvActions(spaces.MultiBinary(2))(rows([0, 1], dtype=np.int64)).dtype == np.int8
    assert EnvActions(spaces.MultiDiscrete([3], dtype=np.int32))(rows([2], dtype=np.int64)).dtype == np.int32
    actions = rows(1, 0, dtype=np.int64)
    assert EnvActions(spaces.Discrete(2))(actions) is actions
    assert EnvActions(spaces.Box(-1, 1, (2,), np.float64), normalize=False)(rows([9, 9])).dtype == np.float64


def test_values_that_a_type_cannot_hold_are_left_for_the_environment_to_refuse():
    assert EnvActions(spaces.MultiBinary(1))(rows([300], dtype=np.int64)).tolist() == [[300]]
    assert EnvActions(spaces.Discrete(3))(rows(1.5)).tolist() == [1.5]


def test_nested_actions_share_no_memory_with_the_modules():
    space = spaces.Dict(a=spaces.Tuple([BOX, spaces.Discrete(2)]), b=spaces.MultiBinary(2))
    actions = {"b": rows([0, 1], dtype=np.int8), "a": (rows([0.5, 0.5]), rows(1, dtype=np.int64))}
    made = EnvActions(space)(actions)
    assert made["a"][0].tolist() == [[2.5, 0.75]]
    assert made["a"][1].tolist() == [1]
    assert not np.shares_memory(made["a"][1], actions["a"][1])
    assert not np.shares_memory(made["b"], actions["b"])
    with pytest.raises(ColumnError, match="nested structure"):
        EnvActions(space)({"a": actions["a"]})


def test_half_precision_arithmetic_is_done_in_single():
    box = spaces.Box(-6e4, 6e4, (1,), np.float16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert EnvActions(box)(rows([2.0], [-1.0])).tolist() == [[60000.0], [-60000.0]]
    box = spaces.Box(-1.027, 9.9, (1,), np.float16)
    assert EnvActions(box)(rows([1.0], [-1.0]).astype(np.float16)).tolist() == [box.high.tolist(), box.low.tolist()]


@pytest.mark.parametrize("switches", [{}, {"normalize": False}, {"normalize": False, "clip": True}])
def test_a_pickled_copy_gives_the_same(switches):
    encoder = EnvActions(spaces.Dict(a=BOX, b=INT_BOX), **switches)
    actions = {"a": np.array([[0.5, 7.0]], np.float32), "b": np.array([[0, 6]])}
    one, other = encoder(actions), pickle.loads(pickle.dumps(encoder))(actions)
    assert np.array_equal(one["a"], other["a"]) and np.array_equal(one["b"], other["b"])
    assert [own.dtype for own in other.values()] == [np.float32, np.int32]


MASKED = [
    (gym.spaces.Discrete(4, start=-2), [4]),
    (gym.spaces.MultiDiscrete([3, 1, 2], start=[0, 5, 1]), [3, 1, 2]),
    (gym.spaces.MultiDiscrete([[2, 3], [1, 2]], dtype=np.int32), [2, 3, 1, 2]),
    (gym.spaces.MultiBinary(3), [2, 2, 2]),
]


@pytest.mark.parametrize(("space", "counts"), MASKED, ids=str)
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


@pytest.mark.parametrize(("legal", "shares"), [([1, 0, 1, 1], [1 / 3, 0, 1 / 3, 1 / 3]), ([0] * 4, [1 / 4] * 4)])
def test_choices_are_drawn_alike(legal, shares):
    mask = np.tile(np.array(legal, bool), (9000, 1))
    drawn = random_legal_actions(gym.spaces.Discrete(4), mask, np.random.default_rng(0))
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / 9000, shares, atol=0.02)
    with pytest.raises(SpaceError, match="mask_logits"):
        choice_counts(gym.spaces.Box(0, 1, (2,)))
