"""The smallest space for the values of several, and rows brought to it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple

from epibatch.connectors.env_to_module.padded_spaces import common_space, padding
from epibatch.core.errors import SpaceError

ONE = MultiBinary(1)
CASES: list[tuple[list[Any], Any]] = [
    ([Box(-1, 1, (2,)), Box(2, 3, (3,))], Box(np.float32([-1, -1, 0]), np.float32([3, 3, 3]))),
    (
        [Box(1, 2, (2, 1)), Box(1, 2, (1, 3))],
        Box(np.float32([[1, 0, 0], [0] * 3]), np.float32([[2] * 3, [2, 0, 0]])),
    ),
    ([Box(0, 9, (1,), np.uint8), Box(-1, 1, (2,), np.float32)], Box(np.float32([-1, -1]), np.float32([9, 1]))),
    ([Discrete(3), Discrete(5)], Discrete(5)),
    ([Discrete(3, start=-1), Discrete(2, start=4)], Discrete(7, start=-1)),
    ([MultiBinary(2), MultiBinary(4)], MultiBinary(4)),
    (
        [Dict(a=Discrete(2), b=MultiBinary(1)), Dict(a=Discrete(3), b=MultiBinary(1))],
        Dict(a=Discrete(3), b=MultiBinary(1)),
    ),
    (
        [Tuple([Discrete(2), Box(0, 1, (1,))]), Tuple([Discrete(2), Box(0, 1, (2,))])],
        Tuple([Discrete(2), Box(0, 1, (2,))]),
    ),
    ([MultiDiscrete([2, 3]), MultiDiscrete([2, 3])], MultiDiscrete([2, 3])),
    ([Text(3), Text(3)], Text(3)),
]


@pytest.mark.parametrize(("spaces", "expected"), CASES)
def test_common_spaces(spaces: list[Any], expected: Any) -> None:
    assert common_space(spaces, "here") == expected
    assert common_space(spaces[::-1], "here") == expected


def listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: listed(own) for key, own in value.items()}
    return tuple(map(listed, value)) if isinstance(value, tuple) else np.asarray(value).tolist()


@pytest.mark.parametrize("spaces", [spaces for spaces, _ in CASES if not isinstance(spaces[0], Text)])
def test_padded_values_are_in_the_common_space_and_zero_behind_their_end(spaces: list[Any]) -> None:
    common = common_space(spaces, "here")
    for own in spaces:
        own.seed(0)
        for _ in range(20):
            value = own.sample()
            rows = padding(own, common, "here")(with_axis(value))
            first = without_axis(rows)
            assert first in common, (first, common)
            flat, back = gym.spaces.utils.flatten(own, value), cut(first, own)
            assert np.array_equal(gym.spaces.utils.flatten(own, back), flat)
            assert total(first) == pytest.approx(total(value))


def with_axis(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: with_axis(own) for key, own in value.items()}
    return tuple(map(with_axis, value)) if isinstance(value, tuple) else np.asarray(value)[None]


def without_axis(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_axis(own) for key, own in value.items()}
    return tuple(map(without_axis, value)) if isinstance(value, tuple) else value[0]


def cut(value: Any, own: Any) -> Any:
    if isinstance(own, Dict):
        return {key: cut(value[key], own[key]) for key in own.spaces}
    if isinstance(own, Tuple):
        return tuple(cut(part, one) for part, one in zip(value, own))
    return value[tuple(map(slice, own.shape))] if own.shape else value


def total(value: Any) -> float:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else None
    return float(np.sum(value, dtype=np.float64)) if parts is None else sum(map(total, parts))


@pytest.mark.parametrize(
    "spaces",
    [
        [Box(0, 1, (2,)), Box(0, 1, (2, 1))],
        [Box(0, 1, (2,)), Discrete(2)],
        [Dict(a=Discrete(2)), Dict(b=Discrete(2))],
        [Tuple([Discrete(2)]), Tuple([Discrete(2), Discrete(2)])],
        [MultiDiscrete([2]), MultiDiscrete([3])],
        [Dict(a=Text(2)), Dict(a=Text(3))],
    ],
)
def test_spaces_without_a_common_one_are_named(spaces: list[Any]) -> None:
    with pytest.raises(SpaceError, match=r"here[\s\S]*agent_ids="):
        common_space(spaces, "here")


@pytest.mark.parametrize(
    ("own", "common", "rows"),
    [
        (Box(0, 1, (2,)), Box(0, 1, (3,)), np.zeros((1, 3))),
        (Box(0, 1, (2,)), Box(0, 1, (3,)), {"a": np.zeros(1)}),
        (Dict(a=Discrete(2)), Dict(a=Discrete(3)), {"b": np.zeros(1)}),
        (Tuple([Discrete(2)]), Tuple([Discrete(3)]), np.zeros(1)),
    ],
)
def test_rows_of_another_form_are_named(own: Any, common: Any, rows: Any) -> None:
    with pytest.raises(SpaceError, match="rows of agent 'x'"):
        padding(own, common, "rows of agent 'x'")(rows)


def test_wider_types_stay() -> None:
    rows = padding(Box(0, 1, (1,)), Box(0, 1, (2,)), "here")(np.array([[0.1]]))
    assert rows.dtype == np.float64 and rows.tolist() == [[0.1, 0.0]]
