"""Shapes of vector steps against the space and the number of environments."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from epibatch.core.errors import ColumnError, EpibatchError, SpaceError
from epibatch.episodes import VectorRecorder
from epibatch.episodes.vector_checks import VectorChecks

BOX = gym.spaces.Box(-9, 9, (3,), np.float32)
NESTED = gym.spaces.Dict(x=BOX, n=gym.spaces.Tuple([gym.spaces.Discrete(4)]))
GOOD = {"n": (np.zeros(2, int),), "x": np.zeros((2, 3))}


@pytest.mark.parametrize(
    ("space", "observations"),
    [
        (BOX, np.zeros((2, 3))),
        (BOX, [[0, 0, 0], [1, 1, 1]]),
        (gym.spaces.Discrete(3), np.zeros(2, int)),
        (NESTED, GOOD),
        (None, np.zeros((2, 7))),
        (None, GOOD),
    ],
)
def test_right_observations(space: Any, observations: Any) -> None:
    VectorChecks(2, space).check_observations(observations)


@pytest.mark.parametrize(
    ("space", "observations", "error", "message"),
    [
        (BOX, np.zeros((2, 1)), SpaceError, r"shape \(3,\) per environment[\s\S]*found:    \(1,\) per environment"),
        (BOX, np.zeros(2), SpaceError, r"found:    \(\) per environment"),
        (BOX, np.zeros((3, 3)), ColumnError, r"2 rows, one per environment[\s\S]*found:    shape \(3, 3\)"),
        (BOX, GOOD, SpaceError, r"expected: leaf"),
        (NESTED, {**GOOD, "x": np.zeros((2, 4))}, SpaceError, r"found:    \(4,\) per environment"),
        (NESTED, {"x": np.zeros((2, 3))}, SpaceError, r"against the observation space[\s\S]*expected: \{"),
        (NESTED, {**GOOD, "n": (np.zeros(5),)}, ColumnError, r"found:    shape \(5,\)"),
        (None, np.float32(1), ColumnError, r"found:    shape \(\)"),
    ],
)
def test_wrong_observations(space: Any, observations: Any, error: type[EpibatchError], message: str) -> None:
    with pytest.raises(error, match=message):
        VectorChecks(2, space).check_observations(observations)


@pytest.mark.parametrize(
    ("column", "value"),
    [("actions", np.zeros(3)), ("rewards", np.zeros(1)), ("observations", np.zeros((2, 1))), ("v", np.zeros((1, 2)))],
)
def test_a_wrong_step_is_not_added(column: str, value: Any) -> None:
    recorder = VectorRecorder(2, BOX)
    recorder.reset(np.zeros((2, 3), np.float32))
    right: dict[str, Any] = {
        "actions": np.zeros(2),
        "rewards": np.zeros(2),
        "observations": np.ones((2, 3), np.float32),
    }
    none = np.zeros(2, bool)
    wrong = {**right, "extras": {"v": value}} if column == "v" else {**right, column: value}
    with pytest.raises(EpibatchError, match=f"'{column.replace('observations', 'obs')}'"):
        recorder.step(terminateds=none, truncateds=none, **wrong)
    assert recorder.episodes.lengths().tolist() == [0, 0]
    recorder.step(terminateds=none, truncateds=none, **right)
    assert recorder.episodes[0].get_observations().tolist() == [[0] * 3, [1] * 3]


def test_a_reset_is_checked() -> None:
    with pytest.raises(SpaceError, match="per environment"):
        VectorRecorder(2, BOX).reset(np.zeros((2, 4)))
