"""A run folder with metrics of a stranger: its rows are left out or refused by name, within bounded memory."""

from __future__ import annotations

import os
import tracemalloc

import pytest

from epibatch.algorithms import RunFolder, TrainingRun
from epibatch.core.errors import CheckpointError, EpibatchError

ROW = '{"training_iteration": 1, "num_env_steps_sampled_lifetime": 32, "time_total_s": 0.5%s}\n'
MEAN = ', "env_runners/episode_return_mean": '


LEFT_OUT = {
    "a mean that is a list": ROW % f"{MEAN}[1, 2]",
    "a mean beyond all": ROW % f"{MEAN}1e308",
    "an endless number": ROW % ', "loss": -Infinity',
    "a value beyond all": ROW % f', "loss": {10**400}',
    "more steps than time": ROW.replace("32", str(10**400)) % "",
    "fewer steps than none": ROW.replace("32", "-1") % "",
    "a line of lists": ROW % (', "a": [' + "[]," * 3_400_000 + "0]"),
    "a long line": ROW % f', "a": "{"x" * 2**20}"',
    "nothing but zeros": "\0" * 2**22 + "\n",
}
KEPT = {
    "a value above others": ', "env_runners": 3, "env_runners/x/y": 4',
    "a value above evaluations": ', "evaluation": "x", "evaluation/env_runners/x": 4',
    "a mean that is text": f'{MEAN}"x", "env_runners/num_episodes_lifetime": "y"',
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_rows_that_are_left_out(tmp_path, caplog, name):
    folder = RunFolder(tmp_path)
    folder.jsonl_path.write_text(ROW % "" + LEFT_OUT[name] + ROW.replace("32", "64") % "")
    tracemalloc.start()
    try:
        rows = folder.rows_until(9)
        assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    finally:
        tracemalloc.stop()
    assert [row["num_env_steps_sampled_lifetime"] for row in rows] == [32, 64]
    assert "1 damaged lines are left out, the first is line 2" in caplog.text


@pytest.mark.parametrize("name", KEPT)
def test_rows_that_a_run_goes_on_from(run, name):
    (run / "metrics.jsonl").write_text(ROW % KEPT[name])
    changes = ["stop.training_iteration=2", "stop.episode_return_mean=1000"]
    assert TrainingRun.resume(run, changes=changes).run(1) == 1  # the goal is not reached
    assert (run / "checkpoints" / "000002").is_dir()
    folder = RunFolder(run)
    assert [row["training_iteration"] for row in folder.rows()][:1] == [1]
    folder.curve_path.unlink(missing_ok=True)
    assert folder.draw_learning_curve("title").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("size", [None, 3 * 2**30])
def test_metrics_that_are_refused(run, size):
    (run / "metrics.jsonl").unlink()
    if size is None:
        (run / "metrics.jsonl").mkdir()
        found = "a folder"
    else:
        (run / "metrics.jsonl").touch()
        os.truncate(run / "metrics.jsonl", size)
        found = "3,221,225,472 bytes"
    with pytest.raises(CheckpointError, match=rf"metrics\.jsonl\n(.|\n)*{found}"):
        TrainingRun.resume(run)
    with pytest.raises(CheckpointError, match=found):
        RunFolder(run).last_results()


@pytest.mark.parametrize("name", ["metrics.csv", "config.yaml", ".lock"])
def test_folders_in_place_of_files_are_refused(run, name):
    (run / name).unlink(missing_ok=True)
    (run / name).mkdir()
    with pytest.raises(EpibatchError, match=name):
        TrainingRun.resume(run).run(1)
