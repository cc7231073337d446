"""Learners in processes of their own, which gloo connects."""

from __future__ import annotations

import multiprocessing
import os
import time

import numpy as np
import pytest
import torch

from epibatch.core.errors import ConfigError, OtherLearnerError, WorkerLostError
from epibatch.core.rl_module import TorchRLModule
from epibatch.learner import Learner, LearnerSettings, TorchLearners, free_address


class Line(TorchRLModule):
    """Two weights, which are pulled to the rows."""

    def setup(self):
        self.at = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))

    def _forward_train(self, batch, **kwargs):
        return {"at": self.at}

    def get_train_action_dist_cls(self):
        return None


def rows_of(index):
    return np.random.default_rng(index).normal(index, 1.0, (5 * index, 2))


def learn(index, address, answers):
    """One process: an update, one in which learner 2 fails, and one in which it ends."""
    torch.set_num_threads(1)
    learners = TorchLearners(index=index, count=2, address=address, timeout_s=60)
    steps = iter(["works", "fails", "ends"])

    def connector(**kwargs):
        step = next(steps)
        if index == 2 and step == "fails":
            raise ZeroDivisionError("in a piece")
        if index == 2 and step == "ends":
            answers.put((index, "ends"))
            leave(answers, 3)
        return {"default_policy": {"x": torch.from_numpy(rows_of(index))}}

    def loss(batch, outputs, distribution_class):
        return (outputs["at"] - batch["x"]).square().sum(-1).mean(), {}

    settings = LearnerSettings(lr=0.1, optimizer="sgd", num_epochs=3)
    learner = Learner(module=Line(), connector=connector, settings=settings, loss=loss, learners=learners)
    learner.update(episodes=[1])
    answers.put((index, learner.module["default_policy"].at.tolist()))
    for _ in range(2):
        try:
            learner.update(episodes=[1])
        except Exception as error:
            answers.put((index, type(error)))
    learners.close()
    leave(answers, 0)


def leave(answers, code):
    """End the process at once: after a lost connection gloo's threads may abort an interpreter that ends slowly."""
    answers.close()
    answers.join_thread()
    os._exit(code)


@pytest.mark.slow  # processes that load torch
def test_processes_learn_together_and_none_hangs():
    context, address = multiprocessing.get_context("spawn"), free_address()
    answers = context.Queue()
    processes = [context.Process(target=learn, args=(index, address, answers)) for index in (1, 2)]
    started = time.monotonic()
    try:
        for process in processes:
            process.start()
        of = {1: [], 2: []}
        for _ in range(6):
            index, answer = answers.get(timeout=90)
            of[index].append(answer)
        for process in processes:
            process.join(timeout=60)
    finally:
        for process in processes:
            process.kill()
    at = np.array([1.0, -2.0])
    for _ in range(3):
        at = at - 0.1 * 2 * (at - np.concatenate([rows_of(1), rows_of(2)]).mean(0))
    np.testing.assert_allclose(of[1][0], at, rtol=1e-12)
    assert of[2][0] == of[1][0], "bit by bit"
    assert of[1][1:] == [OtherLearnerError, WorkerLostError] and of[2][1:] == [ZeroDivisionError, "ends"]
    assert [process.exitcode for process in processes] == [0, 3]
    assert time.monotonic() - started < 60, "a lost connection is noticed at once"


@pytest.mark.parametrize(("index", "count"), [(0, 2), (3, 2), (1, 0)])
def test_numbers_that_no_learner_has(index, count):
    with pytest.raises(ConfigError, match="from 1"):
        TorchLearners(index=index, count=count, address=free_address())


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("Connection closed by peer"), WorkerLostError),
        (torch.cuda.OutOfMemoryError("CUDA"), torch.cuda.OutOfMemoryError),
    ],
)
def test_too_little_memory_is_not_a_lost_learner(monkeypatch, error, expected):
    def all_reduce(tensor):
        raise error

    learners = TorchLearners(index=1, count=1, address=free_address(), timeout_s=20)
    try:
        monkeypatch.setattr("torch.distributed.all_reduce", all_reduce)
        with pytest.raises(expected):
            learners.add_up(torch.zeros(1))
    finally:
        learners.close()
