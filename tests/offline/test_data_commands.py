"""`epibatch data show`, `check` and `convert`."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from epibatch.cli import app
from epibatch.episodes import SingleAgentEpisode
from epibatch.offline import read_episodes, write_episodes


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    episodes = [
        SingleAgentEpisode(
            id_=str(number),
            observations={"x": np.arange(steps + 1, dtype=np.float32)},
            actions=np.zeros((steps, 3), np.int64),
            rewards=np.full(steps, float(number)),
            len_lookback_buffer=0,
            **ends,
        )
        for number, (steps, ends) in enumerate([(2, {"terminated": True}), (4, {"truncated": True}), (3, {})])
    ]
    write_episodes(episodes, "data", env="Own-v0")
    return lambda *words: CliRunner().invoke(app, ["data", *map(str, words)])


def test_shows_what_there_is(run):
    result = run("show", "data", "--json")
    assert result.exit_code == 0
    assert json.loads(result.output) == {
        "environment": "Own-v0",
        "episodes": 3,
        "steps": 9,
        "lengths": {"min": 2, "mean": 3.0, "max": 4},
        "returns": {"min": 0.0, "mean": 10 / 3, "max": 6.0},
        "terminated": 1,
        "truncated": 1,
        "unfinished": 1,
        "observation_space": None,
        "action_space": None,
        "columns": {
            "obs['x']": {"type": "float32", "shape": []},
            "actions": {"type": "int64", "shape": [3]},
            "rewards": {"type": "float64", "shape": []},
        },
    }
    text = run("show", "data").output
    assert "episodes:          3 (1 terminated, 1 truncated, 1 unfinished)\n" in text
    assert "  actions   int64[3]\n" in text


def test_draws_a_picture(run, tmp_path):
    result = run("show", "data", "-o", "data.png")
    assert result.exit_code == 0 and result.output.endswith("picture: data.png\n")
    assert (tmp_path / "data.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_checks_content_and_files(run, tmp_path):
    warned = run("check", "data")
    line = "warning: ends without being terminated or truncated (episodes: 1; first in episode '2' at step 3)\n"
    assert (warned.exit_code, warned.output) == (0, line)
    write_episodes(read_episodes("data")[:2], "whole")
    assert (run("check", "whole").exit_code, run("check", "whole").output) == (0, "no faults\n")
    write_episodes(read_episodes("data")[:1], "whole", append=True)
    twice = run("check", "whole")
    assert twice.exit_code == 1
    assert twice.output == "error: steps are there twice (episodes: 1; first in episode '0' at step 0)\n"
    damaged = next((tmp_path / "data").glob("*actions*"))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    found = run("check", "data")
    assert found.exit_code == 1 and found.output.startswith(f"error: {damaged.name}: ")
    damaged.write_bytes(b"")
    found = run("check", "data")
    assert found.exit_code == 1 and damaged.name in found.output


def test_a_gap_in_a_table_is_a_fault_of_the_data_and_no_wrong_use(run, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    columns = {"eps_id": ["a"] * 3, "t": [0, 1, 3], "obs": [0.0, 1.0, 2.0], "actions": [0] * 3, "rewards": [1.0] * 3}
    parquet.write_table(pyarrow.table(columns), tmp_path / "gap.parquet")
    found = run("check", "gap.parquet")
    assert found.exit_code == 1 and "error: " in found.stdout and "after a gap" in found.stdout


def test_converts(run, tmp_path):
    result = run("convert", "data", "copy", "--from", "epibatch", "--format", "epibatch")
    assert (result.exit_code, result.output) == (0, "copy: 3 episodes, 9 steps\n")
    copies = read_episodes("copy")
    assert copies.env == "Own-v0"
    assert all(copy.equals(episode) for copy, episode in zip(copies, read_episodes("data"), strict=True))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "nowhere"], "nothing"),
        (["check", "nowhere"], "nothing"),
        (["show", "data", "-o", "data.jpg"], "a file that ends in .png"),
        (["convert", "nowhere", "target"], "nothing"),
        (["convert", "data", "data"], "a path where nothing is"),
        (["convert", "data", "target", "--format", "parket"], "parquet"),
        (["check", "data", "--format", "epibach"], "epibatch"),
    ],
)
def test_wrong_use_is_exit_code_2(run, tmp_path, words, message):
    result = run(*words)
    assert result.exit_code == 2
    assert message in result.stderr and "Traceback" not in result.stderr
    assert not (tmp_path / "target").exists()


def test_faults_for_which_another_format_cannot_be_read_are_faults_of_the_data(run, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"eps_id": [0, 0], "t": [0, 1], "obs": [0.0, 1.0], "actions": [0, 0], "rewards": [1.0, 1.0]}
    parquet.write_table(pyarrow.table({**columns, "terminateds": [True, False]}), tmp_path / "flag.parquet")
    result = run("check", "flag.parquet")
    assert result.exit_code == 1
    assert "column 'terminateds' of episode 0, step 0" in result.stdout
