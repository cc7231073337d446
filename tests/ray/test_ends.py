"""However a script ends, its workers and their processes end with it; Ray is one that the script started."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from epibatch.cluster import ActorGroup
from epibatch.core.errors import RunnerError

FIXTURES = Path(__file__).parents[1] / "fixtures"


def is_alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@contextlib.contextmanager
def ended(script):
    try:
        yield
    except BaseException:
        script.kill()
        raise


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks processes up in /proc")
@pytest.mark.parametrize(
    ("how", "number", "code"),
    [("raise", None, 1), ("ctrl-c", signal.SIGINT, 1), ("kill -9", signal.SIGKILL, -signal.SIGKILL)],
)
def test_nothing_is_left(how, number, code):
    environment = {**os.environ, "RAY_DEDUP_LOGS": "0"}
    environment.pop("RAY_ADDRESS", None)
    command = [sys.executable, str(FIXTURES / "script_with_workers.py"), how]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    output, pids = "", []
    with subprocess.Popen(command, **streams, env=environment, start_new_session=True) as script, ended(script):
        for line in script.stdout:
            output += line
            if line.startswith("pids "):
                pids = [int(word) for word in line.split()[1:]]
                if number is not None:  # a terminal sends Ctrl-C to the processes of the script too
                    time.sleep(0.5)
                    (os.killpg if number == signal.SIGINT else os.kill)(script.pid, number)
    assert script.returncode == code, output
    assert re.search("num_gpus_per_worker expected: .* this machine has [0-9]+ GPUs found: 99 for each of 2 ", output)
    assert "custom_resources_per_worker expected: no more than there is: this machine has 0 licence " in output
    told = ("warned 1 True", "(Worker pid=", "hello from 1", "hello from 2")
    assert len(pids) == 4 and [text for text in told if text not in output] == []
    assert "KeyboardInterrupt" in output or how != "ctrl-c"
    end = time.monotonic() + 15
    while any(map(is_alive, pids)) and time.monotonic() < end:
        time.sleep(0.1)
    assert [pid for pid in pids if is_alive(pid)] == []


def test_sigterm_while_ray_starts_reaches_the_callers_handler(monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **_: sys.exit(int(signal.SIGTERM)))  # as the handler that Ray sets

    def interrupt(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            ActorGroup(dict, count=1, arguments={}, name="worker", options={})
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_ray_that_does_not_start_is_named(monkeypatch):
    ray = pytest.importorskip("ray")

    def fail(**_):
        raise Exception("The current node timed out during startup.")  # as Ray does

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", fail)
    with pytest.raises(RunnerError, match=r"starting Ray[^$]*timed out"):
        ActorGroup(dict, count=1, arguments={}, name="worker", options={})
