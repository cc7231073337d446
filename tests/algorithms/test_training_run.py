from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from epibatch.algorithms import Algorithm, PPOConfig
from epibatch.algorithms.run_folder import RunFolder
from epibatch.algorithms.training_run import FAILED, TrainingRun
from epibatch.core import save_state
from epibatch.core.errors import EpibatchError


class Scripted:
    """An algorithm whose mean return grows by 100 in every iteration of 1,000 steps."""

    def __init__(self, config, interrupt_in=None, with_signal=signal.SIGINT, error=None):
        self.config = config
        self.training_iteration = 0
        self.saved = []
        self.stopped = False
        self.interrupt_in = interrupt_in
        self.with_signal = with_signal
        self.error = error

    def train(self):
        if self.error is not None and self.training_iteration == 2:
            raise self.error
        self.training_iteration += 1
        if self.training_iteration == self.interrupt_in:
            os.kill(os.getpid(), self.with_signal)
        return {
            "env_runners": {"episode_return_mean": 100.0 * self.training_iteration, "num_episodes_lifetime": 500},
            "learners": {"default_policy": {"policy_loss": 0.1}},
            "training_iteration": self.training_iteration,
            "num_env_steps_sampled_lifetime": 1000 * self.training_iteration,
            "time_this_iter_s": 0.1,
            "time_total_s": 0.1 * self.training_iteration,
        }

    def save_to_path(self, path, *, end_episodes):
        assert end_episodes == self.config.end_episodes
        self.saved.append(path.name)
        path.mkdir(parents=True)

    def stop(self):
        self.stopped = True


@pytest.mark.parametrize(
    ("rules", "iterations", "code", "trained", "words"),
    [
        ({"episode_return_mean": 300}, None, 0, 3, "solved: mean return 300.0 over the last 100 episodes, after 3,000"),
        ({"episode_return_mean": 900, "num_env_steps_sampled_lifetime": 2000}, None, 1, 2, "not solved: the limit of"),
        ({"training_iteration": 2}, None, 0, 2, "finished: the limit of 2 iterations"),
        ({"episode_return_mean": 900, "training_iteration": 2}, 2, 1, 2, "--set stop.training_iteration=..."),
        ({"episode_return_mean": 900}, 1, 0, 1, "finished: --iterations 1 done, after 1,000 env steps and 0.1 s"),
    ],
)
def test_how_runs_end(tmp_path, capsys, rules, iterations, code, trained, words):
    algorithm = Scripted(PPOConfig().stopping(**rules))
    folder = RunFolder.create(tmp_path)
    assert TrainingRun(algorithm, folder, "scripted").run(iterations) == code
    assert algorithm.training_iteration == trained
    assert algorithm.saved == [f"{trained:06d}"]
    assert algorithm.stopped
    assert len(list(folder.rows())) == trained
    printed = capsys.readouterr().out
    assert words in printed
    assert f"curve:      {folder.curve_path}" in printed
    assert f"checkpoint: {folder.checkpoints.path_of(trained)}" in printed


@pytest.mark.parametrize(
    ("settings", "saved", "kept"),
    [
        ({"checkpoint_frequency": 2, "num_to_keep": 1}, [2, 4, 5], [5]),
        ({"checkpoint_frequency": 5}, [5], [5]),
        ({"checkpoint_frequency": 2, "num_to_keep": 2}, [2, 4, 5], [5, 4]),
        ({"checkpoint_interval_s": 1e-9, "num_to_keep": None}, [1, 2, 3, 4, 5], [5, 4, 3, 2, 1]),
        ({"checkpoint_interval_s": None}, [5], [5]),
    ],
)
def test_saves_on_the_way(tmp_path, settings, saved, kept):
    algorithm = Scripted(PPOConfig().checkpointing(**settings).stopping(training_iteration=5))
    folder = RunFolder.create(tmp_path)
    assert TrainingRun(algorithm, folder, "scripted").run() == 0
    assert algorithm.saved == [f"{iteration:06d}" for iteration in saved]
    assert folder.checkpoints.iterations() == kept


@pytest.mark.parametrize(("number", "code", "word"), [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM")])
def test_signals_end_after_the_iteration_and_save(tmp_path, capsys, number, code, word):
    algorithm = Scripted(PPOConfig(), interrupt_in=2, with_signal=number)
    folder = RunFolder.create(tmp_path)
    before = signal.getsignal(number)
    assert TrainingRun(algorithm, folder, "scripted").run() == code
    assert signal.getsignal(number) is before
    assert algorithm.training_iteration == 2
    assert algorithm.saved == ["000002"]
    printed = capsys.readouterr().out
    assert f"{word}: finishing this iteration, then saving" in printed
    assert f"--resume {tmp_path}" in printed


def test_a_second_signal_ends_at_once_without_saving(tmp_path, capsys):
    class Impatient(Scripted):
        def train(self):
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
            return super().train()

    algorithm = Impatient(PPOConfig())
    assert TrainingRun(algorithm, RunFolder.create(tmp_path), "scripted").run() == 143
    assert (algorithm.saved, algorithm.stopped) == ([], True)
    assert "what was trained since the beginning is not saved" in capsys.readouterr().out


def test_an_error_saves_what_there_is(tmp_path, capsys):
    algorithm = Scripted(PPOConfig(allow_imports=True), error=ZeroDivisionError("in the environment"))
    folder = RunFolder.create(tmp_path)
    assert TrainingRun(algorithm, folder, "scripted").run() == FAILED == 3
    assert (algorithm.saved, algorithm.stopped) == (["000002"], True)
    printed = capsys.readouterr().err
    assert "ZeroDivisionError: in the environment\n\nthe run failed in iteration 3\n" in printed
    assert f"checkpoint: {folder.checkpoints.path_of(2)} (after 2 iterations)" in printed
    assert f"go on with: epibatch train --resume {tmp_path} --allow-imports" in printed
    assert "in run\n" not in printed, "the traceback begins with the user's code"


class Fails:
    def __init__(self, iteration, error):
        self.iteration, self.error = iteration, error
        self.closed = False

    def log(self, results):
        if results["training_iteration"] == self.iteration:
            raise self.error

    def close(self):
        self.closed = True


def test_a_failing_logger_ends_the_run_after_its_iteration(tmp_path, capsys):
    logger = Fails(2, KeyError("no such curve"))
    algorithm = Scripted(PPOConfig().reporting(loggers=[logger]).stopping(training_iteration=5))
    folder = RunFolder.create(tmp_path)
    assert TrainingRun(algorithm, folder, "scripted").run() == FAILED
    assert (algorithm.training_iteration, algorithm.saved, logger.closed) == (2, ["000002"], True)
    assert [row["training_iteration"] for row in folder.rows()] == [1, 2]
    assert not folder.csv_path.exists(), "the config's loggers are all there are"
    printed = capsys.readouterr().err
    assert "KeyError: 'no such curve'" in printed and "logger Fails, iteration 2" in printed
    assert "the run failed after iteration 2" in printed


def test_a_full_disk_ends_the_run_and_says_so(tmp_path, capsys, monkeypatch):
    algorithm = Scripted(PPOConfig().stopping(training_iteration=5))
    folder = RunFolder.create(tmp_path)
    run = TrainingRun(algorithm, folder, "scripted", loggers=[Fails(3, OSError(28, "No space left on device"))])
    assert run.run() == FAILED
    assert algorithm.saved == ["000003"]
    printed = capsys.readouterr().err
    assert printed.count("No space left on device") == 2, "the system's error, and the one that names the logger"
    assert "free some space" in printed and "go on with: epibatch train --resume" in printed


def test_loggers_of_config_and_run_see_every_iteration(tmp_path):
    class Notes:
        def __init__(self):
            self.seen = []

        def log(self, results):
            self.seen.append(results["training_iteration"])

    mine, ours = Notes(), Notes()
    config = PPOConfig().reporting(loggers=["csv", mine]).stopping(training_iteration=3)
    folder = RunFolder.create(tmp_path)
    assert TrainingRun(Scripted(config), folder, "scripted", loggers=[ours]).run() == 0
    assert mine.seen == ours.seen == [1, 2, 3]
    assert len(folder.csv_path.read_text().splitlines()) == 4
    assert len(folder.rows()) == 3


def test_the_goal_needs_a_full_window(tmp_path, capsys):
    class OneEpisode(Scripted):
        def train(self):
            results = super().train()
            results["env_runners"]["num_episodes_lifetime"] = self.training_iteration
            return results

    config = PPOConfig().stopping(episode_return_mean=100).reporting(metrics_num_episodes_for_smoothing=4)
    algorithm = OneEpisode(config)
    assert TrainingRun(algorithm, RunFolder.create(tmp_path), "scripted").run() == 0
    assert algorithm.training_iteration == 4
    assert "mean return 400.0 over the last 4 episodes" in capsys.readouterr().out


def test_the_first_error_stays_if_saving_fails_too(tmp_path, capsys):
    class Broken(Scripted):
        def save_to_path(self, path, *, end_episodes):
            raise OSError("disk full")

        def stop(self):
            raise RuntimeError("closed already")

    algorithm = Broken(PPOConfig(), error=ZeroDivisionError("first"))
    assert TrainingRun(algorithm, RunFolder.create(tmp_path), "scripted").run() == 3
    printed = capsys.readouterr().err
    assert printed.index("first") < printed.index("could not be saved either: OSError: disk full")
    assert "closing the environments failed too: RuntimeError: closed already" in printed


@pytest.mark.parametrize(
    ("rules", "code", "words"),
    [
        ({"training_iteration": 2}, 0, ["the limit of 2 iterations is used up", "--set stop.training_iteration=..."]),
        ({"episode_return_mean": 900, "num_env_steps_sampled_lifetime": 2000}, 1, ["num_env_steps_sampled_lifetime"]),
        ({"episode_return_mean": 150}, 0, ["mean return 200.0", "--set stop.episode_return_mean=..."]),
    ],
)
def test_a_run_that_has_ended_trains_nothing(tmp_path, capsys, rules, code, words):
    algorithm = Scripted(PPOConfig())
    assert TrainingRun(algorithm, RunFolder.create(tmp_path), "scripted").run(2) == 0
    capsys.readouterr()
    again = Scripted(PPOConfig().stopping(**rules))
    assert TrainingRun(again, RunFolder(tmp_path), "scripted").run(5) == code
    assert (again.training_iteration, again.saved, again.stopped) == (0, [], True)
    printed = capsys.readouterr().out
    assert printed.startswith("nothing to train: ")
    assert [word for word in words if word not in printed] == []


@pytest.mark.parametrize("begin", ["start", "resume"])
def test_a_run_that_cannot_begin_closes_its_environments(tmp_path, monkeypatch, begin):
    file = tmp_path / "config.yaml"
    file.write_text("algorithm: ppo\nenvironment: {env: CartPole-v1}\n")
    if begin == "resume":  # what stands there is the state of something else
        save_state(tmp_path / "checkpoints" / "000001", {"weights": np.zeros(2**18)})
    closed = []
    monkeypatch.setattr(Algorithm, "stop", lambda algorithm: closed.append(algorithm.env_runner.env))
    with pytest.raises(EpibatchError):  # a run's new folder must be empty
        TrainingRun.start(file, tmp_path) if begin == "start" else TrainingRun.resume(tmp_path)
    assert len(closed) == 1
    closed[0].close()
