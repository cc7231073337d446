"""Steps: the short way of adding them gives what the long way gives, whatever the rows are."""

from __future__ import annotations

from typing import Any
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest
from fixture_cases import random_examples
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.core.errors import EpibatchError
from epibatch.episodes.infinite_lookback_buffer import InfiniteLookbackBuffer
from epibatch.episodes.single_agent_episode import SingleAgentEpisode

FAST = settings(deadline=None, derandomize=True, max_examples=60)


# ---------------------------------------------------------------- promotion
VALUES = st.one_of(
    st.integers(-1000, 1000),
    st.integers(-4000, 4000).map(lambda i: i / 4),
    st.booleans(),
    st.integers(-100, 100).map(np.int8),
    st.integers(-30000, 30000).map(np.int16),
    st.integers(-4000, 4000).map(lambda i: np.float32(i / 4)),
    st.integers(-400, 400).map(lambda i: np.float16(i / 4)),
)


@FAST
@given(
    values=st.lists(VALUES, min_size=1, max_size=8),
    writes=st.lists(st.tuples(st.integers(0, 7), VALUES), max_size=4),
)
def test_no_value_is_ever_cast_down(values: list[Any], writes: list[tuple[int, Any]]) -> None:
    episode = SingleAgentEpisode()
    episode.add_env_reset(0)
    for value in values:
        episode.add_env_step(0, 0, value, terminated=False, truncated=False)
    expected = [float(value) for value in values]
    written = [*values, *(value for index, value in writes if index < len(values))]
    for index, value in writes:
        if index < len(values):
            episode.set_rewards(new_data=value, at_indices=index)
            expected[index] = float(value)
    found = episode.get_rewards()
    np.testing.assert_array_equal(found.astype(np.float64), expected)
    whole_numbers = all(np.asarray(value).dtype.kind in "ib" for value in written)
    assert found.dtype.kind in ("ib" if whole_numbers else "f")


SCALARS: list[Any] = [
    1,
    -2,
    True,
    0.5,
    2**70,
    10**400,
    np.float32(0.1),
    np.float64(0.1),
    np.int64(7),
    np.uint8(3),
    "x",
    None,
]


ARRAYS = [
    np.array([1, 2], np.float32),
    np.array([1, 2], np.float32)[::-1],
    np.arange(6, dtype=np.float32).reshape(2, 3)[:, 1],
    np.array([1, 2], np.float64),
    np.array([1, 2], ">f4"),
    np.array([1, 2], np.float16),
    np.array([1, 2], np.longlong),
    np.array([1, 2], np.int64),
    np.array([True, False]),
    np.array([1, 2], np.complex64),
    np.array([1, 2], "M8[s]"),
    np.array([1, 2, 3], np.float32),
    np.zeros(0, np.float32),
    np.array(1.5, np.float32),
    np.arange(4, dtype=np.uint8).reshape(2, 2),
    np.array(["a", "b"]),
]


NESTED: list[Any] = [{"a": 1, "b": np.ones(2)}, {"b": np.ones(2), "a": 2}, (1.0, 2), [1.0, 2.0], b"ab"]


SPACES = [None, gym.spaces.Box(-9, 9, (2,), np.float32), gym.spaces.Discrete(9), gym.spaces.Box(0, 9, (2, 2), np.uint8)]


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    """Steps whose rows are mostly alike, column by column, and sometimes are not."""
    anything = st.sampled_from([*SCALARS, *ARRAYS, *NESTED])
    usual = {key: draw(anything) for key in ("obs", "action", "reward", "x", "y")}
    count = draw(st.sampled_from([3, 20, 70]))
    odd = {draw(st.integers(0, count - 1)) for _ in range(draw(st.integers(0, 4)))}
    steps = []
    for i in range(count):
        row = dict(usual)
        if i in odd:
            row[draw(st.sampled_from(list(row)))] = draw(anything)
        keys = draw(st.permutations(["x", "y"])) if i in odd else ["x", "y"]
        extras = {key: row[key] for key in keys[: draw(st.integers(1, 2)) if i in odd else 2]}
        steps.append((row["obs"], row["action"], row["reward"], extras))
    return steps


def fresh(row: Any) -> Any:
    """Another object of the same value and layout, as an environment would give one."""
    if isinstance(row, np.ndarray):
        other = np.lib.stride_tricks.as_strided(row) if row.size else row
        other = other.copy() if row.flags.c_contiguous else np.repeat(row, 2, -1)[..., ::2]
        other.flags.writeable = True
        return other
    return {key: fresh(value) for key, value in row.items()} if isinstance(row, dict) else row


def spoil(row: Any) -> None:
    """Overwrite an array, as an environment that reuses it would."""
    if isinstance(row, np.ndarray) and row.dtype.kind in "biufc":
        row[...] = 99


def grown(program: list[tuple[Any, ...]], space: Any) -> tuple[SingleAgentEpisode | None, list[str]]:
    """An episode of these steps, and what was refused."""
    episode, refused = SingleAgentEpisode(id_="e", observation_space=space), []
    try:
        episode.add_env_reset(fresh(program[0][0]))
    except EpibatchError as error:
        return None, [str(error)]
    for step in program:
        observation, action, reward, extras = (fresh(row) for row in step)
        try:
            episode.add_env_step(observation, action, reward, extra_model_outputs=extras)
        except (EpibatchError, OverflowError) as error:
            refused.append(str(error))
        for row in (observation, action, reward, *extras.values()):
            spoil(row)
    return episode, refused


@given(program=programs(), space=st.sampled_from(SPACES))
@settings(deadline=None, derandomize=True, max_examples=random_examples(80))
def test_any_steps_give_what_planning_each_row_gives(program: list[tuple[Any, ...]], space: Any) -> None:
    found, refused = grown(program, space)
    with (
        mock.patch.object(SingleAgentEpisode, "put_step", return_value=False),
        mock.patch.object(InfiniteLookbackBuffer, "lay", return_value=False),
    ):
        expected, refused_there = grown(program, space)
    assert refused == refused_there
    if found is None or expected is None:
        assert found is expected
        return
    assert found.equals(expected)
    assert found.observations.provisional and expected.observations.provisional
    found.validate()


@pytest.mark.parametrize("observation", [np.array([1, 2], np.float32), 3, np.zeros((2, 2), np.uint8)])
def test_ordinary_steps_go_the_short_way(observation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    space = gym.spaces.Discrete(9) if isinstance(observation, int) else gym.spaces.Box(0, 9, observation.shape)
    episode = SingleAgentEpisode(observation_space=space)
    episode.add_env_reset(observation)
    put_step, short = SingleAgentEpisode.put_step, []
    monkeypatch.setattr(SingleAgentEpisode, "put_step", lambda *step: short.append(put_step(*step)) or short[-1])
    for _ in range(100):
        extras = {"p": np.float32(0.5), "q": np.zeros(2, np.float32)}
        episode.add_env_step(observation, np.int64(1), 1.0, extra_model_outputs=extras)
    assert len(episode) == 100
    assert short.count(False) <= 2


@pytest.mark.parametrize("count", [63, 64, 65, 256, 257, 1100])
def test_columns_of_any_width_grow_without_a_trace(count: int) -> None:
    episode, row = SingleAgentEpisode(), np.zeros(3, np.float32)
    frame = np.zeros((8, 8), np.uint8)
    episode.add_env_reset(row)
    for i in range(count):
        row[:], frame[:] = i + 1, i % 251
        outputs = {"flag": i % 3 == 0, "wide": np.full(300, i, np.float64), "frame": frame}
        episode.add_env_step(row, np.int64(i), 0.5 * i, extra_model_outputs=outputs)
    steps = np.arange(count)
    np.testing.assert_array_equal(episode.get_observations(), np.repeat(np.arange(count + 1), 3).reshape(-1, 3))
    np.testing.assert_array_equal(episode.get_actions(), steps)
    np.testing.assert_array_equal(episode.get_rewards(), 0.5 * steps)
    np.testing.assert_array_equal(episode.get_extra_model_outputs("flag"), steps % 3 == 0)
    np.testing.assert_array_equal(episode.get_extra_model_outputs("wide"), np.repeat(steps, 300).reshape(-1, 300))
    frames = episode.get_extra_model_outputs("frame")
    np.testing.assert_array_equal(frames, np.broadcast_to((steps % 251)[:, None, None], (count, 8, 8)))
    assert frames.dtype == np.uint8


def test_a_scalar_observation_outside_its_kind_is_refused_on_the_short_way_too() -> None:
    episode = SingleAgentEpisode(observation_space=gym.spaces.Discrete(9))
    episode.add_env_reset(1)
    for _ in range(3):
        episode.add_env_step(2, 0, 0.0)
    with pytest.raises(EpibatchError, match="column 'obs' at t=4"):
        episode.add_env_step(0.5, 0, 0.0)
    assert len(episode) == 3
