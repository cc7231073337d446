from __future__ import annotations

import os
import signal

import pytest

from epibatch.algorithms import PPOConfig
from epibatch.algorithms.run_folder import RunFolder
from epibatch.algorithms.training_run import TrainingRun


class Scripted:
    """An algorithm whose mean return grows by 100 in every iteration of 1,000 steps."""

    def __init__(self, config, interrupt_in=None):
        self.config = config
        self.training_iteration = 0
        self.saved = []
        self.stopped = False
        self.interrupt_in = interrupt_in

    def train(self):
        self.training_iteration += 1
        if self.training_iteration == self.interrupt_in:
            os.kill(os.getpid(), signal.SIGINT)
        return {
            "env_runners": {"episode_return_mean": 100.0 * self.training_iteration, "num_episodes_lifetime": 500},
            "learners": {"default_policy": {"policy_loss": 0.1}},
            "training_iteration": self.training_iteration,
            "num_env_steps_sampled_lifetime": 1000 * self.training_iteration,
            "time_this_iter_s": 0.1,
            "time_total_s": 0.1 * self.training_iteration,
        }

    def save_to_path(self, path):
        self.saved.append(path)

    def stop(self):
        self.stopped = True


@pytest.mark.parametrize(
    ("rules", "iterations", "code", "trained", "words"),
    [
        ({"episode_return_mean": 300}, None, 0, 3, "solved: mean return 300.0 over the last 100 episodes, after 3,000"),
        ({"episode_return_mean": 900, "num_env_steps_sampled_lifetime": 2000}, None, 1, 2, "not solved: the limit of"),
        ({"training_iteration": 2}, None, 0, 2, "finished: the limit of 2 iterations"),
        ({"episode_return_mean": 900}, 1, 0, 1, "finished, after 1,000 env steps and 0.1 s of training"),
    ],
)
def test_how_runs_end(tmp_path, capsys, rules, iterations, code, trained, words):
    algorithm = Scripted(PPOConfig().stopping(**rules))
    folder = RunFolder.create(tmp_path)
    assert TrainingRun(algorithm, folder, "scripted").run(iterations) == code
    assert algorithm.training_iteration == trained
    assert algorithm.saved == [folder.checkpoint_path]
    assert algorithm.stopped
    assert len(list(folder.rows())) == trained
    printed = capsys.readouterr().out
    assert words in printed
    assert f"curve:      {folder.curve_path}" in printed
    assert f"checkpoint: {folder.checkpoint_path}" in printed


def test_ctrl_c_ends_after_the_iteration_and_saves(tmp_path, capsys):
    algorithm = Scripted(PPOConfig(), interrupt_in=2)
    folder = RunFolder.create(tmp_path)
    before = signal.getsignal(signal.SIGINT)
    assert TrainingRun(algorithm, folder, "scripted").run() == 130
    assert signal.getsignal(signal.SIGINT) is before
    assert algorithm.training_iteration == 2
    assert algorithm.saved == [folder.checkpoint_path]
    printed = capsys.readouterr().out
    assert "finishing this iteration, then saving" in printed
    assert f"--resume {tmp_path}" in printed
