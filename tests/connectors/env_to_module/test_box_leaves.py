"""Box leaves side by side and back."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.connectors.env_to_module.mean_std_filter import BoxLeaves
from epibatch.core.errors import SpaceError
from epibatch.core.structs import flatten_like

NESTED = gym.spaces.Dict(
    z=gym.spaces.Tuple([gym.spaces.Box(-1, 1, (2, 2)), gym.spaces.Discrete(3)]),
    a=gym.spaces.Box(0, 255, (1,), np.uint8),
    m=gym.spaces.MultiBinary(2),
    s=gym.spaces.Box(-1, 1, (), np.float64),
)


def rows_of(space, count=4):
    """Observations of a space, stacked."""
    from gymnasium.vector.utils import batch_space

    batched = batch_space(space, count)
    batched.seed(0)
    return batched.sample()


def test_the_columns_of_a_nested_space():
    leaves = BoxLeaves(NESTED)
    assert leaves.shapes == {"observation['a']": [1], "observation['s']": [], "observation['z'][0]": [2, 2]}
    assert list(leaves.shapes) == sorted(leaves.shapes) and leaves.size == 6
    assert [leaves.name_of(column) for column in (0, 1, 2, 5)] == [
        "observation['a']",
        "observation['s']",
        "observation['z'][0]",
        "observation['z'][0]",
    ]


def test_entries_go_out_and_come_back():
    boxes, data = BoxLeaves(NESTED), rows_of(NESTED)
    leaves = flatten_like(boxes.form, data)
    rows = boxes.rows(leaves)
    assert rows.dtype == np.float64 and rows.shape == (4, 6)
    assert np.array_equal(rows[:, 2:], data["z"][0].reshape(4, 4).astype(np.float64))
    back = boxes.put_back(leaves, rows + 1)
    assert np.array_equal(back["z"][0], data["z"][0] + np.float32(1)) and back["z"][0].dtype == np.float32
    assert back["a"].dtype == np.float32 and back["a"].tolist() == (data["a"].astype(int) + 1).tolist()
    assert back["s"].dtype == np.float64 and back["s"].shape == (4,)
    assert back["m"] is data["m"] and back["z"][1] is data["z"][1]


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (4, 2, 1), (0,)])
def test_one_box_of_any_number_of_axes(shape):
    boxes = BoxLeaves(gym.spaces.Box(-1, 1, shape))
    data = rows_of(gym.spaces.Box(-1, 1, shape))
    assert boxes.shapes == {"observation": list(shape)}
    assert np.array_equal(boxes.put_back([data], boxes.rows([data])), data)


def test_no_box_at_all():
    boxes = BoxLeaves(gym.spaces.Discrete(3))
    data = np.array([1, 2])
    assert boxes.size == 0 and boxes.put_back([data], boxes.rows([data])) is data


def test_the_order_of_keys_does_not_change_the_columns():
    one, two = gym.spaces.Box(0, 1, (1,)), gym.spaces.Box(0, 1, (2,))
    forth, back = gym.spaces.Dict([("a", one), ("b", two)]), gym.spaces.Dict([("b", two), ("a", one)])
    assert list(BoxLeaves(forth).shapes) == list(BoxLeaves(back).shapes)


def test_a_leaf_of_another_shape_than_its_space_is_named():
    with pytest.raises(SpaceError, match=r"observation\n  expected: shape \(2,\)(.|\n)*shape \(3,\)"):
        BoxLeaves(gym.spaces.Box(-1, 1, (2,))).rows([np.zeros((5, 3))])
