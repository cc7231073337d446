"""A stranger's run folder: links and named pipes are refused, and two processes do not write into one folder."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys

import pytest

from epibatch.algorithms import PPO, Policy, RunFolder, TrainingRun
from epibatch.algorithms.loggers import CSVLogger, JSONLLogger
from epibatch.algorithms.run.saved_checkpoints import newest_checkpoint
from epibatch.core import load_state
from epibatch.core.errors import CheckpointError, EpibatchError, StorageError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links and named pipes of POSIX")


@pytest.fixture
def victim(tmp_path):
    path = tmp_path / "victim"
    path.write_text("precious\n")
    return path


def link(name):
    return lambda run, victim: ((run / name).unlink(missing_ok=True), (run / name).symlink_to(victim))


def pipe(name):
    return lambda run, victim: ((run / name).unlink(missing_ok=True), os.mkfifo(run / name))


def another_run(run, victim):
    shutil.move(run / "checkpoints", run.parent / "theirs")
    (run / "checkpoints").symlink_to(run.parent / "theirs")


def checkpoint_elsewhere(run, victim):
    shutil.move(run / "checkpoints" / "000001", run.parent / "000001")
    (run / "checkpoints" / "000001").symlink_to(run.parent / "000001")


TRAPS = {
    **{
        f"link {name}": link(name)
        for name in (
            "config.yaml",
            "metrics.jsonl",
            "metrics.csv",
            "checkpoints/000002",
            ".lock",
            "videos",
            "checkpoints/.000001.previous",
            "checkpoints/000001/arrays.npz",
        )
    },
    "pipe metrics.jsonl": pipe("metrics.jsonl"),
    "pipe .lock": pipe(".lock"),
    "pipe COMPLETE": pipe("checkpoints/000001/COMPLETE"),
    "checkpoints of another run": another_run,
    "a checkpoint elsewhere": checkpoint_elsewhere,
}
OPENERS = {
    "resume": TrainingRun.resume,
    "open": RunFolder.open_existing,
    "policy": Policy.from_checkpoint,
}


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize("trap", TRAPS)
def test_links_and_pipes_are_refused(run, victim, trap, opener):
    TRAPS[trap](run, victim)
    before = sorted(path.name for path in run.parent.rglob("*"))
    with pytest.raises(CheckpointError):
        OPENERS[opener](run)
    assert victim.read_text() == "precious\n"
    assert sorted(path.name for path in run.parent.rglob("*")) == before


def test_a_path_of_yours_may_be_a_link_and_nothing_is_removed_through_one(run):
    (run.parent / "latest").symlink_to(run)
    assert newest_checkpoint(run.parent / "latest").name == "000001"
    checkpoint_elsewhere(run, None)
    RunFolder(run).checkpoints.prune(0)
    assert (run.parent / "000001" / "COMPLETE").is_file(), "checkpoints are not removed through a link"


@pytest.mark.parametrize("place", ["latest-run", "wandb/logs"])
def test_links_of_yours_stay_and_end_nothing(run, victim, place):
    (run / place).parent.mkdir(exist_ok=True)
    (run / place).symlink_to(victim)
    (run / ".x.0123456789abcdef.writing").mkdir()
    (run / ".others.writing").write_text("mine")
    for opener in (newest_checkpoint, Policy.from_checkpoint):
        opener(run)
    assert TrainingRun.resume(run).run(3) == 0
    assert (run / place).is_symlink() and victim.read_text() == "precious\n"
    assert (run / ".x.0123456789abcdef.writing").is_dir() and (run / ".others.writing").exists()


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_what_a_trainer_renames_meanwhile_is_no_link(run, monkeypatch, calls):
    (run / "checkpoints" / "000001" / "folder").mkdir()
    (run / "checkpoints" / "000001" / "aside").write_text("")
    (run / "checkpoints" / ".000001.previous").mkdir()
    scan, seen = os.scandir, []

    def scandir(place):
        entries = list(scan(place))
        seen.append(place)
        if len(seen) == calls:
            (run / "checkpoints" / ".000001.previous").rmdir()
            for name in ("aside", "folder"):
                path = run / "checkpoints" / "000001" / name
                path.rename(run.parent / name)
        return entries

    monkeypatch.setattr("epibatch.core.files.os.scandir", scandir)
    assert newest_checkpoint(run).name == "000001"


@pytest.mark.parametrize("load", [Policy.from_checkpoint, PPO.from_checkpoint])
def test_a_checkpoint_that_is_pruned_while_it_is_read(run, monkeypatch, load):
    """With one checkpoint kept, a reader's is gone as soon as the next is saved."""
    folder = run / "checkpoints"

    def slow(path):
        if path.name == "000001":
            (folder / "000001").rename(folder / "000002")
        return load_state(path)

    monkeypatch.setattr("epibatch.algorithms.checkpoint.load_state", slow)
    load(run)
    assert [path.name for path in folder.iterdir()] == ["000002"]


def test_a_run_that_saves_while_its_newest_is_looked_for(run, monkeypatch):
    folder = run / "checkpoints"

    def slow(path):
        if path.name == "000001":
            (folder / "000001").rename(folder / "000002")
        load_state(path)

    monkeypatch.setattr("epibatch.algorithms.run.saved_checkpoints.check_state", slow)
    assert newest_checkpoint(run).name == "000002"


@pytest.mark.parametrize("logger", [JSONLLogger, CSVLogger])
def test_loggers_do_not_write_through_a_link(tmp_path, victim, logger):
    (tmp_path / "metrics").symlink_to(victim)
    row = {"training_iteration": 1}
    own = logger(tmp_path / "metrics")
    if logger is JSONLLogger:
        with pytest.raises(StorageError, match="a link"):
            own.log(row)
    own.resume([row])
    own.log({**row, "training_iteration": 2})
    assert victim.read_text() == "precious\n"
    assert not (tmp_path / "metrics").is_symlink()


# -- a table without its rows ------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["", None, "no json\n"])
def test_a_whole_table_beside_lost_rows_is_kept(run, content, caplog):
    (run / "metrics.jsonl").unlink() if content is None else (run / "metrics.jsonl").write_text(content)
    table = (run / "metrics.csv").read_text()
    assert TrainingRun.resume(run).run(1) == 0
    assert (run / "metrics.csv.kept").read_text() == table
    assert "metrics.csv.kept" in caplog.text and "no rows" in caplog.text


# -- locks -------------------------------------------------------------------------------------------

HOLD = """
import sys, os
from pathlib import Path
from epibatch.algorithms import RunFolder
folder = RunFolder(Path(sys.argv[1]))
folder.lock()
if len(sys.argv) > 2:
    ready, told = os.pipe()
    if os.fork() == 0:
        os.write(told, b".")
        os.close(1)
        import time
        time.sleep(30)
    os.read(ready, 1)
print(os.getpid(), flush=True)
sys.stdin.read()
"""


def holder(run, *arguments):
    """Another process that holds the folder."""
    command = [sys.executable, "-c", HOLD, str(run), *arguments]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    return process, process.stdout.readline().strip()


def test_a_folder_in_use_is_refused_and_a_killed_process_leaves_no_lock(run):
    process, pid = holder(run, "with a fork that outlives it")
    try:
        with pytest.raises(StorageError, match=rf"process {pid} on "):
            TrainingRun.resume(run)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert (run / ".lock").exists()
        assert TrainingRun.resume(run).run(1) == 0
        assert not (run / ".lock").exists()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.stdin.close()
        process.stdout.close()


def test_two_runs_of_one_process_do_not_share_a_folder(run, victim):
    os.link(victim, run / ".lock")
    session = TrainingRun.resume(run)
    assert victim.read_text() == "precious\n", "another name of the lock is not written"
    with pytest.raises(StorageError, match=f"process {os.getpid()} on "):
        TrainingRun.resume(run)
    assert session.run(1) == 0
    TrainingRun.resume(run).run(1)


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EINVAL])
def test_file_systems_without_locks_are_told_of(run, monkeypatch, caplog, code):
    import fcntl

    def flock(descriptor, how):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    folder = RunFolder(run)
    folder.lock()
    folder.unlock()
    (record,) = caplog.records
    assert "no locks on this file system" in record.message and os.strerror(code) in record.message


def test_a_run_that_cannot_begin_lets_go_of_its_folder(run):
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text("algorithm: unknown\n")
    with pytest.raises(EpibatchError):
        TrainingRun.resume(run)
    (run / "config.yaml").write_text(config)
    assert TrainingRun.resume(run).run(1) == 0
