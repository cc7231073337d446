"""How runs end, what they print, log and save; most with an algorithm that follows a script."""

from __future__ import annotations

import csv
import json
import logging
import math
import os
import signal
import subprocess
import sys
import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch.utils.tensorboard as torch_tensorboard
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from epibatch.algorithms import Algorithm, Logger, PPOConfig, RunFolder, TrainingRun
from epibatch.algorithms.run import error_reports
from epibatch.algorithms.run.training_progress import summary
from epibatch.core import save_state
from epibatch.core.errors import ConfigError, EpibatchError, EpibatchWarning, MissingExtraError, RunnerError
from epibatch.core.registry import env_creator

FAILED = 3


class Scripted:
    """An algorithm whose mean return grows by 100 in every iteration of 1,000 steps.

    Args:
        config: Its config.
        more: Results that replace those, or a function of the iteration that returns them; an error is raised.
    """

    def __init__(self, config, more=None):
        self.config, self.more = config, more if callable(more) else lambda iteration: more or {}
        self.training_iteration = 0
        self.saved, self.stopped = [], False
        self.episode_log = None

    def train(self):
        number = self.training_iteration + 1
        more = self.more(number)
        self.training_iteration = number
        runner = {"episode_return_mean": 100.0 * number, "num_episodes_lifetime": 500, "num_env_steps_sampled": 1000}
        return {
            "env_runners": runner,
            "learners": {"default_policy": {"policy_loss": 0.1, "vf_loss": 5.0, "entropy": 0.69, "other": 1}},
            "training_iteration": number,
            "num_env_steps_sampled_lifetime": 1000 * number,
            "time_this_iter_s": 0.1,
            "time_total_s": 0.1 * number,
            **more,
        }

    def save_to_path(self, path, *, end_episodes):
        assert end_episodes == self.config.end_episodes
        self.saved.append(path.name)
        save_state(path, {"iteration": self.training_iteration})

    def restore_from_path(self, path):
        self.training_iteration = int(path.name)

    def stop(self):
        self.stopped = True


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    """Drawing costs more than the rest of a scripted run."""

    def draw(folder, *_, **options):
        folder.curve_path.touch()
        return folder.curve_path

    monkeypatch.setattr(RunFolder, "draw_learning_curve", draw)


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create(tmp_path)


def config(**stop):
    return PPOConfig().environment("CartPole-v1").stopping(**stop)


def run_of(algorithm, folder, iterations=None, **options):
    return TrainingRun(algorithm, folder, "scripted", **options).run(iterations)


def runner(mean, **more):
    return {"env_runners": {"episode_return_mean": mean, "num_episodes_lifetime": 200, **more}}


def faults(runners, healthy, restarts):
    counts = {"num_env_runners": runners, "num_healthy_env_runners": healthy, "num_env_runner_restarts": restarts}
    return {"fault_tolerance": counts}


def measured(mean):
    return {"evaluation": {"env_runners": {"episode_return_mean": mean, "num_episodes": 10}}}


# --------------------------------------------------------------------------------------------- how runs end


@pytest.mark.parametrize(
    ("rules", "iterations", "code", "trained", "words"),
    [
        ({"episode_return_mean": 300}, None, 0, 3, "solved: mean return 300.0 over the last 100 episodes, after 3,000"),
        ({"episode_return_mean": 900, "num_env_steps_sampled_lifetime": 2000}, None, 1, 2, "not solved: the limit of"),
        ({"num_env_steps_sampled_lifetime": 2000}, None, 0, 2, "finished: the limit of 2,000 env steps is used up"),
        ({"training_iteration": 2}, None, 0, 2, "finished: the limit of 2 iterations"),
        ({"episode_return_mean": 900, "training_iteration": 2}, 2, 1, 2, "--set stop.training_iteration=..."),
        ({"episode_return_mean": 900}, 1, 0, 1, "finished: --iterations 1 done, after 1,000 env steps and 0.1 s"),
    ],
)
def test_how_runs_end(folder, capsys, rules, iterations, code, trained, words):
    algorithm = Scripted(config(**rules))
    assert run_of(algorithm, folder, iterations) == code
    assert (algorithm.training_iteration, algorithm.saved) == (trained, [f"{trained:06d}"])
    assert algorithm.stopped and len(folder.rows()) == trained
    printed = capsys.readouterr().out
    for text in (words, f"curve:      {folder.curve_path}", f"checkpoint: {folder.checkpoints.path_of(trained)}"):
        assert text in printed


CODES = {"solved": 0, "not solved": 1, "finished: the limit": 0, "finished: --iterations 1 done": 0}
RUNS_ON = "finished: --iterations 1 done"


@pytest.mark.parametrize(
    ("rules", "results", "end"),
    [
        ({}, {}, RUNS_ON),
        ({"episode_return_mean": 475}, runner(474.9), RUNS_ON),
        ({"episode_return_mean": 475}, runner(475.0), "solved"),
        ({"episode_return_mean": 475}, runner(500.0, num_episodes_lifetime=99), RUNS_ON),
        ({"episode_return_mean": 475}, runner(float("nan")), RUNS_ON),
        ({"episode_return_mean": 475}, runner(None), RUNS_ON),
        ({"episode_return_mean": -100}, runner(-90.0), "solved"),
        ({"episode_return_mean": 475, "num_env_steps_sampled_lifetime": 1000}, {}, "not solved"),
        ({"episode_return_mean": 475, "num_env_steps_sampled_lifetime": 1000}, runner(480.0), "solved"),
        ({"num_env_steps_sampled_lifetime": 1001}, {}, RUNS_ON),
        ({"evaluation_return_mean": 475}, runner(500.0), RUNS_ON),
        ({"evaluation_return_mean": 475}, runner(500.0) | measured(474.0), RUNS_ON),
        ({"evaluation_return_mean": 475}, runner(500.0) | measured(float("nan")), RUNS_ON),
        ({"evaluation_return_mean": 475}, runner(0, num_episodes_lifetime=3) | measured(475.0), "solved"),
        ({"evaluation_return_mean": 475, "episode_return_mean": 475}, measured(480.0), "solved"),
        ({"evaluation_return_mean": 475, "training_iteration": 1}, measured(1.0), "not solved"),
        ({"training_iteration": 1}, {}, "finished: the limit"),
        ({"episode_return_mean": 475}, runner(np.float32(500)), "solved"),
        ({"time_total_s": 0.09}, {}, "finished: the limit"),
        ({"results": {"learners/a/b": 2}}, {"learners": {"a": {"b": 1.9}}}, RUNS_ON),
        ({"results": {"learners/a/b": 2}}, {"learners": {"a": {"b": 2.0}}}, "solved"),
        ({"results": {"learners/a/b": 2, "training_iteration": 1}}, {}, "solved"),
        ({"results": {"nowhere": 2}, "training_iteration": 1}, {}, "not solved"),
        ({"results": {"nowhere": 2}}, {"nowhere": float("nan")}, RUNS_ON),
    ],
)
def test_goals_and_limits(folder, capsys, rules, results, end):
    settings = config(**rules).evaluation(evaluation_interval=1)
    assert run_of(Scripted(settings, results), folder, 1) == CODES[end]
    assert f"\n{end}" in capsys.readouterr().out


def test_reasons_name_the_evaluation(folder, capsys):
    run_of(Scripted(config(evaluation_return_mean=90).evaluation(evaluation_interval=1), measured(100)), folder)
    assert "solved: mean return 100.0 over 10 episodes of evaluation, after" in capsys.readouterr().out


def test_the_goal_needs_a_full_window(folder, capsys):
    settings = config(episode_return_mean=100).reporting(metrics_num_episodes_for_smoothing=4)
    algorithm = Scripted(settings, lambda number: runner(100.0 * number, num_episodes_lifetime=number))
    assert run_of(algorithm, folder) == 0 and algorithm.training_iteration == 4
    assert "mean return 400.0 over the last 4 episodes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "saved", "kept"),
    [
        ({"checkpoint_frequency": 2, "num_to_keep": 1}, [2, 4, 5], [5]),
        ({"checkpoint_frequency": 2, "num_to_keep": 2}, [2, 4, 5], [5, 4]),
        ({"checkpoint_interval_s": 1e-9, "num_to_keep": None}, [1, 2, 3, 4, 5], [5, 4, 3, 2, 1]),
        ({"checkpoint_interval_s": None}, [5], [5]),
    ],
)
def test_saves_on_the_way(folder, settings, saved, kept):
    algorithm = Scripted(config(training_iteration=5).checkpointing(**settings))
    assert run_of(algorithm, folder) == 0
    assert algorithm.saved == [f"{iteration:06d}" for iteration in saved]
    assert folder.checkpoints.iterations() == kept


@pytest.mark.parametrize(
    ("rules", "code", "words"),
    [
        ({"training_iteration": 2}, 0, ["the limit of 2 iterations is used up", "--set stop.training_iteration=..."]),
        ({"episode_return_mean": 900, "num_env_steps_sampled_lifetime": 2000}, 1, ["num_env_steps_sampled_lifetime"]),
        ({"episode_return_mean": 150}, 0, ["mean return 200.0", "--set stop.episode_return_mean=..."]),
    ],
)
def test_a_run_that_has_ended_trains_nothing(folder, capsys, rules, code, words):
    assert run_of(Scripted(config()), folder, 2) == 0
    capsys.readouterr()
    again = Scripted(config(**rules))
    assert run_of(again, folder, 5) == code
    assert (again.training_iteration, again.saved, again.stopped) == (0, [], True)
    printed = capsys.readouterr().out
    assert printed.startswith("nothing to train: ") and all(word in printed for word in words)
    folder.curve_path.unlink()  # as if the run had been killed before it was drawn
    assert run_of(Scripted(config(**rules)), folder, 5) == code
    assert folder.curve_path.exists()


@pytest.mark.parametrize(
    "row",
    [
        {"env_runners/episode_return_mean": "500"},
        {"env_runners": 500},
        {"evaluation": "x"},
        {"evaluation/env_runners": [500]},
    ],
)
def test_what_is_no_number_in_the_rows_of_a_file_reaches_no_goal(folder, row):
    counts = {"training_iteration": 1, "num_env_steps_sampled_lifetime": 10, "time_total_s": 0.5}
    folder.jsonl_path.write_text(json.dumps({**counts, **row}) + "\n")
    settings = config(episode_return_mean=475, evaluation_return_mean=475).evaluation(evaluation_interval=1)
    algorithm = Scripted(settings)
    assert run_of(algorithm, folder, 1) == 0 and algorithm.training_iteration == 1


# ------------------------------------------------------------------------------------- signals and errors


def send(number, *, to_iteration=2, times=1):
    """Results of a script in whose iteration the process gets a signal."""

    def more(iteration):
        for _ in range(times if iteration == to_iteration else 0):
            os.kill(os.getpid(), number)
        return {}

    return more


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [
        (signal.SIGINT, 130, "Ctrl-C"),
        (signal.SIGTERM, 143, "SIGTERM"),
        *((getattr(signal, name), 129, name) for name in ("SIGHUP",) if hasattr(signal, name)),
    ],
)
def test_signals_end_after_the_iteration_and_save(folder, tmp_path, capsys, number, code, word):
    algorithm, before = Scripted(config(), send(number)), signal.getsignal(number)
    if before is signal.SIG_IGN:
        pytest.skip("the tests were started with nohup")
    assert run_of(algorithm, folder) == code
    assert signal.getsignal(number) is before
    assert (algorithm.training_iteration, algorithm.saved) == (2, ["000002"])
    printed = capsys.readouterr().out
    assert f"{word}: finishing this iteration, then saving" in printed and f"--resume {tmp_path}" in printed


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no terminals that hang up")
def test_a_terminal_that_closes_may_say_so_twice_and_nohup_stays(folder, capsys):
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        pytest.skip("the tests were started with nohup")
    algorithm = Scripted(config(), send(signal.SIGHUP, times=2))
    assert run_of(algorithm, folder) == 129
    assert algorithm.saved == ["000002"] and "finishing this iteration" in capsys.readouterr().out
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run_of(Scripted(config(), send(signal.SIGHUP, to_iteration=4)), folder, 2) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_first_checkpoint_is_written_early(folder, monkeypatch):
    """With 4 seconds per iteration and a checkpoint per minute: after 12 seconds, and at the end."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    def passed(iteration):
        now[0] += 4.0
        return {}

    algorithm = Scripted(config(training_iteration=6), passed)
    assert run_of(algorithm, folder) == 0
    assert algorithm.saved == ["000003", "000006"]


def test_a_second_signal_ends_at_once_without_saving(folder, capsys):
    algorithm = Scripted(config(), send(signal.SIGTERM, to_iteration=1, times=2))
    assert run_of(algorithm, folder) == 143
    assert (algorithm.saved, algorithm.stopped) == ([], True)
    assert "what was trained since the beginning is not saved" in capsys.readouterr().out


def test_an_error_after_a_signal_saves_and_exits_as_the_signal(folder, capsys):
    def more(iteration):
        if iteration == 2:
            os.kill(os.getpid(), signal.SIGINT)
            raise RunnerError("all runners were lost")
        return {}

    algorithm = Scripted(config(), more)
    assert run_of(algorithm, folder) == 130
    assert algorithm.saved == ["000001"] and "all runners were lost" in capsys.readouterr().err


def fail_in_third(iteration):
    if iteration == 3:
        raise ZeroDivisionError("in the environment")
    return {}


def test_an_error_saves_what_there_is(folder, tmp_path, capsys):
    settings = PPOConfig(allow_imports=True).environment("CartPole-v1")
    algorithm = Scripted(settings, fail_in_third)
    assert run_of(algorithm, folder) == FAILED
    assert (algorithm.saved, algorithm.stopped) == (["000002"], True)
    printed = capsys.readouterr().err
    assert "ZeroDivisionError: in the environment\n\nthe run failed in iteration 3\n" in printed
    assert f"checkpoint: {folder.checkpoints.path_of(2)} (after 2 iterations)" in printed
    assert f"go on with: epibatch train --resume {tmp_path} --allow-imports" in printed
    assert "in run\n" not in printed, "the traceback begins with the user's code"


def test_a_run_that_fails_at_once_leaves_no_tensorboard(folder):
    settings = config().reporting(loggers=["tensorboard"])
    assert run_of(Scripted(settings, lambda number: fail_in_third(3)), folder) == FAILED
    assert not (folder.path / "tensorboard").exists()


def test_the_first_error_stays_if_saving_fails_too(folder, capsys):
    class Broken(Scripted):
        def save_to_path(self, path, *, end_episodes):
            raise OSError("disk full")

        def stop(self):
            raise RuntimeError("closed already")

    assert run_of(Broken(config(), fail_in_third), folder) == FAILED
    printed = capsys.readouterr().err
    assert printed.index("in the environment") < printed.index("could not be saved either: OSError: disk full")
    assert "closing the environments failed too: RuntimeError: closed already" in printed


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


def caught(function):
    try:
        function()
    except Exception as error:
        error.__traceback__ = error.__traceback__.tb_next  # without the frame of `caught`, which is this file's
        return error
    raise AssertionError("no error")


def users_mistake():
    raise ValueError("boom")


def with_cause():
    try:
        users_mistake()
    except ValueError as error:
        raise RunnerError("resetting failed") from error


def below_frameworks_code():
    exec("def call(): function()", space := {"__name__": "epibatch.somewhere", "function": users_mistake})
    space["call"]()


def test_reports_begin_with_the_users_code():
    report = error_reports.error_report(caught(below_frameworks_code).with_traceback(None))
    assert report.endswith("ValueError: boom")
    error = caught(below_frameworks_code)
    error.__traceback__ = error.__traceback__.tb_next  # the framework's frame is the first
    report = error_reports.error_report(error)
    assert report.startswith("Traceback (from your code on):\n  File ") and report.endswith("ValueError: boom")
    assert '"<string>"' not in report, "a frame before it"
    report = error_reports.error_report(caught(with_cause))
    assert report.index("ValueError: boom") < report.index("which led to this error") < report.index("resetting failed")


def test_reports_of_named_errors_and_of_other_libraries():
    error = ConfigError("where\n  expected: a")
    assert error_reports.error_report(error) == "error: where\n  expected: a"
    report = error_reports.error_report(caught(lambda: env_creator("nowhere")))
    assert "test_training_run.py" in report and "no such environment" in report
    error = caught(lambda: gym.spaces.Discrete(-1))
    error.__traceback__ = error.__traceback__.tb_next
    report = error_reports.error_report(error)
    assert report.startswith("Traceback (most recent call last):\n") and "gymnasium" in report


# ------------------------------------------------------------------------------------------------ progress


@pytest.mark.parametrize(
    ("rules", "results", "line"),
    [
        ({"num_env_steps_sampled_lifetime": 150_000}, {}, "r | 1,000/150,000 steps | return 100.0 | "),
        ({"training_iteration": 9}, {}, "r | 1/9 iterations | return 100.0 | 10,000 steps/s | "),
        ({}, {"time_this_iter_s": 0}, "r | 1,000 steps | return 100.0 | loss policy 0.1, value 5, entropy 0.69 | "),
        ({}, measured(7), "r | 1,000 steps | return 100.0 | evaluation 7.0 | "),
        ({}, {"evaluation": {"a": measured(7)["evaluation"]}}, "r | 1,000 steps | return 100.0 | evaluation a 7.0 | "),
        ({}, faults(4, 4, 0), "r | 1,000 steps | return 100.0 | runners 4/4 | 10,000 steps/s | "),
        ({}, faults(4, 3, 1), "r | 1,000 steps | return 100.0 | runners 3/4, 1 restart | 10,000 steps/s | "),
        (
            {},
            {"fault_tolerance": {"num_learner_restarts": 2}},
            "r | 1,000 steps | return 100.0 | 2 restarts | ",
        ),
    ],
)
def test_plain_lines_where_there_is_no_terminal(folder, capsys, rules, results, line):
    TrainingRun(Scripted(config(**rules), results), folder, "r").run(1)
    assert capsys.readouterr().out.startswith(line)


def test_a_line_of_a_run_from_recorded_episodes_says_how_many_rows_it_learned():
    sampled, learned = {"num_env_steps_sampled": 0, "episode_return_mean": math.nan}, {"num_rows": 3000}
    results = {"env_runners": sampled, "learners": {"__all_modules__": learned}, "time_this_iter_s": 2.0}
    assert summary({**results, **measured(7)}) == "learned 1,500 rows/s | evaluation 7.0"


@pytest.mark.parametrize("mean", [None, float("nan")])
def test_a_line_before_the_first_episode_ends(folder, capsys, mean):
    run_of(Scripted(config(), runner(mean)), folder, 1)
    assert "no episode done yet" in capsys.readouterr().out


def test_runners_and_restarts_are_shown_rather_than_the_time_left(folder, capsys):
    more = faults(4, 4, 1) | {"time_this_iter_s": 1.0}
    TrainingRun(Scripted(config(num_env_steps_sampled_lifetime=40_000), more), folder, "r").run(10)
    lines = [line for line in capsys.readouterr().out.splitlines() if " steps | " in line]
    assert len(lines) == 10 and max(map(len, lines)) <= 80 and " left" in lines[0]
    assert "| runners 4/4, 1 restart | " in lines[9] and " left" not in lines[9]


@pytest.mark.parametrize(("columns", "left"), [(80, False), (90, True)])
def test_a_narrow_terminal_shows_runners_and_restarts_rather_than_the_time_left(
    folder, capsys, monkeypatch, columns, left
):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    more = faults(4, 4, 1) | {"time_this_iter_s": 1.0}
    TrainingRun(Scripted(config(num_env_steps_sampled_lifetime=40_000), more), folder, "r").run(1)
    printed = capsys.readouterr().out
    assert "return 100.0 | runners 4/4, 1 restart" in printed and (" left" in printed) is left


def test_a_line_fits_a_narrow_terminal(folder, capsys):
    algorithm = Scripted(config(num_env_steps_sampled_lifetime=100_000_000), measured(-1234.5))
    TrainingRun(algorithm, folder, "a title that is longer than anybody reads").run(3)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("a title")]
    assert len(lines) == 3 and all(len(line) <= 80 and "return " in line for line in lines)


def test_a_live_bar_on_a_terminal(folder, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    run_of(Scripted(config(num_env_steps_sampled_lifetime=10_000), send(signal.SIGINT)), folder)
    printed = capsys.readouterr().out
    assert "2000/10000" in printed and "return 200.0" in printed and "finishing this iteration" in printed


def test_what_is_left_is_at_the_speed_of_this_run(folder, capsys, monkeypatch):
    """Two limits: 1,000 steps in 10 s leave 80 s for 8,000 more; 1 of 6 iterations in 10 s leaves 40 s."""
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])

    def more(number):
        clock[0] += 10.0 if number > 1 else 0.0
        return {"time_this_iter_s": 10.0}

    run_of(Scripted(config(num_env_steps_sampled_lifetime=10_000, training_iteration=6), more), folder, 2)
    ends = [line.rsplit(" | ", 1)[1] for line in capsys.readouterr().out.splitlines() if line.startswith("scripted")]
    assert ends == ["0:10, 0:50 left", "0:20, 0:40 left"]


# ------------------------------------------------------------------------------------------------- loggers


def read_csv(folder):
    with folder.csv_path.open(newline="") as file:
        return list(csv.DictReader(file))


def scalars(folder, name):
    events = EventAccumulator(str(folder.path / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_results_become_one_flat_row_in_each_file(folder):
    values = {"b": np.float32(0.5), "c": {"d": True}, "text": "x", "empty": None, "nan": float("nan"), "g": np.ones(3)}
    late = lambda number: {"late": {"loss": 0.5}, "own": values} if number == 2 else {}  # noqa: E731
    settings = config().reporting(loggers=["csv", "tensorboard"])
    assert run_of(Scripted(settings, late), folder, 3) == 0
    rows = [json.loads(line) for line in folder.jsonl_path.read_text().splitlines()]
    assert [row["training_iteration"] for row in rows] == [1, 2, 3] and rows == folder.rows()
    own = {key: value for key, value in rows[1].items() if key.startswith("own/")}
    assert own == {"own/b": 0.5, "own/c/d": True, "own/text": "x", "own/empty": None, "own/nan": None}
    table = read_csv(folder)
    assert [row["late/loss"] for row in table] == ["", "0.5", ""], "a new metric adds a column"
    for row, line in zip(rows, table):
        assert {key: value for key, value in line.items() if value} == {
            key: str(value) for key, value in row.items() if value is not None
        }
    first = ["training_iteration", "num_env_steps_sampled_lifetime", "env_runners/episode_return_mean"]
    assert list(table[0])[:3] == first
    assert scalars(folder, first[2]) == [(1000, 100.0), (2000, 200.0), (3000, 300.0)]


@pytest.mark.parametrize("newest", [0, 2])
def test_a_resumed_run_keeps_the_rows_up_to_its_checkpoint(folder, tmp_path, monkeypatch, newest):
    settings = config().reporting(loggers=["csv", "tensorboard"])
    settings.checkpointing(checkpoint_frequency=2 if newest else 0)
    run_of(Scripted(settings), folder, 3)
    (folder.checkpoints.path_of(3) / "COMPLETE").unlink()
    if newest == 0:
        folder.checkpoints.path_of(3).rename(tmp_path / "checkpoints" / "elsewhere")
    for path in (folder.csv_path, folder.jsonl_path):
        with path.open("a") as file:
            file.write('4,"half')
    monkeypatch.setattr(PPOConfig, "build_algo", lambda config: Scripted(config, runner(7.0)))
    assert TrainingRun.resume(tmp_path).run(1) == 0
    expected = [100.0 * number for number in range(1, newest + 1)] + [7.0]
    assert [row["env_runners/episode_return_mean"] for row in folder.rows()] == expected
    assert [float(row["env_runners/episode_return_mean"]) for row in read_csv(folder)] == expected
    found = scalars(folder, "env_runners/episode_return_mean")
    assert found == [(1000 * number, mean) for number, mean in enumerate(expected, 1)]


def test_without_the_extra_the_command_is_named(folder, monkeypatch):
    assert torch_tensorboard
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard")
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # what importing it then raises is ImportError
    with pytest.raises(MissingExtraError, match=r"logger 'tensorboard'(.|\n)*pip install 'epibatch\[tensorboard\]'"):
        TrainingRun(Scripted(config().reporting(loggers=["tensorboard"])), folder, "scripted")


class Notes:
    """A logger that notes what it was told, spoils it, and may fail."""

    def __init__(self, error=None, iteration=None):
        self.error, self.iteration, self.seen = error, iteration, []

    def log(self, results):
        if results["training_iteration"] == self.iteration:
            raise self.error
        self.seen.append(results["training_iteration"])
        results["env_runners"].clear()
        results.clear()


class ClosedNotes(Notes):
    def close(self):
        self.seen.append("closed")


@pytest.mark.parametrize(("logger", "words"), [("cvs", "did you mean 'csv'"), (5, "log"), (Notes, "log")])
def test_what_is_no_logger(folder, logger, words):
    with pytest.raises(ConfigError, match=words):
        TrainingRun(Scripted(config()), folder, "scripted", loggers=[logger])
    with pytest.raises(ConfigError, match=r"reporting\.loggers"):
        config().reporting(loggers=[logger])


def test_loggers_of_config_and_run_see_every_iteration(folder):
    mine, ours = Notes(), ClosedNotes()
    assert isinstance(mine, Logger)
    settings = config(training_iteration=3).reporting(loggers=["csv", mine])
    assert run_of(Scripted(settings), folder, loggers=[ours]) == 0
    assert mine.seen == [1, 2, 3] and ours.seen == [1, 2, 3, "closed"]
    assert len(read_csv(folder)) == len(folder.rows()) == 3


@pytest.mark.parametrize(
    ("error", "named", "count"),
    [
        (KeyError("no such curve"), "KeyError: 'no such curve'", 1),
        (OSError(28, "No space left on device"), "free some space", 1),
    ],
)
def test_a_failing_logger_ends_the_run_after_its_iteration(folder, capsys, error, named, count):
    before, failing, after = Notes(), ClosedNotes(error, 2), Notes()
    algorithm = Scripted(config(training_iteration=5).reporting(loggers=[before, failing, after]))
    assert run_of(algorithm, folder) == FAILED
    assert (algorithm.training_iteration, algorithm.saved) == (2, ["000002"])
    assert (before.seen, failing.seen, after.seen) == ([1, 2], [1, "closed"], [1, 2]), "the others are served"
    assert [row["training_iteration"] for row in folder.rows()] == [1, 2]
    assert not folder.csv_path.exists(), "the config's loggers are all there are"
    printed = capsys.readouterr().err
    assert printed.count(named) >= count and "iteration 2" in printed and "the run failed after iteration 2" in printed
    assert "ClosedNotes" in printed and "go on with: epibatch train --resume" in printed


@pytest.mark.parametrize("fails", [False, True])
def test_warnings_are_in_the_folder_and_in_the_last_lines(folder, capsys, fails):
    def warn(iteration):
        if iteration == 1:
            warnings.warn(EpibatchWarning("a piece", expected="one", found="two", do="mend it"), stacklevel=1)
            logging.getLogger("epibatch.test").warning("line %d is damaged", 7)
        if fails and iteration == 2:
            raise RunnerError("runner", expected="steps", found="none", do="look")
        return {}

    with pytest.warns(EpibatchWarning, match="a piece"):
        run_of(Scripted(config(), warn), folder, iterations=2)
    text = (folder.path / "warnings.log").read_text(encoding="utf-8")
    assert "EpibatchWarning: a piece\n  expected: one\n  found:    two\n  do:       mend it\n" in text
    assert "epibatch.test: line 7 is damaged\n" in text
    printed = capsys.readouterr()
    lines = (printed.err if fails else printed.out).splitlines()
    at = lines.index(f"warnings:   {folder.path / 'warnings.log'}")
    assert lines[at + 1 : at + 3] == ["  a piece: two", "  line 7 is damaged"] and len(lines) - at < 6


@pytest.mark.slow
def test_messages_of_the_log_are_shown_as_without_a_run(tmp_path):
    """In a process of its own: handlers of pytest take the place of those that Python has where none is set."""
    (tmp_path / "mine.py").write_text(
        "import logging\ndef note(**_): logging.getLogger('epibatch.test').warning('a line of the log')\n"
    )
    (tmp_path / "run.yaml").write_text(
        "algorithm: ppo\nenvironment: {env: CartPole-v1}\ntraining: {train_batch_size: 32, minibatch_size: 32}\n"
        "callbacks: {on_train_result: 'mine:note'}\nstop: {training_iteration: 1}\n"
    )
    command = [sys.executable, "-m", "epibatch", "train", "run.yaml", "--run", "run", "--allow-imports"]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr.count("a line of the log") == 1 and answer.stdout.count("a line of the log") == 1
    assert "a line of the log" in (tmp_path / "run/warnings.log").read_text(encoding="utf-8")


def test_a_run_without_warnings_has_no_file_of_them(folder, capsys):
    run_of(Scripted(config()), folder, iterations=1)
    assert not (folder.path / "warnings.log").exists() and "warnings:" not in capsys.readouterr().out
