"""The command measures rows, prints the table and writes the file."""

from __future__ import annotations

import json

import pytest
from benchmarks import cli
from benchmarks.equality import DifferentValuesError
from benchmarks.readme import BEGIN, END
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
    assert [
        "A1",
        "2",
        "s",
        "-",
        "1",
        "s",
        "2",
        "(2",
        "to",
        "2)",
        "-",
        "<=",
        "3",
        "x",
        "floor",
        "2",
        "x",
        "yes",
    ] in lines
    assert ["A2", "4", "s", "-", "1", "s", "4", "(4", "to", "4)", "-", "<=", "3", "x", "floor", "4", "x", "NO"] in lines
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


def test_without_rllib_the_table_says_so(tmp_path, monkeypatch):
    seen = []
    rows = [Row("A1", "a row", lambda options: seen.append(options) or Measured({"epibatch": [2.0]}))]
    monkeypatch.setattr(cli, "all_rows", lambda: rows)
    monkeypatch.setattr(cli, "rllib_is_there", lambda: False)
    result = CliRunner().invoke(cli.app, ["--json", str(tmp_path / "a.json")])
    assert "RLlib is not installed, so its column is empty: pip install" in result.output
    assert [options.rllib for options in seen] == [False]


def test_a_row_that_cannot_be_measured_is_told_and_the_others_go_on(tmp_path, monkeypatch):
    def fails(options):
        raise DifferentValuesError("epibatch and floor: obs has 3 other values")

    monkeypatch.setattr(cli, "all_rows", lambda: [Row("A0", "a bad row", fails), *ROWS])
    path = tmp_path / "a.json"
    result = CliRunner().invoke(cli.app, ["--json", str(path)])
    assert result.exit_code == 1
    assert "A0: DifferentValuesError: epibatch and floor: obs has 3 other values" in result.output
    assert "not measured: A0" in result.output
    assert [row["name"] for row in json.loads(path.read_text())["rows"]] == ["A1", "A2"]


def test_the_newest_file_goes_into_the_readme(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "README.md"
    page.write_text(f"before\n{BEGIN}\n{END}\n")
    monkeypatch.setattr(cli, "README", page)
    monkeypatch.setattr(cli, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(cli, "REPOSITORY", tmp_path)
    nothing = CliRunner().invoke(cli.app, ["readme"])
    assert nothing.exit_code == 2 and "there is no file of results" in nothing.output
    for name in ("20260101-000000", "20260102-000000"):
        only = "A1" if name.endswith("1-000000") else "A2"
        CliRunner().invoke(cli.app, ["--only", only, "--json", f"runs/bench/{name}.json"])
    CliRunner().invoke(cli.app, ["--quick", "--only", "A1", "--json", "runs/bench/20260103-000000.json"])
    quick = CliRunner().invoke(cli.app, ["readme"])
    assert quick.exit_code == 2 and "no figures to publish" in " ".join(quick.output.replace("│", " ").split())
    assert "| A1" not in page.read_text()
    (tmp_path / "runs/bench/20260103-000000.json").unlink()
    result = CliRunner().invoke(cli.app, ["readme"])
    assert result.exit_code == 0, result.output
    assert "| A2 | another | 4 s |" in page.read_text() and "Not measured yet: A1." in page.read_text()
    result = CliRunner().invoke(cli.app, ["readme", "results.json", "runs/bench/20260101-000000.json"])
    assert "Not measured yet" not in page.read_text() and "| A1 | a row | 2 s |" in page.read_text()
