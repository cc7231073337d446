"""What a vector environment brings, against the number of environments and the space: refused steps are not added."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epibatch.core.errors import ColumnError, EpibatchError, SpaceError
from epibatch.episodes import VectorRecorder

BOX = gym.spaces.Box(-9, 9, (3,), np.float32)
NESTED = gym.spaces.Dict(x=BOX, n=gym.spaces.Tuple([gym.spaces.Discrete(4)]))
GOOD = {"n": (np.zeros(2, int),), "x": np.zeros((2, 3))}
STEP = {
    "actions": np.zeros(2, int),
    "rewards": np.zeros(2),
    "terminateds": np.zeros(2, bool),
    "truncateds": np.zeros(2, bool),
    "observations": np.ones((2, 3), np.float32),
}


def running(space: Any = BOX, observations: Any = STEP["observations"], **options: Any) -> VectorRecorder:
    recorder = VectorRecorder(2, space, **options)
    recorder.reset(observations)
    return recorder


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
    assert len(running(space, observations).episodes) == 2


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
        (NESTED, {**GOOD, "n": (np.zeros(2),)}, SpaceError, r"expected: int64, as Discrete\(4\) says\n.*float64"),
        (None, np.float32(1), ColumnError, r"found:    shape \(\)"),
    ],
)
def test_wrong_observations(space: Any, observations: Any, error: type[EpibatchError], message: str) -> None:
    with pytest.raises(error, match=message):
        running(space, observations)


@pytest.mark.parametrize("column", ["observations", "rewards", "terminateds", "truncateds"])
def test_tensors_of_a_vector_environment_are_named(column: str) -> None:
    torch = pytest.importorskip("torch")
    recorder, name = running(), {"observations": "obs"}.get(column, column)
    with pytest.raises(ColumnError, match=rf"column '{name}'[\s\S]*NumPy arrays[\s\S]*torch.Tensor of shape \(2"):
        recorder.step(**{**STEP, column: torch.as_tensor(STEP[column])})
    recorder.step(**STEP)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("actions", np.zeros(3), "2 rows"),
        ("observations", np.zeros((2, 1)), "per environment"),
        ("v", np.zeros((1, 2)), "2 rows"),
        ("rewards", np.zeros(1), r"numbers of shape \(2,\)"),
        ("rewards", np.zeros((2, 1)), r"\(2,\)[\s\S]*\(2, 1\)"),
        ("rewards", [None, 1.0], "found:    object"),
        ("rewards", np.array([np.inf, np.nan], np.float32), r"inf[\s\S]*environments \[0, 1\]"),
        ("terminateds", np.array([False]), r"bools of shape \(2,\)"),
        ("truncateds", False, r"bools of shape \(2,\)"),
    ],
)
def test_a_wrong_step_is_not_added(column: str, value: Any, message: str) -> None:
    recorder = running()
    wrong = {**STEP, "extras": {"v": value}} if column == "v" else {**STEP, column: value}
    with pytest.raises(EpibatchError, match=rf"'{column.replace('observations', 'obs')}'[\s\S]*{message}"):
        recorder.step(**wrong)
    assert recorder.episodes.lengths().tolist() == [0, 0]
    recorder.step(**STEP)
    assert recorder.episodes[0].get_observations().tolist() == [[1] * 3, [1] * 3]


def test_observations_get_the_types_of_their_space() -> None:
    narrow = {"n": (np.zeros(2, np.uint8),), "x": np.zeros((2, 3), np.float64)}
    recorder = running(NESTED, narrow, autoreset="same_step")
    ends = {**STEP, "observations": GOOD, "terminateds": np.array([True, False])}
    with pytest.raises(SpaceError, match=r"shape \(3,\)"):
        recorder.step(**ends, final_observations={"x": np.zeros((2, 4)), "n": (np.full(2, 3),)})
    (chunk,) = recorder.step(**ends, final_observations={"x": np.zeros((2, 3)), "n": (np.full(2, 3),)})
    for row in (chunk.view().get_observations(0), chunk.view().get_observations(-1)):
        assert row["x"].dtype == np.float32 and row["n"][0].dtype == np.int64


def test_an_end_in_the_step_of_a_reset_is_refused() -> None:
    recorder = running()
    ends = {**STEP, "terminateds": np.array([True, False])}
    recorder.step(**ends)
    with pytest.raises(EpibatchError, match=r"environments \[0\] ended in two steps"):
        recorder.step(**ends)
    recorder.step(**STEP)  # the refused step changed nothing
    assert [len(chunk) for chunk in recorder.flush(0)] == [1, 2]


@given(
    rewards=st.lists(st.sampled_from([0.0, 1.0, -2.5, np.nan, np.inf, True, 1e300]), min_size=1, max_size=3),
    dtype=st.sampled_from([np.float64, np.float32, np.bool_, np.int8, object]),
    flags=st.lists(st.tuples(st.integers(1, 3), st.sampled_from([bool, np.int8])), min_size=2, max_size=2),
)
@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")
def test_steps_with_a_finite_reward_and_a_bool_for_each_environment_are_added(
    rewards: Any, dtype: Any, flags: Any
) -> None:
    given, ends = np.array(rewards).astype(dtype), [np.zeros(count, kind) for count, kind in flags]
    right = len(given) == 2 and dtype is not object and np.isfinite(given.astype(float)).all()
    step = {**STEP, "rewards": given, "terminateds": ends[0], "truncateds": ends[1]}
    recorder = running()
    try:
        recorder.step(**step)
    except ColumnError:
        assert not right or flags != [(2, bool)] * 2
    else:
        assert right and flags == [(2, bool)] * 2
