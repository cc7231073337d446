"""Hostile files and states of replay buffers: each is a named error, and the buffer that opens it is as before."""

from __future__ import annotations

import io
import json
import os
import random
import zipfile
from hashlib import sha256

import numpy as np
import pytest

from epibatch.core.errors import CheckpointError
from epibatch.episodes import VectorEpisodes
from epibatch.episodes.replay import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer


class Streams:
    """Environments whose episodes end at random; each row has other numbers than any before."""

    def __init__(self, seed, envs=3):
        self.rng, self.envs, self.count = np.random.default_rng(seed), envs, 0

    def part(self, steps, ends=0.1):
        shape = (steps + 1, self.envs)
        numbers = self.count + np.arange(shape[0] * shape[1], dtype=np.float32).reshape(shape)
        self.count += shape[0] * shape[1]
        ended = self.rng.random((steps, self.envs)) < ends
        terminated = ended & (self.rng.random((steps, self.envs)) < 0.5)
        values = numbers[:-1]
        return VectorEpisodes.from_arrays(numbers, values.astype(np.int64), values / 2, terminated, ended & ~terminated)


def drawn(buffer):
    """Single steps and sequences that are drawn, as plain data."""
    parts = [*buffer.sample(20), *buffer.sample(20, batch_length_T=4)]
    return [(e.id_, e.t_started, e.get_observations().tolist(), e.is_terminated, e.is_truncated) for e in parts]


def assert_same(left, right):
    assert len(left) == len(right) and drawn(left) == drawn(right)


@pytest.fixture
def saved(tmp_path):
    """A folder with a buffer of several segments, and another buffer that tries to take it over."""
    buffer, streams = EpisodeReplayBuffer(300, seed=0), Streams(0)
    for _ in range(4):
        buffer.add(streams.part(40))
        buffer.save_to_path(tmp_path / "buffer")
    other = EpisodeReplayBuffer(300, seed=1)
    other.add(Streams(5).part(20))
    return tmp_path / "buffer", other


def assert_refused(folder, other, match=None):
    state = other.get_state()
    same = EpisodeReplayBuffer(300)
    same.set_state(state)
    with pytest.raises(CheckpointError, match=match):
        other.restore_from_path(folder)
    assert_same(same, other)


def flip(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize("how", [flip, lambda content: content[:-1], lambda content: b"", None, "link"])
def test_a_damaged_segment_is_named(saved, how):
    folder, other = saved
    path = sorted(folder.glob("sealed-*"))[1]
    content = path.read_bytes()
    path.unlink()
    if how == "link":
        path.symlink_to("/dev/zero")
    elif how:
        path.write_bytes(how(content))
    assert_refused(folder, other)


def archive(*arrays, **options):
    """An archive of arrays, as a segment is one."""
    packed = io.BytesIO()
    np.savez(packed, **{f"a{i}": array for i, array in enumerate(arrays)}, **options)
    return packed.getvalue()


def deflated(content):
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return packed.getvalue()


def changed(number, change):
    """Change one array of a segment."""

    def apply(content):
        with np.load(io.BytesIO(content)) as file:
            arrays = [file[f"a{i}"] for i in range(len(file.files))]
        arrays[number] = change(arrays[number])
        return archive(*arrays)

    return apply


SEGMENTS = {
    "a pickle": lambda content: b"\x80\x04c__builtin__\nexit\n.",
    "objects": changed(3, lambda old: np.array([{}] * len(old), object)),
    "deflated": deflated,
    "no arrays": lambda content: archive(),
    "one array": lambda content: archive(np.zeros(3)),
    "other rows": changed(3, lambda old: old[:-1]),
    "other shapes": changed(3, lambda old: np.stack([old, old], 1)),
    "other types": changed(3, lambda old: old.astype(np.complex128)),
    "text": changed(3, lambda old: old.astype(str)),
    "firsts below 0": changed(0, lambda old: old - 1000),
    "firsts beyond": changed(0, lambda old: old + 1000),
    "no lanes": changed(0, lambda old: old[:0]),
    "many lanes": changed(0, lambda old: np.zeros(10**6, np.int64)),
    "lanes of lanes": changed(0, lambda old: np.stack([old, old])),
    "floats": changed(0, lambda old: old.astype(float)),
    "lives of another lane": changed(1, lambda old: old + (1 << 40)),
    "lives without end": changed(1, lambda old: old * 0 + 2**62),
    "lives below 0": changed(1, lambda old: -old - 1),
    "lives less": changed(1, lambda old: old[:, 1:]),
    "lives of other facts": changed(1, lambda old: old[:4]),
    "names less": changed(2, lambda old: old[1:]),
    "names of numbers": changed(2, lambda old: np.arange(len(old))),
    "names in another code": changed(2, lambda old: np.array([b"\xff\xfe"] * len(old))),
}


@pytest.mark.parametrize("attack", SEGMENTS)
def test_hostile_segments_with_right_sums_are_refused(saved, attack):
    folder, other = saved
    for path in sorted(folder.glob("sealed-*")):
        with np.load(path) as file:
            if file["a1"].shape[1] > 1:
                break
    content = SEGMENTS[attack](path.read_bytes())
    path.write_bytes(content)
    text = (folder / "state.json").read_text()
    state = json.loads(text)
    for part in state["lanes"]["segments"]:
        if part["file"]["name"] == path.name:
            part["file"].update(bytes=len(content), sha256=sha256(content).hexdigest())
    replace_state(folder, state)
    assert_refused(folder, other)


def replace_state(folder, state):
    text = json.dumps(state).encode()
    (folder / "state.json").write_bytes(text)
    marker = json.loads((folder / "COMPLETE").read_text())
    marker["files"]["state.json"] = {"bytes": len(text), "sha256": sha256(text).hexdigest()}
    (folder / "COMPLETE").write_text(json.dumps(marker))


@pytest.mark.parametrize("name", ["../../x.npz", "/etc/passwd", "state.json", "sealed-1.npz", 7, None])
def test_segments_lie_in_the_folder(saved, name):
    folder, other = saved
    state = json.loads((folder / "state.json").read_text())
    state["lanes"]["segments"][0]["file"]["name"] = name
    replace_state(folder, state)
    assert_refused(folder, other)


def test_a_segment_counts_once(saved):
    folder, other = saved
    state = json.loads((folder / "state.json").read_text())
    state["lanes"]["segments"][1] = state["lanes"]["segments"][0]
    replace_state(folder, state)
    assert_refused(folder, other, "one file for several parts")


VALUES = [None, True, -1, 10**9, 2**62, 10**30, 0.5, float("nan"), "", b"x", [], {}, (), np.zeros(0), np.zeros((2, 2)),
          np.full(3, 2**62), np.array(["a"]), np.zeros((5, 10**6), np.int64)]  # fmt: skip


def places(state, path=()):
    """Every place in a state."""
    items = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else ()
    for key, part in items:
        yield (*path, key)
        yield from places(part, (*path, key))


@pytest.mark.parametrize("seed", range(int(os.environ.get("EPIBATCH_CASES", "100"))))
def test_random_changes_of_a_state_are_refused_or_harmless(seed, tmp_path_factory):
    rng = random.Random(seed)
    kind = rng.choice([EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer])
    buffer = kind(120, seed=0)
    buffer.add(Streams(0).part(30))
    state = buffer.get_state()
    path = rng.choice(list(places(state)))
    part = state
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = rng.choice(VALUES) if rng.random() < 0.7 or not isinstance(part[path[-1]], np.ndarray) else (
        part[path[-1]] + rng.choice([-1, 1, 2**40])  # numbers that are wrong by a little, or by a lane
        if part[path[-1]].dtype.kind in "if" else part[path[-1]][1:]
    )  # fmt: skip
    other, same = kind(120, seed=1), kind(120)
    other.add(Streams(5).part(20))
    same.set_state(other.get_state())
    try:
        other.set_state(state)
    except CheckpointError:
        assert_same(same, other)
