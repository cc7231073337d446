"""Processes that are started inside never get Ctrl-C; this one does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from epibatch.env_runner.env_workers import workers_ignore_ctrl_c

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
ENDURE = "import sys, time; print('ready', flush=True); time.sleep(0.3); print('done')"


def test_a_process_started_inside_outlives_ctrl_c():
    with workers_ignore_ctrl_c():
        process = subprocess.Popen([sys.executable, "-c", ENDURE], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate()[0] == "done\n"
    assert process.returncode == 0


def test_this_process_gets_it_all_the_same():
    seen = []
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        with workers_ignore_ctrl_c():
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIGINT]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, set())


def test_what_was_blocked_before_stays_blocked():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with workers_ignore_ctrl_c():
            pass
        assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, set())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_without_signal_masks_nothing_changes(monkeypatch):
    monkeypatch.delattr(signal, "pthread_sigmask")
    with workers_ignore_ctrl_c():
        pass
