"""Replay buffers in folders: rows are written once, and a save is whole or is not there, whatever happens."""

from __future__ import annotations

import copy
import errno
import os
import pickle
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from fixture_cases import slow, slow_but

from epibatch.core import load_state, save_state
from epibatch.core.errors import CheckpointError, StorageError
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode, VectorEpisodes
from epibatch.episodes.replay import (
    EpisodeReplayBuffer,
    MixedReplay,
    MultiAgentEpisodeReplayBuffer,
    PrioritizedEpisodeReplayBuffer,
)

KINDS = pytest.mark.parametrize("kind", [EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer])


class Streams:
    """Environments whose episodes end at random; each row has other numbers than any before."""

    def __init__(self, seed, envs=3, width=()):
        self.rng, self.envs, self.width, self.count = np.random.default_rng(seed), envs, width, 0

    def part(self, steps, ends=0.1):
        shape = (steps + 1, self.envs)
        numbers = self.count + np.arange(shape[0] * shape[1], dtype=np.float32).reshape(shape)
        self.count += shape[0] * shape[1]
        obs = np.broadcast_to(numbers.reshape(*shape, *(1 for _ in self.width)), (*shape, *self.width)).copy()
        ended = self.rng.random((steps, self.envs)) < ends
        terminated = ended & (self.rng.random((steps, self.envs)) < 0.5)
        values = numbers[:-1]
        return VectorEpisodes.from_arrays(obs, values.astype(np.int64), values / 2, terminated, ended & ~terminated)


def running(number, first, steps, done):
    """A part of an episode of a list, from a step on."""
    obs = [1e6 * number + first + t for t in range(steps + 1)]
    return SingleAgentEpisode(id_=f"é{number}", observations=obs, actions=[int(o) for o in obs[:-1]],
                              rewards=obs[:-1], t_started=first, truncated=done, len_lookback_buffer=0)  # fmt: skip


def drawn(buffer, count=25, **options):
    """Parts that are drawn, as plain data; draws twice from the same state are the same."""
    part = buffer.sample(count, **options)
    if isinstance(buffer, PrioritizedEpisodeReplayBuffer):
        buffer.update_priorities(1.0 + part.drawn % 7, part)
    return [
        (e.id_, e.t_started, e.get_observations().tolist(), e.get_actions().tolist(), e.get_rewards().tolist(),
         e.is_terminated, e.is_truncated)
        for e in part
    ]  # fmt: skip


def assert_same(left, right):
    assert len(left) == len(right)
    for length in (1, 4):
        assert drawn(left, batch_length_T=length) == drawn(right, batch_length_T=length)


def restored(kind, capacity, folder):
    buffer = kind(capacity, seed=77)
    buffer.restore_from_path(folder)
    return buffer


@KINDS
@pytest.mark.parametrize("seed", slow_but([0, 2], range(int(os.environ.get("EPIBATCH_CASES", "6")))))
def test_a_saved_buffer_goes_on_bit_for_bit(kind, seed, tmp_path):
    """Saves of one folder or several, some of buffers that were restored; lanes that are added; more rows than fit."""
    rng = np.random.default_rng(seed)
    capacity = int(rng.integers(60, 300))
    buffer, streams, others = kind(capacity, seed=seed), Streams(seed), Streams(seed + 1, envs=2)
    for turn in range(8):
        buffer.add(streams.part(int(rng.integers(1, 40))))
        if turn > 3:
            buffer.add(others.part(int(rng.integers(1, 9))), source="others")
        if rng.random() < 0.5:
            first = int(rng.integers(0, 3))
            buffer.add([running(turn, first, int(rng.integers(1, 7)), bool(rng.random() < 0.5))])
        if rng.random() < 0.6:
            folder = tmp_path / f"{rng.integers(0, 3)}"
            assert buffer.save_to_path(folder) == str(folder)
            again = restored(kind, capacity, folder)
            assert_same(buffer, again)
            copied = kind(capacity, seed=3)
            copied.set_state(buffer.get_state())
            assert_same(again, copied)
            if rng.random() < 0.5:
                buffer = again


def test_a_state_in_memory_stays_what_it_was():
    buffer, streams = EpisodeReplayBuffer(50, seed=1), Streams(0)
    buffer.add(streams.part(30))
    state, other, again = buffer.get_state(), EpisodeReplayBuffer(50), EpisodeReplayBuffer(50)
    other.set_state(state)
    buffer.add(streams.part(30))
    buffer.add(streams.part(3), source="more")
    again.set_state(state)
    assert_same(other, again)


@KINDS
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_copies_of_a_buffer_and_of_its_state_go_on_alike(kind, copied):
    buffer, streams = kind(50, seed=1), Streams(0)
    buffer.add(streams.part(30))
    state = buffer.get_state()
    other, again = copied(buffer), kind(50)
    again.set_state(copied(state))
    part = streams.part(9)
    for each in (buffer, other, again):
        each.add(part)
    assert len(buffer) == len(other) == len(again)
    assert drawn(buffer) == drawn(other) == drawn(again)


def written(before, after):
    """Bytes of files that were not there before."""
    return sum(size for inode, size in after.items() if inode not in before)


def mixture(seed=0):
    buffers = {
        "demo": PrioritizedEpisodeReplayBuffer(300, seed=seed),
        "online": EpisodeReplayBuffer(200, seed=seed + 1),
    }
    return MixedReplay({"demo": 0.3, "online": 0.7}, buffers)


def rows_of(mixed):
    part = mixed.sample(25, beta=0.4)
    mixed.update_priorities(1.0 + np.arange(25) % 7)
    return part.per_chunk["weights"].tolist(), [(e.id_, e.t_started, e.get_rewards().tolist()) for e in part]


def test_a_mixture_goes_on_bit_for_bit(tmp_path):
    left, right, streams = mixture(), mixture(seed=50), Streams(0)
    for _ in range(3):
        for buffer in left.buffers.values():
            buffer.add(streams.part(30))
        rows_of(left)
    right.restore_from_path(left.save_to_path(tmp_path / "mixed"))
    assert right.num_sampled == 75
    assert [rows_of(left) for _ in range(4)] == [rows_of(right) for _ in range(4)]


@pytest.mark.parametrize("how", ["names", "part", "count"])
def test_a_state_of_a_mixture_that_is_refused_leaves_all_buffers(how):
    full, mixed, streams = mixture(), mixture(seed=50), Streams(0)
    for each in (*full.buffers.values(), *mixed.buffers.values()):
        each.add(streams.part(30))
    state, before = full.get_state(), copy.deepcopy(mixed)
    if how == "names":
        state["buffers"]["other"] = state["buffers"].pop("online")
    elif how == "part":
        state["buffers"]["online"]["counts"] = [-1, 0]
    else:
        state["num_sampled"] = "many"
    with pytest.raises(CheckpointError, match="Replay"):
        mixed.set_state(state)
    assert rows_of(mixed) == rows_of(before)


def test_a_buffer_of_several_agents_goes_on_bit_for_bit(tmp_path):
    left, right = (MultiAgentEpisodeReplayBuffer(100, seed=seed) for seed in (0, 5))
    left.add(MultiAgentEpisode(
        observations=[{"a": t, "b": -t} for t in range(9)], actions=[{"a": t, "b": t} for t in range(8)],
        rewards=[{"a": 1.0 * t, "b": 2.0 * t} for t in range(8)], len_lookback_buffer=0,
        agent_to_module_mapping_fn=lambda agent, episode: agent,
    ))  # fmt: skip
    right.restore_from_path(left.save_to_path(tmp_path / "agents"))
    drawn = [[(e.agent_id, e.t_started) for e in buffer.sample(20).by_module["b"]] for buffer in (left, right)]
    assert drawn[0] == drawn[1] and len(right) == 8


def files_of(folder):
    return {(s.st_ino, s.st_mtime_ns): s.st_size for s in (path.stat() for path in Path(folder).iterdir())}


@pytest.mark.parametrize(("kind", "width"), [(EpisodeReplayBuffer, (4,)), slow(PrioritizedEpisodeReplayBuffer, (256,))])
def test_a_save_writes_what_is_new(kind, width, tmp_path):
    buffer, streams = kind(40_000, seed=0), Streams(0, envs=4, width=width)
    for _ in range(11):
        buffer.add(streams.part(1000, ends=0.005))
    buffer.save_to_path(tmp_path / "0")
    before = files_of(tmp_path / "0")
    assert len(before) < 30
    for save in range(1, 4):
        buffer.add(streams.part(100, ends=0.005))  # 1 %
        folder = tmp_path / f"{save}"
        buffer.save_to_path(folder)
        after = files_of(folder)
        assert sum(after.values()) < 1.12 * sum(before.values()), "what was overwritten is dropped"
        assert written(before, after) <= 0.02 * sum(after.values())
        shutil.rmtree(tmp_path / f"{save - 1}")
        before = after
        assert_same(buffer, restored(kind, 40_000, folder))
    for _ in range(11):
        buffer.add(streams.part(1000, ends=0.005))
    buffer.save_to_path(folder)
    assert written(before, files_of(folder)) == sum(files_of(folder).values()), "nothing of it is left"


@pytest.mark.slow
def test_a_lane_without_new_steps_does_not_keep_what_others_overwrote(tmp_path):
    buffer, streams = EpisodeReplayBuffer(400, seed=0), Streams(0, envs=1)
    buffer.add(running(0, 0, 20, done=False), source="quiet")
    sizes = []
    for save in range(80):
        buffer.add(streams.part(10), source="busy")
        buffer.save_to_path(tmp_path / "buffer")
        sizes.append(sum(files_of(tmp_path / "buffer").values()))
        if save % 13 == 0:
            assert_same(buffer, restored(EpisodeReplayBuffer, 400, tmp_path / "buffer"))
    assert max(sizes[40:]) < 1.3 * sizes[39], "the lane of the busy source is full since save 20"
    buffer.add(running(0, 20, 5, done=True), source="quiet")
    buffer.save_to_path(tmp_path / "buffer")
    assert_same(buffer, restored(EpisodeReplayBuffer, 400, tmp_path / "buffer"))


@pytest.mark.parametrize("how", ["removed", "another disk", "shorter"])
def test_what_cannot_be_shared_is_written_again(how, tmp_path, monkeypatch):
    buffer, streams = EpisodeReplayBuffer(400, seed=0), Streams(0)
    buffer.add(streams.part(100))
    buffer.save_to_path(tmp_path / "0")
    if how == "removed":
        shutil.rmtree(tmp_path / "0")
    elif how == "shorter":
        for path in (tmp_path / "0").glob("sealed-*"):
            path.write_bytes(path.read_bytes()[:-1])
    else:
        monkeypatch.setattr(os, "link", lambda *args, **options: (_ for _ in ()).throw(OSError(errno.EXDEV, "no")))
    buffer.add(streams.part(50))
    buffer.save_to_path(tmp_path / "1")
    assert_same(buffer, restored(EpisodeReplayBuffer, 400, tmp_path / "1"))


def test_a_full_disk_leaves_the_save_before(tmp_path, monkeypatch):
    buffer, streams, fsync = EpisodeReplayBuffer(400, seed=0), Streams(0), os.fsync
    buffer.add(streams.part(60))
    buffer.save_to_path(tmp_path / "buffer")
    expected = drawn(restored(EpisodeReplayBuffer, 400, tmp_path / "buffer"))
    failures = 0
    for call in range(20):
        left = [call]

        def full(descriptor, left=left):
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            fsync(descriptor)

        buffer.add(streams.part(3))
        monkeypatch.setattr(os, "fsync", full)
        try:
            buffer.save_to_path(tmp_path / "buffer")
        except StorageError:
            failures += 1
        monkeypatch.setattr(os, "fsync", fsync)
        if left[0] >= 0:
            break
        assert {path.name for path in tmp_path.iterdir()} <= {"buffer", ".buffer.previous"}
        found = restored(EpisodeReplayBuffer, 400, tmp_path / "buffer")
        assert drawn(found) == expected or failures == call + 1
    assert failures >= 4
    assert_same(buffer, restored(EpisodeReplayBuffer, 400, tmp_path / "buffer"))


def saving(folder, kind, seed):
    """Add and save until the end of the process."""
    buffer, streams = kind(3000, seed=seed), Streams(seed, width=(8,))
    while True:
        buffer.add(streams.part(40))
        buffer.save_to_path(folder)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="forks and POSIX signals")
@pytest.mark.parametrize("kind", [EpisodeReplayBuffer])
def test_killed_while_saving(kind, tmp_path):
    draw, sizes = random.Random(0), []
    for kill in range(int(os.environ.get("EPIBATCH_KILLS", "6"))):
        pid = os.fork()
        if pid == 0:
            try:
                saving(tmp_path / "buffer", kind, kill)
            finally:
                os._exit(1)
        while not (tmp_path / "buffer" / "COMPLETE").exists():
            time.sleep(0.001)
        time.sleep(draw.random() * 0.3)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        buffer = restored(kind, 3000, tmp_path / "buffer")
        sizes.append(len(buffer))
        assert len(drawn(buffer)) == 25
    assert len(set(sizes)) > 1


def test_a_buffer_of_another_capacity_is_named(tmp_path):
    buffer = EpisodeReplayBuffer(300, seed=0)
    buffer.add(Streams(0).part(40))
    buffer.save_to_path(tmp_path / "buffer")
    with pytest.raises(CheckpointError, match="at most 100 rows"):
        EpisodeReplayBuffer(100).restore_from_path(tmp_path / "buffer")


def test_a_state_of_something_larger_holds_the_segments(tmp_path):
    buffer, other = EpisodeReplayBuffer(300, seed=0), EpisodeReplayBuffer(300)
    buffer.add(Streams(0).part(40))
    whole = load_state(buffer.save_to_path(tmp_path / "buffer"))
    save_state(tmp_path / "whole", {"source": {"buffer": whole}, "n": 3})
    shutil.rmtree(tmp_path / "buffer")
    other.set_state(load_state(tmp_path / "whole")["source"]["buffer"])
    assert_same(buffer, other)
