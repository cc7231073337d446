"""Rows of nested observations against RLlib's layout, spelled out, and the library's slow helper."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.connectors.common.flatten_observations import FlatRows
from epibatch.core.errors import ColumnError, SpaceError
from epibatch.core.spaces import batch, flatten_inputs_to_1d_tensor, get_base_struct_from_space

LEAVES = st.sampled_from(
    [
        Box(-1, 1, (3,)),
        Box(-2, 2, (), np.float64),
        Box(0, 255, (2, 2, 1), np.uint8),
        Discrete(4, start=-2),
        MultiDiscrete([2, 3], start=[5, -1]),
        MultiDiscrete([[2, 3], [4, 1]]),
        MultiBinary((2, 2)),
    ]
)
SPACES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(Tuple),
        st.dictionaries(st.sampled_from("zabc"), inner, min_size=1, max_size=3).map(
            lambda own: Dict(list(own.items()))
        ),
    ),
    max_leaves=5,
)


@settings(max_examples=60, deadline=None)
@given(space=SPACES, count=st.integers(1, 5), seed=st.integers(0, 1000))
def test_rows_are_those_of_the_helper_for_ported_code(space, count, seed):
    space.seed(seed)
    observations = batch([space.sample() for _ in range(count)])
    rows = FlatRows(space)(observations)
    expected = flatten_inputs_to_1d_tensor(observations, get_base_struct_from_space(space))
    np.testing.assert_array_equal(rows, expected)
    assert rows.dtype == np.float32
    assert rows.shape == (count, FlatRows(space).size)


def test_the_layout():
    space = Dict([("c", MultiDiscrete([2, 3])), ("b", Tuple([Discrete(2), Box(-1, 1, (2, 1))])), ("a", Box(-9, 9, ()))])
    rows = FlatRows(space)(
        {"a": np.array([7.0]), "b": (np.array([1]), np.array([[[2.0], [3.0]]])), "c": np.array([[0, 2]])}
    )
    assert rows.tolist() == [[7.0, 0.0, 1.0, 2.0, 3.0, 1.0, 0.0, 0.0, 0.0, 1.0]]


def test_no_rows():
    space = Dict(a=Box(-1, 1, (2,)), b=Discrete(3))
    assert FlatRows(space)({"a": np.zeros((0, 2)), "b": np.zeros(0, int)}).shape == (0, 5)


@pytest.mark.parametrize("values", [[3], [-1], [0.5]])
def test_choices_that_are_not_there(values):
    with pytest.raises(SpaceError, match=r"values of Discrete\(3\)"):
        FlatRows(Discrete(3))(np.array(values))


def test_wrong_uses_are_named():
    with pytest.raises(SpaceError, match="keys_to_remove"):
        FlatRows(Dict(a=Box(-1, 1, (2,)), b=Text(5)))
    with pytest.raises(ColumnError, match="nested structure"):
        FlatRows(Tuple([Discrete(2)]))({"a": np.zeros(1)})
    with pytest.raises(SpaceError, match=r"shape \(3,\) per row"):
        FlatRows(Box(-1, 1, (2,)))(np.zeros((1, 3)))
