"""Environments in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
from gymnasium.spaces import Discrete

from epibatch.core.errors import RunnerError
from epibatch.env_runner import env_workers
from epibatch.env_runner.env_workers import LocalEnv, WorkerEnv, workers_ignore_ctrl_c
from epibatch.env_runner.multi_agent_env import MultiAgentEnv, make_multi_agent


class Local(Exception):
    """Cannot be made from its message alone, so that it cannot be unpickled."""

    def __init__(self, one, other):
        super().__init__(f"{one} and {other}")


class Doer(MultiAgentEnv):
    """Does what its one agent's action says."""

    def __init__(self, closed=None):
        super().__init__()
        self.agents = self.possible_agents = ["a"]
        self.observation_space = self.action_space = Discrete(9)
        self.render_mode, self.closed = "ansi", closed

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {"a": 0}, {"a": {"seed": seed, "options": options, "process": os.getpid()}}

    def step(self, action_dict):
        info = {}
        what = action_dict["a"]
        if what == "raise":
            raise Local(1, 2)
        if what == "leave":
            raise SystemExit(5)
        if what == "sleep":
            time.sleep(60)
        if what == "send":
            info = {"a": {"cannot be pickled": lambda: None}}
        return {"a": 1}, {}, {"__all__": False}, {}, info

    def close(self):
        if self.closed == "never":
            time.sleep(60)
        elif self.closed is not None:
            self.closed.write_text("yes")


def asked(handle, call, *args):
    handle.send(call, *args)
    return handle.receive()


@pytest.fixture
def worker(tmp_path):
    handle = WorkerEnv(partial(Doer, tmp_path / "closed")).started()
    yield handle
    handle.close()


def test_calls_are_those_of_an_environment_here(worker):
    here = LocalEnv(Doer)
    assert worker.facts == here.facts and here.facts.render_mode == "ansi"
    assert here.facts.observation_spaces == {"a": Discrete(9)}
    for handle in (worker, here):
        observations, infos = asked(handle, "reset", 3, {"x": 1})
        assert observations == {"a": 0} and infos["a"]["seed"] == 3 and infos["a"]["options"] == {"x": 1}
        assert (infos["a"]["process"] == os.getpid()) == (handle is here)
        assert asked(handle, "step", {"a": 0}) == ({"a": 1}, {}, {"__all__": False}, {"__all__": False}, {}, False)
        assert asked(handle, "get", "render_mode", (), {}) == "ansi"
        assert asked(handle, "get", "get_action_space", ("a",), {}) == Discrete(9)
        assert not handle.broken


def test_errors_and_values_that_cannot_be_sent_are_told(worker):
    for what, message in (("raise", r"Local: 1 and 2[\s\S]*raise Local"), ("send", "can be sent to another process")):
        asked(worker, "reset", None, None)
        with pytest.raises(RunnerError, match=message):
            asked(worker, "step", {"a": what})
        assert not worker.broken
    with pytest.raises(AttributeError, match="lambda"):
        worker.send("step", {"a": lambda: None})
    assert asked(worker, "reset", None, None)[0] == {"a": 0}


def test_a_closed_environment_was_closed(tmp_path):
    closed = tmp_path / "closed"
    WorkerEnv(partial(Doer, closed)).started().close()
    assert closed.read_text() == "yes"
    closed.unlink()
    here = LocalEnv(partial(Doer, closed))
    here.close()
    assert closed.read_text() == "yes"


def test_a_process_that_ends_on_its_own(worker):
    asked(worker, "reset", None, None)
    with pytest.raises(RunnerError, match=r"EOFError: it has ended, with exit code 5"):
        asked(worker, "step", {"a": "leave"})
    assert worker.broken
    worker.send("step", {"a": 0})  # nobody hears it
    with pytest.raises(RunnerError, match="it has ended"):
        worker.receive()


def test_a_process_that_is_killed_while_it_waits(worker):
    os.kill(worker._process.pid, signal.SIGKILL)
    worker._process.join()
    with pytest.raises(RunnerError, match="exit code -9"):
        asked(worker, "reset", None, None)


def test_one_that_works_on_something_else_is_ended():
    handle = WorkerEnv(Doer).started()
    asked(handle, "reset", None, None)
    handle.send("step", {"a": "sleep"})
    assert handle.broken
    handle.close()
    assert not handle._process.is_alive()


def test_one_that_does_not_come_to_its_end_is_ended(monkeypatch):
    monkeypatch.setattr(env_workers, "_PATIENCE", 0.2)
    handle = WorkerEnv(partial(Doer, "never")).started()
    started = time.monotonic()
    handle.close()
    assert time.monotonic() - started < 30, "60 s are what the environment takes"
    assert not handle._process.is_alive()


def test_ctrl_c_is_not_for_the_workers(worker):
    os.kill(worker._process.pid, signal.SIGINT)
    assert asked(worker, "reset", None, None)[0] == {"a": 0}


def test_an_environment_that_cannot_be_made_there():
    handle = WorkerEnv(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        handle.started()
    handle.close()
    leaving = WorkerEnv(lambda: os._exit(4))
    with pytest.raises(RunnerError, match="exit code 4"):
        leaving.started()
    leaving.close()


def test_processes_that_are_started_afresh():
    handle = WorkerEnv(partial(make_multi_agent("CartPole-v1"), {"num_agents": 2}), context="spawn").started()
    assert list(asked(handle, "reset", 0, None)[0]) == [0, 1]
    handle.close()


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
