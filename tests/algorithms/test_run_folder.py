from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from epibatch.algorithms.run_folder import RunFolder, flat_metrics
from epibatch.core.errors import CheckpointError, ConfigError


def results(iteration, mean=10.0, **more):
    return {
        "env_runners": {"episode_return_mean": mean},
        "num_env_steps_sampled_lifetime": 100 * iteration,
        "training_iteration": iteration,
        **more,
    }


def read_csv(folder):
    with folder.csv_path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_flat_metrics():
    nested = {
        "a": {"b": np.float32(0.5), "c": {"d": True}},
        "e": float("nan"),
        "f": "text",
        "g": np.zeros(3),
        "h": None,
    }
    assert flat_metrics(nested) == {"a/b": 0.5, "a/c/d": True, "e": None, "f": "text", "h": None}


def test_one_row_per_iteration_in_both_files(tmp_path):
    folder = RunFolder.create(tmp_path / "deep" / "run")
    for iteration in (1, 2):
        folder.log(results(iteration))
    assert [json.loads(line)["training_iteration"] for line in folder.jsonl_path.read_text().splitlines()] == [1, 2]
    assert [row["training_iteration"] for row in read_csv(folder)] == ["1", "2"]


def test_last_results_are_nested_again(tmp_path):
    folder = RunFolder.create(tmp_path)
    assert folder.last_results() is None
    for iteration in (1, 2):
        folder.log(results(iteration, learners={"default_policy": {"loss": 0.5}}))
    assert folder.last_results() == results(2, learners={"default_policy": {"loss": 0.5}})


def test_new_metrics_add_columns(tmp_path):
    folder = RunFolder.create(tmp_path)
    folder.log(results(1))
    folder.log(results(2, learners={"loss": 0.5}))
    folder.log(results(3))
    assert [row["learners/loss"] for row in read_csv(folder)] == ["", "0.5", ""]


def test_used_folder_is_never_overwritten(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"a new or an empty folder\n.*never overwritten\n.*--resume"):
        RunFolder.create(tmp_path)


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


def test_the_csv_begins_with_what_one_looks_for(tmp_path):
    folder = RunFolder.create(tmp_path)
    folder.log({"timers": {"sample": 1}, "num_env_steps_sampled_lifetime": 100, "training_iteration": 1})
    folder.log({"timers": {"sample": 1, "learn": 2}, **results(2)})
    expected = ["training_iteration", "num_env_steps_sampled_lifetime", "env_runners/episode_return_mean"]
    assert list(read_csv(folder)[0]) == [*expected, "timers/sample", "timers/learn"]
    folder.keep_until(1)
    assert list(read_csv(folder)[0]) == [*expected[:2], "timers/sample"]


def test_going_on_drops_rows_after_the_checkpoint(tmp_path):
    folder = RunFolder.create(tmp_path)
    for iteration in (1, 2, 3):
        folder.log(results(iteration))
    with folder.jsonl_path.open("a") as file:
        file.write('{"training_iteration": 4, "half')
    again = RunFolder(tmp_path)
    again.keep_until(2)
    again.log(results(3, mean=99.0))
    assert [row["training_iteration"] for row in again.rows()] == [1, 2, 3]
    assert [row["env_runners/episode_return_mean"] for row in read_csv(again)] == ["10.0", "10.0", "99.0"]


@pytest.mark.parametrize("means", [[], [None], [10.0], [10.0, None, 30.0]])
def test_learning_curve_is_a_picture(tmp_path, means):
    folder = RunFolder.create(tmp_path)
    for iteration, mean in enumerate(means, 1):
        folder.log(results(iteration, mean))
    path = folder.draw_learning_curve("CartPole", goal=475)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_config_is_kept(tmp_path):
    folder = RunFolder.create(tmp_path)
    folder.write_config("a: 1\n")
    assert folder.config_path.read_text() == "a: 1\n"
