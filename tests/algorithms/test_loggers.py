"""Loggers: what they write, how they go on, what happens when one fails."""

from __future__ import annotations

import csv
import json
import subprocess
import sys

import pytest
import torch.utils.tensorboard as torch_tensorboard

from epibatch.algorithms.loggers import LOGGERS, CSVLogger, JSONLLogger, Logger, Loggers, TensorBoardLogger, make_logger
from epibatch.algorithms.results import flat_metrics
from epibatch.algorithms.settings import LOGGER_NAMES
from epibatch.core.errors import ConfigError, LoggerError, MissingExtraError, StorageError


def results(iteration, mean=10.0, **more):
    return {
        "env_runners": {"episode_return_mean": mean},
        "num_env_steps_sampled_lifetime": 100 * iteration,
        "training_iteration": iteration,
        **more,
    }


def read_csv(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def read_jsonl(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


class Notes:
    """A logger that remembers what it was told."""

    def __init__(self, error=None):
        self.error = error
        self.seen = []

    def log(self, results):
        if self.error:
            raise self.error
        self.seen.append(results["training_iteration"])


class AllNotes(Notes):
    def resume(self, rows):
        self.seen.append([row["training_iteration"] for row in rows])

    def close(self):
        self.seen.append("closed")


def test_one_row_per_iteration_in_both_files(tmp_path):
    jsonl, table = JSONLLogger(tmp_path / "m.jsonl"), CSVLogger(tmp_path / "m.csv")
    for iteration in (1, 2):
        jsonl.log(results(iteration, learners={"default_policy": {"loss": 0.5}}))
        table.log(results(iteration, learners={"default_policy": {"loss": 0.5}}))
    rows = read_jsonl(jsonl.path)
    assert rows == [flat_metrics(results(n, learners={"default_policy": {"loss": 0.5}})) for n in (1, 2)]
    assert read_csv(table.path) == [{key: str(value) for key, value in row.items()} for row in rows]


def test_new_metrics_add_columns(tmp_path):
    logger = CSVLogger(tmp_path / "m.csv")
    logger.log(results(1))
    logger.log(results(2, learners={"loss": 0.5}))
    logger.log(results(3))
    assert [row["learners/loss"] for row in read_csv(logger.path)] == ["", "0.5", ""]
    assert [row["training_iteration"] for row in read_csv(logger.path)] == ["1", "2", "3"]


def test_the_csv_begins_with_what_one_looks_for(tmp_path):
    logger = CSVLogger(tmp_path / "m.csv")
    logger.log({"timers": {"sample": 1}, "num_env_steps_sampled_lifetime": 100, "training_iteration": 1})
    logger.log({"timers": {"sample": 1, "learn": 2}, **results(2)})
    expected = ["training_iteration", "num_env_steps_sampled_lifetime", "env_runners/episode_return_mean"]
    assert list(read_csv(logger.path)[0]) == [*expected, "timers/sample", "timers/learn"]


@pytest.mark.parametrize("keep", [0, 2])
def test_going_on_keeps_the_rows_up_to_the_checkpoint(tmp_path, keep):
    rows = [flat_metrics(results(iteration, late=1.0)) for iteration in (1, 2, 3)]
    for logger in (JSONLLogger(tmp_path / "m.jsonl"), CSVLogger(tmp_path / "m.csv")):
        for iteration in (1, 2, 3):
            logger.log(results(iteration, late=1.0))
        with logger.path.open("a") as file:
            file.write('4,"half')
        again = type(logger)(logger.path)
        again.resume(rows[:keep])
        assert again.path.exists() == (keep > 0)
        again.log(results(keep + 1, mean=99.0))
    expected = [str(iteration) for iteration in range(1, keep + 2)]
    assert [row["training_iteration"] for row in read_csv(tmp_path / "m.csv")] == expected
    assert [str(row["training_iteration"]) for row in read_jsonl(tmp_path / "m.jsonl")] == expected
    assert read_csv(tmp_path / "m.csv")[-1]["env_runners/episode_return_mean"] == "99.0"


def scalars(folder, name):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_tensorboard_shows_numbers_over_steps(tmp_path):
    logger = TensorBoardLogger(tmp_path / "tensorboard")
    for iteration in (1, 2, 3):
        logger.log(results(iteration, mean=float(iteration), text="no number", empty=None))
    logger.close()
    assert scalars(logger.path, "env_runners/episode_return_mean") == [(100, 1.0), (200, 2.0), (300, 3.0)]
    again = TensorBoardLogger(logger.path)
    again.resume([flat_metrics(results(1))])
    again.log(results(2, mean=7.0))
    again.close()
    assert scalars(logger.path, "env_runners/episode_return_mean") == [(100, 1.0), (200, 7.0)]


def test_a_tensorboard_that_logged_nothing_leaves_nothing(tmp_path):
    TensorBoardLogger(tmp_path / "tensorboard").close()
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra_the_command_is_named(tmp_path, monkeypatch):
    assert torch_tensorboard
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard")
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # what importing it then raises is ImportError
    with pytest.raises(MissingExtraError, match=r"logger 'tensorboard'(.|\n)*pip install 'epibatch\[tensorboard\]'"):
        make_logger("tensorboard", tmp_path)
    with pytest.raises(ImportError):
        TensorBoardLogger(tmp_path)


def test_names(tmp_path):
    assert tuple(LOGGERS) == LOGGER_NAMES
    paths = [make_logger(name, tmp_path).path.name for name in LOGGER_NAMES]
    assert paths == ["metrics.jsonl", "metrics.csv", "tensorboard"]
    notes = Notes()
    assert make_logger(notes, tmp_path) is notes
    assert isinstance(notes, Logger)


@pytest.mark.parametrize(("logger", "words"), [("cvs", "did you mean 'csv'"), (5, "log"), (Notes, "log")])
def test_what_is_no_logger(tmp_path, logger, words):
    with pytest.raises(ConfigError, match=words):
        make_logger(logger, tmp_path)


def test_optional_methods_are_called_where_they_are():
    plain, full = Notes(), AllNotes()
    loggers = Loggers([plain, full])
    loggers.resume([{"training_iteration": 1}])
    loggers.log({"training_iteration": 2})
    loggers.close()
    loggers.close()
    assert plain.seen == [2]
    assert full.seen == [[1], 2, "closed"]


@pytest.mark.parametrize(
    ("error", "named"),
    [(ZeroDivisionError("mine"), LoggerError), (OSError(28, "No space left on device"), StorageError)],
)
def test_a_failing_logger_is_named_and_the_others_are_served(error, named):
    before, behind = Notes(), Notes()
    with pytest.raises(named, match=rf"logger Notes, iteration 7\n(.|\n)*{type(error).__name__}: ") as caught:
        Loggers([before, Notes(error), behind]).log({"training_iteration": 7})
    assert caught.value.__cause__ is error
    assert before.seen == behind.seen == [7]


def test_importing_loggers_loads_no_torch():
    code = "import sys, epibatch.algorithms.loggers; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_logger_may_change_what_it_is_given():
    class Clears(Notes):
        def log(self, results):
            results["env_runners"].clear()
            results.clear()

    notes, given = Notes(), results(1)
    Loggers([Clears(), notes]).log(given)
    assert notes.seen == [1] and given == results(1)
