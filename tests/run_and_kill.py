"""A process that starts training runs in copies of itself and ends them: `run_and_kill.py HOW FOLDER`.

One run to its end imports everything; each further one is a fork. What is printed is one JSON line per run.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from epibatch.algorithms import RunFolder, TrainingRun
from epibatch.algorithms.loggers import JSONLLogger
from epibatch.core import checkpoints
from epibatch.core.errors import EpibatchError

CONFIG = """
algorithm: ppo
environment: {env: CartPole-v1}
training: {train_batch_size: 32, minibatch_size: 32, num_epochs: 1}
rl_module: {model_config: {fcnet_hiddens: [4]}}
debugging: {seed: 1}
checkpointing: {checkpoint_frequency: 1, num_to_keep: 2}
stop: {training_iteration: %d}
"""
UNLIMITED = resource.RLIM_INFINITY
WRITES = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "tempfile.mkdtemp", "shutil.rmtree"}


def train(folder: Path, before_telling: Callable[[], None] = lambda: None, changes: Sequence[str] = ()) -> int:
    """Begin a run, or go on with it, as the command does; the exit code.

    What it says is written beside the folder, after a call of `before_telling`.
    """
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            if (folder / "config.yaml").exists():
                code = TrainingRun.resume(folder, changes=changes).run()
            else:
                code = TrainingRun.start(folder.parent / "config.yaml", folder).run()
        except EpibatchError as error:
            print("error:", error)
            code = 2
    before_telling()
    (folder.parent / f"{folder.name}.txt").write_text(output.getvalue())
    return code


def in_a_fork(act) -> int:
    """Call `act` in a copy of this process; its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(act())
        finally:
            os._exit(99)
    return pid


def end_of(pid: int) -> int:
    """The exit code of a process, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at(number: int, folder: Path):
    """A run that kills itself right before its n-th change of a file in the folder, or in the middle of writing one."""
    count = [0]

    def is_due() -> bool:
        count[0] += 1
        return count[0] == number

    def hook(event: str, arguments: tuple) -> None:
        if event not in WRITES or not str(arguments[0]).startswith(str(folder)):
            return
        if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR):
            return
        if is_due():
            die()

    write, log = checkpoints.create_file, JSONLLogger.log

    def write_half(path: Path, content: bytes) -> None:
        if is_due():
            path.write_bytes(content[: len(content) // 2])
            die()
        write(path, content)

    def log_half(self: JSONLLogger, results) -> None:
        if is_due():
            with self.path.open("a") as file:
                file.write('{"training_iteration": ')
                file.flush()
                die()
        log(self, results)

    def act() -> int:
        checkpoints.create_file, JSONLLogger.log = write_half, log_half
        sys.addaudithook(hook)
        return train(folder)

    return act


def at_every_write(root: Path) -> None:
    """Kill a run of two iterations at its first change of a file, another at its second, until one is not hit.

    Each is then gone on with.
    """
    code, number = -9, 0
    while code < 0:
        number += 1
        folder = root / f"run-{number}"
        code = end_of(in_a_fork(kill_at(number, folder)))
        tell(folder, code)
        end_of(in_a_fork(lambda folder=folder: train(folder)))


def at_random(root: Path) -> None:
    """Kill one run again and again, and let it end at last.

    Every other time it is killed a random time after its start, else a random time after it has got on.
    """
    draw = random.Random(0)
    folder = root / "run"
    for attempt in range(8):
        rows = len(RunFolder(folder).rows())
        pid = in_a_fork(lambda: train(folder))
        deadline = time.monotonic() + 60
        while attempt % 2 and len(RunFolder(folder).rows()) <= rows + 1 and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(draw.random() * (0.1 if attempt % 2 else 0.5))
        os.kill(pid, signal.SIGKILL)
        tell(folder, end_of(pid))
    last = 5 + int(RunFolder(folder).checkpoints.newest().name)
    tell(folder, end_of(in_a_fork(lambda: train(folder, changes=[f"stop.training_iteration={last}"]))))


def limited(root: Path) -> None:
    """Let runs write files of some size at most, as on a disk that is full."""
    config = (root / "first" / "config.yaml").stat().st_size
    for size in (0, config // 10, config + 100, 2 * config, 16000, 40000):
        folder = root / f"run-{size}"

        def act(size: int = size, folder: Path = folder) -> int:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            try:
                return train(folder, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (UNLIMITED, UNLIMITED)))
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (UNLIMITED, UNLIMITED))

        tell(folder, end_of(in_a_fork(act)))


def tell(folder: Path, code: int) -> None:
    """Print how a run ended, and what it has left at this moment."""
    rows = [row["training_iteration"] for row in RunFolder(folder).rows()] if folder.exists() else []
    saved = RunFolder(folder).checkpoints
    newest = int(saved.newest().name) if saved.iterations() else None
    print(json.dumps({"run": folder.name, "code": code, "rows": rows, "newest": newest}), flush=True)


if __name__ == "__main__":
    how, where = sys.argv[1], Path(sys.argv[2])
    (where / "config.yaml").write_text(CONFIG % {"at_every_write": 2, "limited": 60, "at_random": 1_000_000}[how])
    (where / "first.yaml").write_text(CONFIG % 1)
    TrainingRun.start(where / "first.yaml", where / "first").run()
    {"at_every_write": at_every_write, "at_random": at_random, "limited": limited}[how](where)
