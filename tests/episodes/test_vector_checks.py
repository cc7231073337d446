"""Shapes of vector steps against the space and the number of environments."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epibatch.core.errors import ColumnError, EpibatchError, SpaceError
from epibatch.episodes import VectorRecorder
from epibatch.episodes._storage.vector_checks import VectorChecks

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
    VectorChecks(2, space).observations(observations)


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
        VectorChecks(2, space).observations(observations)


@pytest.mark.parametrize("column", ["observations", "rewards", "terminateds", "truncateds"])
def test_tensors_of_a_vector_environment_are_named(column: str) -> None:
    torch = pytest.importorskip("torch")
    right = {
        "actions": np.zeros(2, int),
        "rewards": np.zeros(2),
        "terminateds": np.zeros(2, bool),
        "truncateds": np.zeros(2, bool),
        "observations": np.zeros((2, 3), np.float32),
    }
    recorder = VectorRecorder(2, BOX)
    recorder.reset(np.zeros((2, 3), np.float32))
    name = {"observations": "obs"}.get(column, column)
    with pytest.raises(ColumnError, match=rf"column '{name}'[\s\S]*NumPy arrays[\s\S]*torch.Tensor of shape \(2"):
        recorder.step(**{**right, column: torch.as_tensor(right[column])})
    with pytest.raises(ColumnError, match=r"torch.Tensor of shape \(2, 3\)"):
        recorder.reset(torch.zeros(2, 3))
    recorder.step(**right)


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


def test_observations_get_the_types_of_their_space() -> None:
    checks = VectorChecks(2, NESTED)
    found = checks.observations({"n": (np.zeros(2, np.uint8),), "x": np.zeros((2, 3), np.float64)})
    assert found["x"].dtype == np.float32 and found["n"][0].dtype == np.int64
    rows = np.zeros((2, 3), np.float32)
    assert VectorChecks(2, BOX).observations(rows) is rows
    last = checks.terminal_observation({"x": np.zeros(3, np.float64), "n": (3,)})
    assert last["x"].dtype == np.float32 and last["n"][0] == 3
    with pytest.raises(SpaceError, match=r"expected: int64, as Discrete\(4\) says\n  found:    float64"):
        checks.observations({"n": (np.zeros(2),), "x": rows})
    with pytest.raises(SpaceError, match=r"shape \(3,\)"):
        checks.terminal_observation({"x": np.zeros(4), "n": (3,)})


@pytest.mark.parametrize("rewards", [np.zeros(2), [1, 2.5], np.array([1, 2], np.int8), np.array([1e300, -1e300])])
def test_right_rewards(rewards: Any) -> None:
    VectorChecks(2).check_rewards(rewards)


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        (np.zeros((2, 1)), r"\(2,\)[\s\S]*\(2, 1\)"),
        ([None, 1.0], "found:    object"),
        (np.array([0.0, np.nan]), r"nan[\s\S]*environments \[1\]"),
        (np.array([np.inf, np.nan], np.float32), r"inf[\s\S]*environments \[0, 1\]"),
        (np.array([1e300, -np.inf]), r"-inf[\s\S]*environments \[1\]"),
    ],
)
def test_wrong_rewards(rewards: Any, message: str) -> None:
    with pytest.raises(ColumnError, match=message):
        VectorChecks(2).check_rewards(rewards)


def test_an_end_told_with_a_reset_is_refused() -> None:
    recorder = VectorRecorder(2)
    recorder.reset(np.zeros((2, 3)))
    ends = np.array([True, False]), np.zeros(2, bool)
    recorder.step(np.zeros(2), np.zeros(2), *ends, np.zeros((2, 3)))
    with pytest.raises(EpibatchError, match=r"environments \[0\] ended in two steps"):
        recorder.step(np.zeros(2), np.zeros(2), *ends, np.zeros((2, 3)))
    recorder.step(
        np.zeros(2), np.zeros(2), *[np.zeros(2, bool)] * 2, np.zeros((2, 3))
    )  # the refused step changed nothing
    assert [len(chunk) for chunk in recorder.harvest(0)] == [1, 2]


@given(st.data())
def test_what_is_called_plain_passes_every_check(data: st.DataObject) -> None:
    """The quick question has no false yes; the slow checks decide about the rest."""
    numbers = st.sampled_from([0.0, 1.0, -2.5, np.nan, np.inf, -np.inf, True])
    rewards: Any = np.array(data.draw(st.lists(numbers, min_size=1, max_size=3)), data.draw(_TYPES))
    flags = [np.zeros(data.draw(st.integers(1, 3)), data.draw(st.sampled_from([bool, np.int8]))) for _ in range(2)]
    checks = VectorChecks(2)

    def right() -> bool:
        try:
            checks.check_rewards(rewards)
            checks.check_flags("terminateds", flags[0])
            checks.check_flags("truncateds", flags[1])
        except ColumnError:
            return False
        return True

    assert checks.are_plain(rewards, *flags) == right()
    assert not checks.are_plain(rewards.tolist(), *flags)


_TYPES = st.sampled_from([np.float64, np.float32, np.bool_, object])
