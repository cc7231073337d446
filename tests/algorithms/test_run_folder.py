from __future__ import annotations

import errno
import json
import logging

import pytest

from epibatch.algorithms.loggers import JSONLLogger
from epibatch.algorithms.run_folder import RunFolder
from epibatch.core.errors import CheckpointError, ConfigError, StorageError


def results(iteration, mean=10.0, **more):
    return {
        "env_runners": {"episode_return_mean": mean},
        "num_env_steps_sampled_lifetime": 100 * iteration,
        "training_iteration": iteration,
        "time_total_s": 0.5 * iteration,
        **more,
    }


def test_used_folder_is_never_overwritten(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"a new or an empty folder\n.*never overwritten\n.*--resume"):
        RunFolder.create(tmp_path)


def test_a_run_that_was_killed_while_it_wrote_its_config_can_begin_again(tmp_path):
    (tmp_path / ".config.yaml.0123456789abcdef.writing").write_text("algor")
    (tmp_path / ".lock").write_text("process 1 on another")
    folder = RunFolder.create(tmp_path)
    folder.lock(new=True)
    folder.write_config("algorithm: ppo\n")
    folder.unlock()
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_folder_that_is_a_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(ConfigError, match="run folder"):
        RunFolder.create(path)


def test_opening_needs_a_config(tmp_path):
    with pytest.raises(CheckpointError, match="no such folder"):
        RunFolder.open_existing(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"no config\.yaml"):
        RunFolder.open_existing(tmp_path)
    (tmp_path / "COMPLETE").write_text("")
    with pytest.raises(CheckpointError, match="one above"):
        RunFolder.open_existing(tmp_path)
    (tmp_path / "config.yaml").write_text("")
    assert RunFolder.open_existing(tmp_path).path == tmp_path


def write_rows(folder, *iterations, rest=b""):
    folder.jsonl_path.write_bytes(b"".join(row(number, **{"learners/loss": 0.5}) for number in iterations) + rest)


def row(number, **values):
    counts = {"training_iteration": number, "num_env_steps_sampled_lifetime": 32 * number, "time_total_s": 0.5}
    return json.dumps({**counts, **values}).encode() + b"\n"


def test_last_results_are_nested_again(tmp_path):
    folder = RunFolder.create(tmp_path)
    assert folder.last_results() is None
    write_rows(folder, 1, 2)
    counts = {"training_iteration": 2, "num_env_steps_sampled_lifetime": 64, "time_total_s": 0.5}
    assert folder.last_results() == {**counts, "learners": {"loss": 0.5}}


def test_rows_up_to_a_checkpoint(tmp_path):
    folder = RunFolder.create(tmp_path)
    assert folder.rows_until(5) == []
    write_rows(folder, 1, 2, 3, rest=b'{"training_iteration": 4, "half')
    assert [row["training_iteration"] for row in folder.rows()] == [1, 2, 3]
    assert [row["training_iteration"] for row in folder.rows_until(2)] == [1, 2]


@pytest.mark.parametrize(
    "line",
    [
        b"\x00\x00",
        b"\xff{",
        b"[]",
        b"5",
        b"{}",
        b'{"training_iteration": 2}',
        row(2, training_iteration=None).strip(),
        row(2, training_iteration=True).strip(),
        row(2, num_env_steps_sampled_lifetime="64").strip(),
        row(2, time_total_s=None).strip(),
        b"[" * 99999,
    ],
)
def test_damaged_lines_are_left_out_and_counted(tmp_path, caplog, line):
    folder = RunFolder.create(tmp_path)
    write_rows(folder, 1, rest=line + b"\n" + row(2) + line + b"\n")
    with caplog.at_level(logging.WARNING, "epibatch"):
        assert [row["training_iteration"] for row in folder.rows_until(9)] == [1, 2]
    assert "metrics.jsonl: 2 damaged lines are left out, the first is line 2" in caplog.text


@pytest.mark.parametrize("means", [[], [None], [10.0], [10.0, None, 30.0]])
def test_learning_curve_is_a_picture(tmp_path, means):
    folder = RunFolder.create(tmp_path)
    logger = JSONLLogger(folder.jsonl_path)
    for iteration, mean in enumerate(means, 1):
        logger.log(results(iteration, mean))
    path = folder.draw_learning_curve("CartPole", goal=475)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_evaluations_are_in_the_learning_curve(tmp_path, monkeypatch):
    from matplotlib import pyplot

    folder, drawn = RunFolder.create(tmp_path), {}
    logger = JSONLLogger(folder.jsonl_path)
    for iteration, measured in enumerate((None, 20.0, None, 40.0), 1):
        evaluation = {} if measured is None else {"evaluation": {"env_runners": {"episode_return_mean": measured}}}
        logger.log({**results(iteration, 10.0), **evaluation})

    def close(figure):
        drawn.update({line.get_label(): line.get_ydata() for line in figure.axes[0].lines})

    monkeypatch.setattr(pyplot, "close", close)
    folder.draw_learning_curve("CartPole")
    assert list(drawn["evaluation"]) == [20.0, 40.0]
    assert list(drawn["last 100 episodes"]) == [10.0] * 4


def test_config_is_kept(tmp_path):
    folder = RunFolder.create(tmp_path)
    folder.write_config("a: 1\n")
    assert folder.config_path.read_text() == "a: 1\n"


def test_a_full_disk_is_a_named_error_and_keeps_what_was_there(tmp_path, monkeypatch):
    folder = RunFolder.create(tmp_path)
    folder.write_config("a: 1\n")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match=r"writing .*config.yaml\n(.|\n)*No space left"):
        folder.write_config("a: 2\n")
    with pytest.raises(StorageError, match=r"writing .*learning_curve.png\n(.|\n)*No space left"):
        folder.draw_learning_curve("title")
    assert folder.config_path.read_text() == "a: 1\n"
