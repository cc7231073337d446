"""Where the rows of a replay buffer lie, and how many there may be by their bytes."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest

from epibatch.core.errors import ReplayError, StorageError
from epibatch.episodes import SingleAgentEpisode
from epibatch.episodes.replay import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer

KINDS = pytest.mark.parametrize("kind", [EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer])


def episode(number, steps, dtype=np.float32):
    """Observations in a Dict, whose numbers tell them apart."""
    rows = 100 * number + np.arange(steps + 1)
    observations = [{"a": np.full((2, 3), row, dtype), "b": np.array([row], np.uint8)} for row in rows]
    return SingleAgentEpisode(id_=f"e{number}", observations=observations, actions=rows[:-1].tolist(),
                              rewards=[float(row) for row in rows[:-1]], terminated=True,
                              len_lookback_buffer=0)  # fmt: skip


def drawn(buffer):
    return [(e.id_, e.get_observations(), e.get_actions(), e.get_rewards()) for e in buffer.sample(40)]


def files(folder):
    return [path.name for path in folder.iterdir()]


@KINDS
def test_rows_in_files_are_those_in_memory(kind, tmp_path):
    """With rows of wider types, more lanes, and a save on the way."""
    in_files, in_memory = kind(60, folder=tmp_path, seed=2), kind(60, seed=2)
    for number in range(12):
        for buffer in (in_files, in_memory):
            buffer.add(episode(number, 7, np.float32 if number < 5 else np.float64), source=number // 4)
        np.testing.assert_equal(drawn(in_files), drawn(in_memory))
        assert files(tmp_path) == [], "they have no names, so that nothing is left of a process that is killed"
    in_memory.save_to_path(tmp_path / "saved")
    again = kind(60, folder=tmp_path)
    again.restore_from_path(tmp_path / "saved")
    np.testing.assert_equal(drawn(again), drawn(in_memory))
    with open("/proc/self/maps") as maps:
        assert str(tmp_path) in maps.read()


def test_a_full_disk_is_known_before_rows_are_written(tmp_path, monkeypatch):
    buffer, allocate = EpisodeReplayBuffer(60, folder=tmp_path, seed=0), os.posix_fallocate
    room = [0]

    def limited(descriptor, start, size):
        room[0] -= size
        if room[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        allocate(descriptor, start, size)

    monkeypatch.setattr(os, "posix_fallocate", limited)
    for size in (0, 60 * 24, 60 * 30):
        room[0] = size
        with pytest.raises(StorageError, match="No space left"):
            buffer.add(episode(0, 3))
        assert len(buffer) == 0 and files(tmp_path) == []
    room[0] = 10**6
    buffer.add(episode(1, 4))
    assert len(buffer) == 4 and {name for name, *_ in drawn(buffer)} == {"e1"}


def test_a_folder_that_is_not_there_is_named(tmp_path):
    buffer = EpisodeReplayBuffer(60, folder=tmp_path / "missing")
    with pytest.raises(StorageError, match="missing"):
        buffer.add(episode(0, 3))


@KINDS
@pytest.mark.parametrize("rows", [2, 5, 1000])
def test_bytes_say_how_many_rows_there_may_be(kind, rows):
    """24 and 1 of an observation, 8 each of action and reward, 32 of the lane: 73."""
    buffer = kind(capacity_bytes=73 * rows + 72, seed=0)
    for number in range(5):
        buffer.add(episode(number, 4))
    assert buffer.capacity == rows
    assert len(buffer) == min(rows, 25) - -(-min(rows, 25) // 5)
    again = kind(capacity_bytes=73 * rows + 72)
    again.set_state(buffer.get_state())
    assert again.capacity == rows
    np.testing.assert_equal(drawn(again), drawn(buffer))


def test_too_few_bytes_are_named():
    with pytest.raises(ReplayError, match="at least 2"):
        EpisodeReplayBuffer(capacity_bytes=1)
    with pytest.raises(ReplayError, match="a capacity of at least 2"):
        EpisodeReplayBuffer(capacity_bytes=75).add(episode(0, 3))
