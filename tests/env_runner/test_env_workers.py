"""Environments in processes of their own: what they send, how they end, and Ctrl-C."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import time
import warnings
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from epibatch.algorithms import PPOConfig
from epibatch.core.errors import RunnerError
from epibatch.env_runner import MultiAgentEnv, SingleAgentEnvRunner, VectorMultiAgentEnv, make_multi_agent

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")


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
        self.closed = closed
        if closed == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def drawn(self):
        return random.random(), np.random.rand()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {"a": 0}, {"a": {"process": os.getpid()}}

    def step(self, action_dict):
        info = {}
        what = action_dict.get("a")
        if what == "raise":
            raise Local(1, 2)
        if what == "leave":
            raise SystemExit(5)
        if what == "leave a process":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # there are threads
                if os.fork():
                    os._exit(5)
            time.sleep(3)
            os._exit(0)
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


def working(*settings, mode="async"):
    """One environment in a process, after its reset, and the process's number."""
    envs = VectorMultiAgentEnv([partial(Doer, *settings)], mode=mode)
    _, infos = envs.reset(seed=0)
    return envs, infos[0]["a"]["process"]


@pytest.fixture
def worker():
    made = working()
    yield made
    made[0].close()


def test_errors_and_values_that_cannot_be_sent_are_told(worker):
    envs, process = worker
    assert process != os.getpid()
    for what, message in (("raise", r"Local: 1 and 2[\s\S]*raise Local"), ("send", "can be sent to another process")):
        with pytest.raises(RunnerError, match=message):
            envs.step([{"a": what}])
        assert not envs.broken
        envs.reset()
    with pytest.raises(RunnerError, match=r"can be sent to another process[\s\S]*lambda"):
        envs.step([{"a": lambda: None}])
    assert envs.reset()[1][0]["a"]["process"] == process


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_closed_environment_was_closed(tmp_path, mode):
    envs, _ = working(tmp_path / "closed", mode=mode)
    envs.close()
    assert (tmp_path / "closed").read_text() == "yes"


@pytest.mark.parametrize("how", ["leave", "leave a process"])
def test_a_process_that_ends_on_its_own_is_named(worker, monkeypatch, how):
    envs, _ = worker
    monkeypatch.setattr("epibatch.env_runner.envs.env_workers._PATIENCE", 0.2)
    started = time.monotonic()
    with pytest.raises(RunnerError, match=r"number 0 of 1, 0 steps into its[\s\S]*exit code 5[\s\S]*'sync'"):
        envs.step([{"a": how}])
    assert envs.broken and time.monotonic() - started < 2.5
    for use in (envs.reset, lambda: envs.step([{}]), lambda: envs.call("render")):
        with pytest.raises(RunnerError, match="it has ended, with exit code 5"):
            use()
    envs.close()
    with pytest.raises(RunnerError, match="closed ones"):
        envs.reset()


def test_a_process_that_is_killed_while_it_waits(worker):
    envs, process = worker
    os.kill(process, signal.SIGKILL)
    next(one for one in multiprocessing.active_children() if one.pid == process).join()
    with pytest.raises(RunnerError, match="exit code -9"):
        envs.reset()


def test_the_time_limit_holds_for_messages_that_a_process_does_not_read():
    envs = VectorMultiAgentEnv([Doer], mode="async", timeout=0.3)
    os.kill(envs.reset()[1][0]["a"]["process"], signal.SIGSTOP)
    with pytest.raises(RunnerError, match="exit code -9"):
        envs.step([{"a": "x" * 10**6}])
    envs.close()


def test_global_generators_differ_between_processes_and_repeat_with_the_seed():
    envs, drawn = VectorMultiAgentEnv([Doer] * 2, mode="async", context="fork"), []
    for seed in (None, 3, 3):
        envs.reset(seed=seed)
        drawn.append(envs.call("drawn"))
    envs.close()
    assert drawn[1] == drawn[2] and len({number for pairs in drawn for pair in pairs for number in pair}) == 8


def test_an_environment_that_is_interrupted_at_work_is_ended(worker):
    def interrupt(number, frame):
        raise KeyboardInterrupt

    envs, process = worker
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            envs.step([{"a": "sleep"}])
    finally:
        signal.signal(signal.SIGALRM, before)
    assert envs.broken
    with pytest.raises(RunnerError, match="it has ended, with exit code -9"):
        envs.reset()
    started = time.monotonic()
    envs.close()
    assert time.monotonic() - started < 4, "it is not waited for"
    assert process not in [one.pid for one in multiprocessing.active_children()]


class Slow(gym.Env):
    """Takes a while for its first step, and does not get ready in a process of its own if that is asked for."""

    observation_space = action_space = Discrete(9)

    def __init__(self, config):
        self.t = 0
        if config["hangs"] and multiprocessing.parent_process() is not None:
            time.sleep(60)

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        self.t += 1
        time.sleep(0.4 * (self.t == 1))
        return self.t, 0.0, False, False, {}


def one_agent(hangs, timeout):
    config = PPOConfig().environment(Slow, env_config={"hangs": hangs}).env_runners(gym_env_vectorize_mode="async")
    return SingleAgentEnvRunner(config=config.fault_tolerance(sub_environment_timeout_s=timeout)).env


class NeverPickled(np.ndarray):
    def __reduce__(self):
        raise TypeError("pickled")


class Frames(Slow):
    observation_space = Box(0, 255, (84, 84, 4), np.uint8)

    def observed(self):
        return np.full((84, 84, 4), self.t, np.uint8).view(NeverPickled)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.observed(), {}

    def step(self, action):
        self.t += 1
        return self.observed(), 0.0, self.t == 3, False, {}


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_observations_of_one_agent_come_through_shared_memory(mode):
    config = PPOConfig().environment(Frames, env_config={"hangs": False})
    config.env_runners(gym_env_vectorize_mode="async", num_envs_per_env_runner=2, gym_env_autoreset_mode=mode)
    runner = SingleAgentEnvRunner(config=config)
    episodes = runner.sample(num_episodes=4, random_actions=True)
    assert [episode.get_observations()[:, 0, 0, 0].tolist() for episode in episodes] == [[0, 1, 2, 3]] * 4
    runner.stop()


class Tallying(gym.Env):
    """Observes the steps of all environments, from a file that each of their processes maps into its memory."""

    observation_space, action_space = Box(0, 99, (1,)), Discrete(2)

    def __init__(self, config):
        self.counts, self.number = np.memmap(config["counts"], np.int64, "r+"), config.vector_index

    def seen(self):
        return np.float32([self.counts.sum()])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.seen(), {"process": os.getpid()}

    def step(self, action):
        self.counts[self.number] += 1
        return self.seen(), 0.0, False, False, {"process": os.getpid()}


def test_environments_in_processes_share_memory_of_their_own(tmp_path):
    """Statistics that one environment updates are seen by the others while they sample."""
    np.zeros(2, np.int64).tofile(tmp_path / "counts")
    config = PPOConfig().environment(Tallying, env_config={"counts": tmp_path / "counts"})
    runner = SingleAgentEnvRunner(config=config.env_runners(gym_env_vectorize_mode="async", num_envs_per_env_runner=2))
    order = [0, 1, 1, 0, 1, 1, 1, 0]
    chunks = [runner.step(mask=[env == 0, env == 1], random_actions=True)[0] for env in order]
    assert [chunk.get_observations(-1).item() for chunk in chunks] == [*range(1, 9)]
    assert len({chunk.get_infos(-1)["process"] for chunk in chunks} | {os.getpid()}) == 3
    runner.stop()


def test_answers_of_an_interrupted_call_are_not_taken_for_those_of_the_next():
    def interrupt(number, frame):
        raise KeyboardInterrupt

    envs = one_agent(hangs=False, timeout=None)
    envs.reset()
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            envs.step(np.array([0]))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert envs.broken
    time.sleep(0.5)  # the answer has come
    with pytest.raises(RunnerError, match="it has ended, with exit code -9"):
        envs.get_attr("t")
    assert envs.restart(0, None, {})[0].tolist() == [0] and not envs.broken and envs.get_attr("t") == (0,)
    envs.close()


def test_an_environment_that_takes_too_long_to_be_made():
    started = time.monotonic()
    with pytest.raises(RunnerError, match=r"number 0 of 1[\s\S]*within 0\.3 s"):
        one_agent(hangs=True, timeout=0.3)
    assert time.monotonic() - started < 20 and not multiprocessing.active_children()


def _train_until_killed(pipe):
    envs, process = working("deaf")
    pipe.send(process)
    envs.step([{"a": "sleep"}])


def _runs(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are looked up in /proc")
def test_no_process_outlives_a_parent_that_was_killed_while_it_hangs(monkeypatch):
    monkeypatch.setattr("epibatch.env_runner.envs.env_workers._PATIENCE", 0.2)
    context = multiprocessing.get_context("fork")
    pipe, theirs = context.Pipe()
    parent = context.Process(target=_train_until_killed, args=(theirs,))
    parent.start()
    process = pipe.recv()
    time.sleep(0.2)  # it steps now
    parent.kill()
    parent.join()
    deadline = time.monotonic() + 20
    while _runs(process) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(process)


def test_those_that_do_not_come_to_their_end_are_ended_together(monkeypatch):
    monkeypatch.setattr("epibatch.env_runner.envs.env_workers._PATIENCE", 0.5)
    envs = VectorMultiAgentEnv([partial(Doer, "never")] * 4, mode="async")
    processes = {info["a"]["process"] for info in envs.reset()[1]}
    started = time.monotonic()
    envs.close()
    assert time.monotonic() - started < 1.9, "60 s are what an environment takes"
    assert processes.isdisjoint(one.pid for one in multiprocessing.active_children())


def test_an_environment_that_cannot_be_made_there():
    before = multiprocessing.active_children()
    for make, error, message in (
        (lambda: 1 / 0, ZeroDivisionError, "number 1 of 2"),
        (lambda: os._exit(4), RunnerError, "exit code 4"),
    ):
        with pytest.raises(error) as raised:
            VectorMultiAgentEnv([Doer, make], mode="async")
        assert message in " ".join([str(raised.value), *getattr(raised.value, "__notes__", ())])
    assert set(multiprocessing.active_children()) <= set(before)


def test_processes_that_are_started_afresh():
    made = partial(make_multi_agent("CartPole-v1"), {"num_agents": 2})
    envs = VectorMultiAgentEnv([made], mode="async", context="spawn")
    assert list(envs.reset(seed=0)[0][0]) == [0, 1]
    envs.close()


def test_ctrl_c_is_for_the_process_that_trains_alone(worker):
    envs, process = worker
    os.kill(process, signal.SIGINT)
    assert envs.reset()[0] == [{"a": 0}]
    for blocked in (True, False):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT} if blocked else set())
        try:
            working()[0].close()
            assert (signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, set())) == blocked
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_without_signal_masks_processes_are_started_all_the_same(monkeypatch):
    monkeypatch.delattr(signal, "pthread_sigmask")
    working()[0].close()
