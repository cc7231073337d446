"""The command measures rows, prints the table and writes the file."""

from __future__ import annotations

import json

import pytest
from benchmarks import cli
from benchmarks.row import Measured, Row, at_most
from typer.testing import CliRunner

ROWS = [
    Row("A1", "a row", lambda options: Measured({"epibatch": [2.0], "floor": [1.0]}), [at_most(3)]),
    Row("A2", "another", lambda options: Measured({"epibatch": [4.0], "floor": [1.0]}), [at_most(3)]),
]


@pytest.fixture(autouse=True)
def rows(monkeypatch):
    monkeypatch.setattr(cli, "all_rows", lambda: ROWS)


def test_table_and_file(tmp_path):
    path = tmp_path / "folder" / "figures.json"
    result = CliRunner().invoke(cli.app, ["--quick", "--json", str(path)])
    assert result.exit_code == 0, result.output
    lines = [line.replace("│", " ").split() for line in result.output.splitlines()]
    assert ["A1", "2", "s", "-", "1", "s", "2", "(2", "to", "2)", "-", "<=", "3", "x", "floor", "2", "yes"] in lines
    assert ["A2", "4", "s", "-", "1", "s", "4", "(4", "to", "4)", "-", "<=", "3", "x", "floor", "4", "NO"] in lines
    found = json.loads(path.read_text())
    assert [row["targets"][0]["met"] for row in found["rows"]] == [True, False]
    assert found["rows"][1]["sides"]["floor"] == {"median": 1.0, "low": 1.0, "high": 1.0, "rounds": [1.0]}
    assert found["quick"] is True and found["versions"]["numpy"] and found["machine"]["threads"] == 1


def test_some_rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli.app, ["--only", "A2"])
    assert result.exit_code == 0, result.output
    (path,) = (tmp_path / "runs" / "bench").glob("*.json")
    assert [row["name"] for row in json.loads(path.read_text())["rows"]] == ["A2"]


def test_no_such_row():
    result = CliRunner().invoke(cli.app, ["--only", "B1"])
    assert result.exit_code == 2
    assert "no row 'B1'; there are A1, A2" in result.output
