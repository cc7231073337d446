"""Whatever ends a run, its last checkpoint is whole, and the run can be gone on with: real processes, real signals."""

from __future__ import annotations

import csv
import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from epibatch.algorithms import RunFolder
from epibatch.cli import app
from epibatch.core import load_state

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="forks and POSIX signals")
RUNNER = Path(__file__).with_name("run_and_kill.py")


def tell(how, folder):
    """Let the other process do its work; what it said about each run."""
    command = [sys.executable, str(RUNNER), how, str(folder)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert process.returncode == 0, process.stderr
    return [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")]


def assert_ended(folder, iterations):
    """A run that has come to its end: one row per iteration, whole checkpoints, nothing left lying about."""
    run = RunFolder(folder)
    expected = list(range(1, iterations + 1))
    assert [row["training_iteration"] for row in run.rows()] == expected
    with run.csv_path.open(newline="") as file:
        assert [int(row["training_iteration"]) for row in csv.DictReader(file)] == expected
    steps = [row["num_env_steps_sampled_lifetime"] for row in run.rows()]
    assert [later > earlier for earlier, later in itertools.pairwise(steps)] == [True] * (iterations - 1)
    counters = load_state(run.checkpoints.newest())["state"]["counters"]
    assert (counters["training_iteration"], counters["num_env_steps_sampled_lifetime"]) == (iterations, steps[-1])
    kept = [f"{iteration:06d}" for iteration in expected[-2:]]
    assert sorted(path.name for path in run.checkpoints.folder.iterdir()) == kept
    names = {"config.yaml", "metrics.jsonl", "metrics.csv", "learning_curve.png", "checkpoints"}
    assert {path.name for path in folder.iterdir()} == names


@pytest.mark.slow
def test_killed_at_every_change_of_a_file(tmp_path):
    told = tell("at_every_write", tmp_path)
    assert [run["code"] for run in told] == [-9] * (len(told) - 1) + [0]
    assert len(told) > 25, "two saves alone are more changes"
    for run in told:
        assert run["rows"] in ([], [1], [1, 2])
        assert len(run["rows"]) - (run["newest"] or 0) in (0, 1), "at most the iteration that was being saved is lost"
        folder = tmp_path / run["run"]
        said = (tmp_path / f"{run['run']}.txt").read_text()
        assert_ended(folder, 2)
        resumed = f"going on after iteration {run['newest']}" in said or "nothing to train" in said
        assert resumed == (run["newest"] is not None) or run["code"] == 0


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path):
    told = tell("at_random", tmp_path)
    assert [run["code"] for run in told] == [-9] * 8 + [0]
    newest = [run["newest"] or 0 for run in told]
    assert newest == sorted(newest)
    assert all(later > earlier for earlier, later in zip(newest[:-1:2], newest[1::2])), "it got on between the kills"
    assert newest[-1] == newest[-2] + 5
    for run in told:
        assert run["rows"] == list(range(1, len(run["rows"]) + 1))
        assert len(run["rows"]) - (run["newest"] or 0) in (0, 1)
    assert_ended(tmp_path / "run", newest[-1])


@pytest.mark.slow
def test_a_disk_that_is_full(tmp_path):
    """A limit on the size of files stands for it: the same writes fail, at the same places."""
    told = {run["run"]: run for run in tell("limited", tmp_path)}
    for run in told.values():
        said = (tmp_path / f"{run['run']}.txt").read_text()
        assert "File too large" in said and "expected: a place that can be written to" in said
        assert "Traceback" not in said
    assert [run["code"] for run in told.values()] == [2, 2, 3, 3, 3, 3]
    assert [run["newest"] for run in list(told.values())[:-1]] == [None] * 5
    late = told["run-40000"]
    assert late["newest"] == late["rows"][-1] + 1 > 10, "the metrics grew too long; the iteration is saved"
    assert "in logger JSONLLogger" in (tmp_path / "run-40000.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_ctrl_c_in_a_terminal(tmp_path, mode):
    """A terminal sends it to the command and to the processes of its environments alike."""
    config = CONFIG.replace("{training_iteration: 3}", "{training_iteration: 100000}")
    config += f"env_runners: {{num_envs_per_env_runner: 2, gym_env_vectorize_mode: {mode}}}\n"
    (tmp_path / "small.yaml").write_text(config.replace("frequency: 1", "frequency: 0"))
    command = [sys.executable, "-m", "epibatch", "train", "small.yaml", "--run", "out"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    run = RunFolder(tmp_path / "out")
    deadline = time.monotonic() + 120
    while not run.rows() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert "Ctrl-C: finishing this iteration, then saving" in output and "interrupted, after" in output
    assert errors == ""
    rows = run.rows()
    assert load_state(run.checkpoints.newest())["state"]["counters"]["training_iteration"] == len(rows) >= 1
    assert run.curve_path.exists()


CONFIG = """
algorithm: ppo
environment: {env: CartPole-v1}
training: {train_batch_size: 32, minibatch_size: 32, num_epochs: 1}
rl_module: {model_config: {fcnet_hiddens: [4]}}
debugging: {seed: 1}
checkpointing: {checkpoint_frequency: 1, num_to_keep: 3}
stop: {training_iteration: 3}
"""


@pytest.fixture
def run(monkeypatch, tmp_path):
    """The command, and a run of three iterations in the folder `out`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(CONFIG)
    result = CliRunner().invoke(app, ["train", "small.yaml", "--run", "out"])
    assert result.exit_code == 0, result.output
    return lambda *words: CliRunner().invoke(app, ["train", "--resume", "out", *words])


def truncate(file):
    file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.slow
def test_going_on_from_the_newest_whole_checkpoint(run, caplog):
    truncate(Path("out/checkpoints/000003/arrays.npz"))
    with caplog.at_level(logging.WARNING, "epibatch"):
        result = run()
    assert result.exit_code == 0, result.output
    assert f"going on after iteration 2, from {Path('out/checkpoints/000002')}" in result.output
    assert f"a later checkpoint is now {Path('out/checkpoints/000003.damaged')}" in result.output
    (warning,) = caplog.messages
    assert "out/checkpoints/000003" in warning and "arrays.npz has" in warning and "000002 is used" in warning
    folder = RunFolder(Path("out"))
    assert [row["training_iteration"] for row in folder.rows()] == [1, 2, 3]
    assert folder.checkpoints.iterations() == [3, 2, 1]
    assert load_state(folder.checkpoints.newest())["state"]["counters"]["training_iteration"] == 3
    for iteration in (1, 2, 3):
        truncate(Path(f"out/checkpoints/00000{iteration}/state.json"))
    before = folder.jsonl_path.read_text()
    result = run()
    assert result.exit_code == 2
    assert all(f"00000{iteration}" in result.output for iteration in (1, 2, 3))
    assert "restore one from a copy" in result.output
    assert folder.jsonl_path.read_text() == before
