"""Rows into [B, A, ...] and back, whatever they are."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.connectors._engine.stacked_rows import StackedRows, stacked_rows_of, stacked_space
from epibatch.core.errors import ColumnError


def test_there_and_back_in_any_type_and_nesting() -> None:
    rng = np.random.default_rng(0)
    cells = rng.permutation(12)[:7]
    stacked = StackedRows(cells, (4, 3))
    rows = {"v": rng.normal(size=(7, 2, 5)), "n": (rng.integers(0, 9, 7).astype(np.uint8), rng.random(7) > 0.5)}
    found = stacked.stack("obs", rows)
    assert found["v"].shape == (4, 3, 2, 5) and found["n"][0].dtype == np.uint8 and found["n"][1].dtype == np.bool_
    for i, cell in enumerate(cells):
        assert np.array_equal(found["v"][cell // 3, cell % 3], rows["v"][i])
    empty = np.ones(12, bool)
    empty[cells] = False
    assert not found["v"].reshape(12, 2, 5)[empty].any()
    back = stacked.unstack("obs", found)
    assert np.array_equal(back["v"], rows["v"]) and np.array_equal(back["n"][1], rows["n"][1])
    tensor = stacked.unstack("obs", torch.from_numpy(found["v"]))
    assert torch.equal(tensor, torch.from_numpy(rows["v"]))


def test_lists_have_none_where_there_is_no_row() -> None:
    stacked = StackedRows(np.array([3, 0]), (2, 2))
    assert stacked.stack("infos", [{"a": 1}, {"b": 2}]) == [[{"b": 2}, None], [None, {"a": 1}]]


def test_other_numbers_of_rows_are_named() -> None:
    stacked = StackedRows(np.array([3, 0]), (2, 2))
    for wrong in (np.zeros(3), [1, 2, 3]):
        with pytest.raises(ColumnError, match=r"column 'x'[\s\S]*2 rows[\s\S]*3 rows"):
            stacked.stack("x", wrong)
    with pytest.raises(ColumnError, match=r"shape \[2, 2, '...'\][\s\S]*shape \[2\]"):
        stacked.unstack("x", torch.zeros(2))
    assert stacked_rows_of("a") != stacked_rows_of("b")


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (
            gym.spaces.Box(np.float32([1, -3]), np.float32([2, -1])),
            gym.spaces.Box(*np.float32([2 * [[0, -3]], 2 * [[2, 0]]])),
        ),
        (gym.spaces.Discrete(3, start=2), gym.spaces.MultiDiscrete([5, 5])),
        (gym.spaces.Discrete(3, start=-5), gym.spaces.MultiDiscrete([6, 6], start=[-5, -5])),
        (gym.spaces.MultiDiscrete([2, 4], start=[0, 1]), gym.spaces.MultiDiscrete([[2, 5], [2, 5]])),
        (gym.spaces.MultiBinary([3, 1]), gym.spaces.MultiBinary([2, 3, 1])),
        (gym.spaces.Text(3), gym.spaces.Tuple([gym.spaces.Text(3)] * 2)),
    ],
)
def test_the_space_of_a_row_of_all_agents(space: gym.Space, expected: gym.Space) -> None:
    assert stacked_space(space, 2) == expected
    nested = gym.spaces.Dict(a=space, b=gym.spaces.Tuple([space]))
    assert stacked_space(nested, 2) == gym.spaces.Dict(a=expected, b=gym.spaces.Tuple([expected]))


@pytest.mark.parametrize(
    "space", [gym.spaces.Box(1, 2, (3,)), gym.spaces.Discrete(3, start=2), gym.spaces.MultiBinary(2)]
)
def test_rows_are_of_it(space: gym.Space) -> None:
    rows = np.stack([space.sample() for _ in range(3)])
    found = StackedRows(np.array([0, 3, 2]), (2, 2)).stack("obs", rows)
    wanted = stacked_space(space, 2)
    assert all(wanted.contains(row) for row in found) and found.dtype == wanted.dtype
