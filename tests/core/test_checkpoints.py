"""Checkpoints: complete or refused, whatever interrupts a save."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import logging
import os
import pickle
import shutil
import stat

import numpy as np
import pytest

from epibatch.core import checkpoints
from epibatch.core.checkpoints import Checkpointable, check_state, load_state, save_state
from epibatch.core.errors import CheckpointError, StorageError

STATE = {"step": 3, "w": np.arange(6.0).reshape(2, 3)}


def files_of(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_round_trip(tmp_path):
    path = save_state(tmp_path / "deep" / "best", STATE)
    loaded = load_state(path)
    assert loaded["step"] == 3
    np.testing.assert_array_equal(loaded["w"], STATE["w"])
    assert files_of(path) == ["COMPLETE", "arrays.npz", "state.json"]
    assert files_of(path.parent) == ["best"]


@pytest.mark.parametrize("state", [{}, [], None, 5, np.ones(2), {"a": {}}])
def test_any_state(tmp_path, state):
    save_state(tmp_path / "c", state)
    np.testing.assert_equal(load_state(tmp_path / "c"), state)


def test_empty_folders_and_links_are_written_to(tmp_path):
    (tmp_path / "empty").mkdir()
    save_state(tmp_path / "empty", {"n": 1})
    assert load_state(tmp_path / "empty") == {"n": 1}
    (tmp_path / "latest").symlink_to(tmp_path / "empty")
    save_state(tmp_path / "latest", {"n": 2})
    assert load_state(tmp_path / "empty") == {"n": 2}
    assert (tmp_path / "latest").is_symlink()


@pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")
def test_others_may_read_what_the_umask_allows(tmp_path):
    old = os.umask(0o022)
    try:
        save_state(tmp_path / "c", {})
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == 0o755


def test_other_peoples_files_are_not_replaced(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    (tmp_path / "file").write_text("x")
    for name in ("mine", "file"):
        with pytest.raises(CheckpointError, match="a folder of its own"):
            save_state(tmp_path / name, STATE)
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "x"


def test_an_unsavable_state_leaves_the_old_one(tmp_path):
    save_state(tmp_path / "c", STATE)
    with pytest.raises(CheckpointError, match=r"state\['bad'\]"):
        save_state(tmp_path / "c", {"bad": object()})
    assert load_state(tmp_path / "c")["step"] == 3
    assert files_of(tmp_path) == ["c"]


def rewrite_marker(folder, **changes):
    marker = json.loads((folder / "COMPLETE").read_text())
    (folder / "COMPLETE").write_text(json.dumps({**marker, **changes}))


def replace_file(folder, name, content):
    """Put other contents into a file and sign them, as an attacker would."""
    (folder / name).write_bytes(content)
    files = json.loads((folder / "COMPLETE").read_text())["files"]
    rewrite_marker(folder, files={**files, name: checkpoints._fingerprint(content)})


def npz(**arrays):
    packed = io.BytesIO()
    np.savez(packed, **arrays)
    return packed.getvalue()


def truncate(folder, name):
    (folder / name).write_bytes((folder / name).read_bytes()[:-7])


def flip_a_bit(folder, name):
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(bytes(content))


MALFORMED = [
    ("folder missing", shutil.rmtree, "no such folder"),
    ("marker missing", lambda f: (f / "COMPLETE").unlink(), "no file named COMPLETE"),
    ("marker empty", lambda f: (f / "COMPLETE").write_text(""), "COMPLETE cannot be read"),
    ("marker not JSON", lambda f: (f / "COMPLETE").write_bytes(b"\xff\x00"), "COMPLETE cannot be read"),
    ("marker a list", lambda f: (f / "COMPLETE").write_text("[]"), "COMPLETE cannot be read"),
    ("marker nested", lambda f: (f / "COMPLETE").write_text("[" * 60000), "COMPLETE cannot be read"),
    ("wrong version", lambda f: rewrite_marker(f, version=99), "version 99"),
    ("wrong format", lambda f: rewrite_marker(f, format="other"), "format 'other'"),
    ("no sums", lambda f: rewrite_marker(f, files={}), "no state.json"),
    ("sums of another type", lambda f: rewrite_marker(f, files=[]), "format"),
    ("state missing", lambda f: (f / "state.json").unlink(), "no state.json"),
    ("arrays missing", lambda f: (f / "arrays.npz").unlink(), "no arrays.npz"),
    ("state truncated", lambda f: truncate(f, "state.json"), "state.json has .* bytes"),
    ("arrays truncated", lambda f: truncate(f, "arrays.npz"), "arrays.npz has .* bytes"),
    ("state flipped", lambda f: flip_a_bit(f, "state.json"), "state.json was changed"),
    ("arrays flipped", lambda f: flip_a_bit(f, "arrays.npz"), "arrays.npz was changed"),
    ("signed: state truncated", lambda f: replace_file(f, "state.json", b'{"step": '), "cannot be read"),
    ("signed: state nested", lambda f: replace_file(f, "state.json", b"[" * 200000), "cannot be read"),
    ("signed: no zip", lambda f: replace_file(f, "arrays.npz", b"no zip"), "cannot be read"),
    ("signed: half a zip", lambda f: replace_file(f, "arrays.npz", npz(a0=np.ones(9))[:60]), "cannot be read"),
    ("signed: array missing", lambda f: replace_file(f, "arrays.npz", npz(other=np.ones(2))), "cannot be read"),
    (
        "signed: object array",
        lambda f: replace_file(f, "arrays.npz", npz(a0=np.array([{}, None], object))),
        "Object arrays cannot be loaded",
    ),
    ("signed: a pickle", lambda f: replace_file(f, "arrays.npz", pickle.dumps(STATE)), "cannot be read"),
    (
        "signed: unknown tag",
        lambda f: replace_file(f, "state.json", b'[{"$": "code"}' + b', "array"' * 9 + b"]"),
        "unknown tag",
    ),
]


@pytest.mark.parametrize(("damage", "message"), [row[1:] for row in MALFORMED], ids=[row[0] for row in MALFORMED])
def test_malformed_checkpoints_are_refused(tmp_path, damage, message):
    folder = save_state(tmp_path / "c", STATE)
    damage(folder)
    with pytest.raises(CheckpointError, match=message):
        load_state(folder)


class Interrupted(BaseException):
    """Stands for whatever stops a process."""


@pytest.mark.parametrize("clean_up", [True, False])
@pytest.mark.parametrize("had_one", [True, False])
def test_a_fault_at_any_step_leaves_a_loadable_state(tmp_path, monkeypatch, had_one, clean_up):
    """Stop the save at its n-th write, sync, rename or removal, for every n."""
    finished, n = False, 0
    while not finished:
        path = tmp_path / str(n) / "c"
        if had_one:
            save_state(path, {"step": "old"})
        with monkeypatch.context() as patch:
            stop_at_call(patch, n, clean_up)
            try:
                save_state(path, {"step": "new"})
                finished = True
            except Interrupted:
                pass
        if had_one or finished:
            assert load_state(path)["step"] in (("new",) if finished else ("old", "new"))
        elif path.exists():
            assert load_state(path) == {"step": "new"}
        else:
            with pytest.raises(CheckpointError):
                load_state(path)
        save_state(path, {"step": "next"})
        assert load_state(path) == {"step": "next"}
        n += 1
    assert n > 8


def interrupted_after_publishing(folder, *, old, new):
    """The save was finished but for removing the checkpoint that it replaced."""
    save_state(folder, {"step": new})
    save_state(checkpoints._previous(folder), {"step": old})


def test_a_damaged_checkpoint_falls_back_to_the_one_it_replaced(tmp_path, caplog):
    interrupted_after_publishing(tmp_path / "c", old=1, new=2)
    assert load_state(tmp_path / "c") == {"step": 2}
    flip_a_bit(tmp_path / "c", "state.json")
    check_state(tmp_path / "c")
    with caplog.at_level(logging.WARNING, "epibatch"):
        assert load_state(tmp_path / "c") == {"step": 1}
    assert "state.json was changed" in caplog.text and "the checkpoint that it replaced is read" in caplog.text
    flip_a_bit(checkpoints._previous(tmp_path / "c"), "state.json")
    with pytest.raises(CheckpointError, match=r"loading .*/c\n(.|\n)*state.json was changed"):
        check_state(tmp_path / "c")


@pytest.mark.parametrize("stop", range(12))
def test_replacing_a_damaged_checkpoint_keeps_the_one_before_it(tmp_path, monkeypatch, stop):
    interrupted_after_publishing(tmp_path / "c", old=1, new=2)
    flip_a_bit(tmp_path / "c", "state.json")
    with monkeypatch.context() as patch:
        stop_at_call(patch, stop, clean_up=False)
        with contextlib.suppress(Interrupted):
            save_state(tmp_path / "c", {"step": 3})
    assert load_state(tmp_path / "c")["step"] in (1, 3)


def out_of_space(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("step", ["mkdir", "create_file", "fsync", "rename"])
def test_a_full_disk_is_a_named_error_and_keeps_the_old_one(tmp_path, monkeypatch, step):
    save_state(tmp_path / "c", {"step": "old"})
    owner = checkpoints if step == "create_file" else os
    with monkeypatch.context() as patch:
        patch.setattr(owner, step, out_of_space)
        assert issubclass(StorageError, OSError)
        with pytest.raises(StorageError, match=r"saving to .*/c\n(.|\n)*No space left(.|\n)*still whole"):
            save_state(tmp_path / "c", {"step": "new"})
    assert load_state(tmp_path / "c") == {"step": "old"}
    assert all(not name.startswith(".c.saving") for name in files_of(tmp_path))


def test_a_file_that_cannot_be_read_is_damage(tmp_path, monkeypatch):
    save_state(tmp_path / "c", STATE)
    monkeypatch.setattr(checkpoints, "open_file", out_of_space)
    with pytest.raises(CheckpointError, match=r"state.json cannot be read \(.*No space"):
        load_state(tmp_path / "c")


def stop_at_call(patch, n, clean_up):
    count = [0]

    def counted(function):
        def call(*args, **kwargs):
            count[0] += 1
            if count[0] == n + 1:
                raise Interrupted
            if count[0] > n + 1:  # a killed process does nothing more
                return function(*args, **kwargs) if clean_up else None
            return function(*args, **kwargs)

        return call

    for owner, name in [(os, "fsync"), (os, "rename"), (checkpoints.shutil, "rmtree"), (checkpoints, "create_file")]:
        patch.setattr(owner, name, counted(getattr(owner, name)))


class Counter(Checkpointable):
    def __init__(self):
        self.n = 0

    def get_state(self, components=None, *, not_components=None, **kwargs):
        return {"n": self.n}

    def set_state(self, state):
        self.n = state["n"]


def test_checkpointable(tmp_path):
    one, other = Counter(), Counter()
    one.n = 4
    assert one.save_to_path(tmp_path / "c") == str(tmp_path / "c")
    other.restore_from_path(tmp_path / "c")
    assert other.n == 4
    one.save_to_path(tmp_path / "c", state={"n": 9})
    other.restore_from_path(str(tmp_path / "c"))
    assert other.n == 9


def test_checkpointable_without_a_path(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints.tempfile, "tempdir", str(tmp_path))
    path = Counter().save_to_path()
    assert load_state(path) == {"n": 0}


def test_nothing_to_save():
    assert Checkpointable().get_state() == {}
    Checkpointable().set_state({})


MODEST = {
    "visits": {(i, i % 7): i for i in range(100_000)},
    "floats": [0.5] * 1_500_000,
    "bytes": bytes(9_000_000),
}


@pytest.mark.parametrize("name", MODEST)
def test_modest_states_are_saved(tmp_path, name):
    save_state(tmp_path / "c", MODEST[name])
    assert load_state(tmp_path / "c") == MODEST[name]


def test_a_state_that_will_soon_be_too_large_is_a_warning(tmp_path):
    with pytest.warns(UserWarning, match="more than half of what state.json may have"):
        save_state(tmp_path / "c", "x" * 9 * 2**20)
    assert load_state(tmp_path / "c") == "x" * 9 * 2**20
    with pytest.raises(CheckpointError, match="at most 16,777,216 bytes"):
        save_state(tmp_path / "c", "x" * 17 * 2**20)


def test_long_lists_of_earlier_checkpoints_are_read(tmp_path):
    folder = save_state(tmp_path / "c", None)
    pairs = b",".join(b'[{"$":"tuple","items":[%d,2]},%d]' % (i, i) for i in range(2000))
    numbers = b",".join([b"1.5"] * 2000)
    text = b'[{"$":"dict","items":[%b]},[%b],{"$":"bytes","hex":"%b"}]' % (pairs, numbers, b"ab" * 2000)
    replace_file(folder, "state.json", text)
    assert load_state(folder) == [{(i, 2): i for i in range(2000)}, [1.5] * 2000, b"\xab" * 2000]
