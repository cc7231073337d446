"""Large arrays from worker processes: equal to those of this process, beside the pipe, and without files that stay."""

from __future__ import annotations

import errno
import os
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from epibatch.env_runner import MultiAgentEnv, VectorMultiAgentEnv

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /dev/shm")

PIXELS = (300, 300, 3)


class Screens(MultiAgentEnv):
    """Agents with screens; who observes is drawn, and one has more arrays than its space says the size of."""

    def __init__(self):
        super().__init__()
        self.agents = self.possible_agents = ["a", "b", "c"]
        screen = Box(0, 255, PIXELS, np.uint8)
        self.observation_spaces = {"a": screen, "b": Dict({"left": screen, "n": Discrete(9)}), "c": screen}
        self.action_spaces = dict.fromkeys(self.agents, Discrete(9))
        self.screen = np.zeros(PIXELS, np.uint8)

    def look(self, agent):
        self.screen[:] = self.np_random.integers(0, 256, (*PIXELS[:2], 1))  # the same array again and again
        if agent == "b":
            return {"left": self.screen[::-1].copy("F"), "n": 3}
        return self.screen[:, ::-1]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {agent: self.look(agent).copy() if agent == "a" else self.look(agent) for agent in ("a", "b")}, {}

    def step(self, action_dict):
        seen = [agent for agent in self.agents if agent in action_dict or self.np_random.random() < 0.5]
        sizes = self.np_random.integers(1, 60_000)
        infos = {"a": {"map": np.arange(sizes), "names": np.array(["x", None], object)}} if "a" in seen else {}
        return {a: self.look(a) for a in seen}, dict.fromkeys(seen, 1.0), {"__all__": False}, {}, infos


def same(left, right):
    if isinstance(left, dict):
        assert isinstance(right, dict) and left.keys() == right.keys()
        return all(same(left[key], right[key]) for key in left)
    assert type(left) is type(right)
    return np.array_equal(left, right) and np.asarray(left).dtype == np.asarray(right).dtype


def histories(mode, steps=8, **settings):
    envs = VectorMultiAgentEnv([Screens] * 3, mode=mode, **settings)
    observations, _ = envs.reset(seed=5)
    history = [(observations,)]
    for _ in range(steps):
        history.append(envs.step([dict.fromkeys(each, 2) for each in observations]))
        observations = history[-1][0]
    envs.close()
    return history


@pytest.fixture(scope="module")
def expected():
    return histories("sync")


def check(history, expected):
    for step, other in zip(history, expected, strict=True):
        for column, right in zip(step, other, strict=True):
            assert all(same(*pair) for pair in zip(column, right, strict=True))


@pytest.mark.parametrize("per_process", [1, 2])
def test_arrays_are_those_of_this_process_and_do_not_go_through_the_pipe(expected, per_process, monkeypatch):
    messages = []
    receive = Connection.recv_bytes

    def counted(self, *args):
        messages.append(receive(self, *args))
        return messages[-1]

    monkeypatch.setattr(Connection, "recv_bytes", counted)
    before = set(Path("/dev/shm").iterdir())
    history = histories("async", per_process=per_process)
    check(history, expected)  # also the early ones, which later answers must not have changed
    assert max(map(len, messages)) < 8_000  # bytes; a screen has 270,000
    assert not [path for path in set(Path("/dev/shm").iterdir()) - before if "epibatch" in path.name]


def test_without_room_in_memory_they_go_through_the_pipe(expected, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "posix_fallocate", full)
    before = set(Path("/dev/shm").iterdir())
    check(histories("async", context="fork"), expected)
    assert not [path for path in set(Path("/dev/shm").iterdir()) - before if "epibatch" in path.name]


class LateScreens(Screens):
    def reset(self, *, seed=None, options=None):
        time.sleep(0.5)
        return super().reset(seed=seed)[0], {"a": {"map": np.zeros(10**6)}}  # larger than all before


def test_answers_that_nobody_reads_leave_nothing():
    before = set(Path("/dev/shm").iterdir())
    envs = VectorMultiAgentEnv([Screens, LateScreens], mode="async")
    _, answered = envs.exchange([{}] * 2)
    assert answered.tolist() == [True, False]
    time.sleep(1.0)
    envs.close()
    assert not [path for path in set(Path("/dev/shm").iterdir()) - before if "epibatch" in path.name]
