"""Buffers as plain data, and sums of them with rows and numbers."""

from __future__ import annotations

import pickle

import gymnasium as gym
import numpy as np
import pytest

from epibatch.core.errors import CheckpointError, ColumnError
from epibatch.core.state_codec import decode_state, encode_state
from epibatch.episodes import InfiniteLookbackBuffer

BOX = gym.spaces.Box(-1, 1, (2,), np.float32)


def nested(count: int) -> list[dict[str, object]]:
    return [{"x": np.full(2, t, np.float32), "y": (t,)} for t in range(count)]


BUFFERS = {
    "empty": InfiniteLookbackBuffer(),
    "numbers": InfiniteLookbackBuffer([1, 2, 3], lookback=2),
    "with a space": InfiniteLookbackBuffer(np.ones((3, 2), np.float32), lookback=1, space=BOX),
    "nested": InfiniteLookbackBuffer(nested(4), lookback=1),
}


@pytest.mark.parametrize("name", BUFFERS)
def test_a_state_brings_back_rows_lookback_and_space(name):
    buffer = BUFFERS[name]
    for again in (
        InfiniteLookbackBuffer.from_state(buffer.get_state()),
        InfiniteLookbackBuffer.from_state(decode_state(*encode_state(buffer.get_state()))),
        pickle.loads(pickle.dumps(buffer)),
    ):
        assert again == buffer and again.space == buffer.space
        assert len(again) == len(buffer)


def test_a_state_of_a_buffer_whose_rows_are_gone_keeps_their_kind():
    buffer = InfiniteLookbackBuffer(nested(1))
    buffer.pop()
    again = InfiniteLookbackBuffer.from_state(decode_state(*encode_state(buffer.get_state())))
    assert (again.data["x"].shape, again.data["x"].dtype, again.data["y"][0].dtype) == ((0, 2), np.float32, np.int64)
    again.append({"x": np.zeros(2, np.int8), "y": (1,)})
    assert (len(again), again.data["x"].dtype) == (1, np.float32)


def test_a_state_is_a_copy():
    buffer = InfiniteLookbackBuffer([1.0, 2.0])
    state = buffer.get_state()
    buffer[0] = 9.0
    assert state["data"].tolist() == [1.0, 2.0]
    assert InfiniteLookbackBuffer.from_state(state).get().tolist() == [1.0, 2.0]


def test_a_raw_newest_row_stays_raw():
    buffer = InfiniteLookbackBuffer([np.zeros(2)])
    buffer.stage({"another": 1})
    again = InfiniteLookbackBuffer.from_state(buffer.get_state())
    assert again.provisional and again.get(-1) == {"another": 1}
    assert again.len_incl_lookback() == 2


@pytest.mark.parametrize("state", [{}, {"data": None, "lookback": 0}, None])
def test_what_is_no_state_is_named(state):
    with pytest.raises(CheckpointError, match="the state of a buffer"):
        InfiniteLookbackBuffer.from_state(state)


def test_rows_behind_a_buffer_make_a_new_one():
    buffer = InfiniteLookbackBuffer([1.0, 2.0], lookback=1)
    other = InfiniteLookbackBuffer([2.0, 3.0], lookback=1)
    for more in ([3.0], np.array([3.0]), other):
        longer = buffer + more
        assert longer.data.tolist() == [1.0, 2.0, 3.0] and longer.lookback == 1
    assert buffer.data.tolist() == [1.0, 2.0] and other.data.tolist() == [2.0, 3.0]
    with pytest.raises(ColumnError):
        buffer + [{"x": 1.0}]


def test_a_number_is_added_to_every_number():
    assert (InfiniteLookbackBuffer([1, 2], lookback=1) + 0.5).data.tolist() == [1.5, 2.5]
    assert (InfiniteLookbackBuffer([np.uint8(250)]) + 10).data.tolist() == [260]
    sums = (InfiniteLookbackBuffer(nested(2)) + 1).data
    assert sums["x"].tolist() == [[1, 1], [2, 2]] and sums["x"].dtype == np.float32
    assert sums["y"][0].tolist() == [1, 2]


def test_a_number_added_to_no_rows_says_nothing_of_their_kind():
    buffer = InfiniteLookbackBuffer() + 1.0
    buffer.append(np.zeros(3, np.float32))
    assert buffer.data.shape == (1, 3) and buffer.data.dtype == np.float32
