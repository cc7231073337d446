"""The zoo: its page is that of its curves, its files are read, and its environments are as they say."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from epibatch.algorithms import AlgorithmConfig
from epibatch.cli import app

REPOSITORY = Path(__file__).resolve().parents[2]
ZOO = REPOSITORY / "examples" / "zoo"
TASKS = YAML(typ="safe").load(ZOO / "tasks.yaml")


def test_the_page_is_that_of_the_curves(load_example):
    page = load_example("zoo/page")
    written = (REPOSITORY / "docs" / "zoo.md").read_text(encoding="utf-8")
    assert written == page.page()
    drawn = {path.stem for path in (REPOSITORY / "docs" / "zoo").glob("*.svg")}
    assert len(drawn) >= 8 and all(f"zoo/{name}.svg" in written for name in drawn)


def test_the_table_holds_the_means_of_the_last_rows(load_example):
    page = load_example("zoo/page")
    for path in (ZOO / "curves").glob("*.*.csv"):
        task, library, _ = path.name.split(".")
        last = {}
        for seed, _, value in csv.reader(path.read_text(encoding="utf-8").splitlines()):
            last[seed] = float(value)
        assert page.last_values(task, library) == [last[seed] for seed in sorted(last)]


FILES = sorted(ZOO.glob("*_*.yaml"))
WITHOUT_DATA = [path for path in FILES if "build/zoo/data" not in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", WITHOUT_DATA, ids=lambda path: path.stem)
def test_each_file_is_read(path, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    config = AlgorithmConfig.from_yaml(path, allow_imports=True)
    told = YAML(typ="safe").load(path)
    assert config.train_batch_size == told["training"]["train_batch_size"] and config.lr == told["training"]["lr"]


def test_the_sign_says_which_side_pays(load_example):
    env = load_example("zoo/environments").TMaze()
    sides = set()
    for seed in range(20):
        observation, _ = env.reset(seed=seed)
        side = 2 if observation[0] > 0 else 1
        rewards = []
        for action in [0] * 8 + [side]:
            observation, reward, terminated, truncated, _ = env.step(action)
            assert observation[0] == 0
            rewards.append(reward)
        assert terminated and not truncated and rewards == [0] * 8 + [4]
        sides.add(side)
    assert sides == {1, 2}
    env.reset(seed=0)
    steps = [env.step(1) for _ in range(16)]
    assert [step[1] for step in steps] == [-0.1] * 16 and [step[3] for step in steps] == [False] * 15 + [True]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t_maze_ppo", "t_maze_r2d2", "hidden_velocities_ppo"])
def test_what_needs_nothing_more_trains(name, tmp_path, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    command = ["train", f"examples/zoo/{name}.yaml", "--run", str(tmp_path / "run"), "--allow-imports"]
    result = CliRunner().invoke(app, [*command, "--iterations", "2"])
    assert result.exit_code == 0, result.output
    assert "return" in result.output
