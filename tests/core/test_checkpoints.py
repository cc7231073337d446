"""Checkpoints: complete or refused, whatever interrupts a save."""

from __future__ import annotations

import contextlib
import errno
import io
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


def test_round_trip(tmp_path):
    path = save_state(tmp_path / "deep" / "best", STATE)
    loaded = load_state(path)
    assert loaded["step"] == 3
    np.testing.assert_array_equal(loaded["w"], STATE["w"])
    assert set(os.listdir(path)) == {"COMPLETE", "arrays.npz", "state.json"}
    assert os.listdir(path.parent) == ["best"]
    umask = os.umask(0o022)
    os.umask(umask)
    assert os.name == "nt" or stat.S_IMODE(path.stat().st_mode) == 0o777 & ~umask, "others may read it"


def test_empty_folders_and_links_are_written_to(tmp_path):
    (tmp_path / "empty").mkdir()
    save_state(tmp_path / "empty", {"n": 1})
    assert load_state(tmp_path / "empty") == {"n": 1}
    (tmp_path / "latest").symlink_to(tmp_path / "empty")
    save_state(tmp_path / "latest", {"n": 2})
    assert load_state(tmp_path / "empty") == {"n": 2}
    assert (tmp_path / "latest").is_symlink()


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
    assert os.listdir(tmp_path) == ["c"]


def npz(**arrays):
    packed = io.BytesIO()
    np.savez(packed, **arrays)
    return packed.getvalue()


MALFORMED = {
    "folder missing": (lambda d, f: shutil.rmtree(f), "no such folder"),
    "marker missing": (lambda d, f: (f / "COMPLETE").unlink(), "no file named COMPLETE"),
    "marker empty": (lambda d, f: (f / "COMPLETE").write_text(""), "COMPLETE cannot be read"),
    "marker nested": (lambda d, f: (f / "COMPLETE").write_text("[" * 60000), "COMPLETE cannot be read"),
    "wrong version": (lambda d, f: d.rewrite_marker(f, version=99), "version 99"),
    "wrong format": (lambda d, f: d.rewrite_marker(f, format="other"), "format 'other'"),
    "no sums": (lambda d, f: d.rewrite_marker(f, files={}), "no state.json"),
    "state missing": (lambda d, f: (f / "state.json").unlink(), "no state.json"),
    "arrays missing": (lambda d, f: (f / "arrays.npz").unlink(), "no arrays.npz"),
    "state truncated": (lambda d, f: os.truncate(f / "state.json", 9), "state.json has .* bytes"),
    "state flipped": (lambda d, f: d.flip_a_bit(f, "state.json"), "state.json was changed"),
    "arrays flipped": (lambda d, f: d.flip_a_bit(f, "arrays.npz"), "arrays.npz was changed"),
    "signed: state nested": (lambda d, f: d.replace(f, "state.json", b"[" * 200000), "cannot be read"),
    "signed: array missing": (lambda d, f: d.replace(f, "arrays.npz", npz(other=np.ones(2))), "cannot be read"),
    "signed: object array": (lambda d, f: d.replace(f, "arrays.npz", npz(a0=np.array([{}, None], object))), "Object"),
    "signed: a pickle": (lambda d, f: d.replace(f, "arrays.npz", pickle.dumps(STATE)), "cannot be read"),
}


@pytest.mark.parametrize(("damage", "message"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_checkpoints_are_refused(tmp_path, damaged, damage, message):
    folder = save_state(tmp_path / "c", STATE)
    damage(damaged, folder)
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


def test_a_damaged_checkpoint_falls_back_to_the_one_it_replaced(tmp_path, caplog, damaged):
    interrupted_after_publishing(tmp_path / "c", old=1, new=2)
    assert load_state(tmp_path / "c") == {"step": 2}
    damaged.flip_a_bit(tmp_path / "c", "state.json")
    check_state(tmp_path / "c")
    with caplog.at_level(logging.WARNING, "epibatch"):
        assert load_state(tmp_path / "c") == {"step": 1}
    assert "state.json was changed" in caplog.text and "the checkpoint that it replaced is read" in caplog.text
    damaged.flip_a_bit(checkpoints._previous(tmp_path / "c"), "state.json")
    with pytest.raises(CheckpointError, match=r"loading .*/c\n(.|\n)*state.json was changed"):
        check_state(tmp_path / "c")


@pytest.mark.parametrize("stop", range(12))
def test_replacing_a_damaged_checkpoint_keeps_the_one_before_it(tmp_path, monkeypatch, damaged, stop):
    interrupted_after_publishing(tmp_path / "c", old=1, new=2)
    damaged.flip_a_bit(tmp_path / "c", "state.json")
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
    assert all(not name.startswith(".c.saving") for name in os.listdir(tmp_path))
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


def test_checkpointable(tmp_path, monkeypatch):
    one, other = Counter(), Counter()
    one.n = 4
    assert one.save_to_path(tmp_path / "c") == str(tmp_path / "c")
    other.restore_from_path(tmp_path / "c")
    assert other.n == 4
    one.save_to_path(tmp_path / "c", state={"n": 9})
    other.restore_from_path(str(tmp_path / "c"))
    assert other.n == 9
    monkeypatch.setattr(checkpoints.tempfile, "tempdir", str(tmp_path))
    assert load_state(Counter().save_to_path()) == {"n": 0}
    Checkpointable().set_state(Checkpointable().get_state())
