from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector.utils import batch_space
from hypothesis import given
from hypothesis import strategies as st

from epibatch.algorithms.policy_inputs import PolicyInputs
from epibatch.core.errors import ColumnError, SpaceError
from epibatch.core.structs import flatten, flatten_like, form_of, map_struct

LEAVES = st.one_of(
    st.lists(st.integers(1, 3), max_size=3).map(lambda shape: gym.spaces.Box(-1, 1, tuple(shape))),
    st.lists(st.integers(1, 3), max_size=3).map(lambda shape: gym.spaces.Box(0, 255, tuple(shape), np.uint8)),
    st.integers(1, 4).map(lambda n: gym.spaces.Discrete(n, start=2)),
    st.integers(1, 3).map(lambda n: gym.spaces.MultiDiscrete([3] * n)),
    st.integers(1, 3).map(gym.spaces.MultiBinary),
)
SPACES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map(gym.spaces.Tuple)
        | st.dictionaries(st.sampled_from("abc"), inner, min_size=1).map(gym.spaces.Dict)
    ),
    max_leaves=5,
)


def assert_same(found, expected):
    for mine, theirs in zip(flatten(found)[0], flatten_like(form_of(found), expected)):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs)


@given(SPACES, st.integers(1, 3), st.integers(0, 99))
def test_every_space_tells_one_from_a_batch(space, n, seed):
    inputs, batch = PolicyInputs(space), batch_space(space, n)
    batch.seed(seed)
    space.seed(seed)
    sample, many = space.sample(), batch.sample()
    one, batched = inputs.observations(sample)
    assert not batched
    assert_same(one, map_struct(lambda leaf: np.asarray(leaf)[None], sample))
    same, batched = inputs.observations(many)
    assert batched
    assert_same(same, many)


BOX, PIXELS = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Box(0, 255, (2,), np.uint8)


@pytest.mark.parametrize(
    ("space", "obs", "expected"),
    [
        (BOX, [0.5, 1], np.array([[0.5, 1]], np.float32)),
        (BOX, np.array([1, 0]), np.array([[1, 0]], np.float32)),
        (BOX, torch.tensor([0.5, 1.0]), np.array([[0.5, 1]], np.float32)),
        (PIXELS, [3, 4], np.array([[3, 4]], np.uint8)),
        (gym.spaces.Discrete(3), 2, np.array([2])),
        (gym.spaces.Discrete(3), [2, 0], np.array([2, 0])),
    ],
)
def test_types_become_the_spaces(space, obs, expected):
    found, _ = PolicyInputs(space).observations(obs)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("space", "obs", "found"),
    [
        (BOX, np.zeros(3), r"shape \(3,\)"),
        (BOX, np.zeros((2, 2, 2)), r"shape \(2, 2, 2\)"),
        (BOX, np.zeros((0, 2)), "no rows"),
        (BOX, np.zeros((0, 2), BOX.dtype), "no rows"),
        (BOX, 0.5, r"shape \(\)"),
        (BOX, ["a", "b"], "list of <U1"),
        (BOX, [[0.0], [0.0, 1.0]], "list that is no array"),
        (BOX, None, "NoneType of object"),
        (BOX, {"x": np.zeros(2)}, r"\{x: leaf\}"),
        (PIXELS, np.zeros(2), "ndarray of float64"),
        (PIXELS, [3, 256], "values that uint8 cannot hold"),
        (PIXELS, [-1, 3], "values that uint8 cannot hold"),
        (gym.spaces.Discrete(3), 1.0, "float of float64"),
        (
            gym.spaces.Dict(a=BOX, b=BOX),
            {"a": np.zeros((2, 2)), "b": np.zeros((3, 2))},
            r"obs\['a'\] a batch of 2; obs\['b'\] a batch of 3",
        ),
        (
            gym.spaces.Dict(a=BOX, b=BOX),
            {"a": np.zeros((2, 2)), "b": np.zeros(2)},
            r"obs\['a'\] a batch of 2; obs\['b'\] single",
        ),
        (
            gym.spaces.Dict(a=BOX, b=BOX),
            {"a": np.zeros(2), "b": np.zeros((2, 2))},
            r"obs\['a'\] single; obs\['b'\] a batch of 2",
        ),
        (gym.spaces.Dict(a=BOX, b=BOX), {"a": np.zeros(2)}, r"\{a: leaf\}.*as the space says"),
        (gym.spaces.Dict(a=BOX, b=BOX), [{"a": np.zeros(2)}], r"list, not nested.*\{key: rows of all\}"),
    ],
)
def test_observations_that_do_not_fit(space, obs, found):
    with pytest.raises(SpaceError, match=rf"(?s)observation for Policy\.act.*found: .*{found}"):
        PolicyInputs(space).observations(obs)


def test_spaces_without_shape():
    with pytest.raises(SpaceError, match="leaves with a shape"):
        PolicyInputs(gym.spaces.Dict(a=BOX, b=gym.spaces.Text(5)))


def test_rewards():
    rewards = PolicyInputs.rewards
    assert np.isnan(rewards(None, 2, True)).tolist() == [True, True]
    assert rewards(1, 1, False).tolist() == [1.0]
    assert rewards([1, 2], 2, True).dtype == np.float64
    for wrong, batched in (([1.0], False), (1.0, True), ([1, 2, 3], True), ("a", False)):
        with pytest.raises(ColumnError, match=r"reward for Policy\.act"):
            rewards(wrong, 2 if batched else 1, batched)


def test_starts():
    starts = PolicyInputs.starts
    assert starts(None, 2, True) is None
    assert starts([False, False], 2, True) is None
    assert starts(np.True_, 1, False).tolist() == [True]
    assert starts([True, False], 2, True).tolist() == [True, False]
    for wrong in ([True], True, [0, 1]):
        with pytest.raises(ColumnError, match=r"(?s)starts for Policy\.act.*2 booleans"):
            starts(wrong, 2, True)


def test_infos():
    assert PolicyInputs.infos(None, False) is None
    assert PolicyInputs.infos({"a": 1}, False) == [{"a": 1}]
    assert PolicyInputs.infos({"a": [1]}, True) == {"a": [1]}
    with pytest.raises(ColumnError, match=r"info for Policy\.act"):
        PolicyInputs.infos([{}], True)


@pytest.mark.parametrize("space", [gym.spaces.Box(0, 1, (4,)), gym.spaces.Dict(a=gym.spaces.Discrete(2))])
def test_what_env_reset_returns_is_no_observation(space):
    with pytest.raises(SpaceError, match=r"apart: act\(obs, info=info\)"):
        PolicyInputs(space).observations((space.sample(), {}))
