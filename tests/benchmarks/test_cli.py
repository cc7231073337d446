"""The command measures rows, prints the table and writes the file."""

from __future__ import annotations

import json
from functools import partial

import pytest
from benchmarks import cli
from benchmarks.equality import DifferentValuesError
from benchmarks.row import Measured, Row, at_most
from typer.testing import CliRunner

ROWS = [
    Row("A1", "a row", lambda options: Measured({"epibatch": [2.0], "floor": [1.0]}), [at_most(3)]),
    Row("A2", "another", lambda options: Measured({"epibatch": [4.0], "floor": [1.0]}), [at_most(3)]),
]


@pytest.fixture(autouse=True)
def rows_in_a_repository_of_their_own(monkeypatch, tmp_path):
    monkeypatch.setattr(cli, "all_rows", lambda: ROWS)
    monkeypatch.setattr(cli, "REPOSITORY", tmp_path)
    monkeypatch.setattr(cli, "RESULTS", tmp_path / "benchmarks" / "results.json")


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


def page_of(folder):
    return (folder / "docs" / "benchmarks.md").read_text(encoding="utf-8")


def test_what_was_measured_goes_into_the_page(tmp_path):
    run = partial(CliRunner().invoke, cli.app)
    run(["--json", str(tmp_path / "quick.json"), "--quick"])
    assert not (tmp_path / "docs").exists()
    result = run(["--json", str(tmp_path / "1.json"), "--only", "A1"])
    assert result.exit_code == 0 and "written; see git diff" in result.output
    assert "| A1 | a row | 2 s |" in page_of(tmp_path) and "Not measured yet: A2." in page_of(tmp_path)
    run(["--json", str(tmp_path / "2.json"), "--only", "A2"])
    assert "| A2 | another | 4 s |" in page_of(tmp_path) and "| A1 | a row |" in page_of(tmp_path)
    run(["--json", str(tmp_path / "3.json"), "--only", "A1"])
    assert "python -m benchmarks --only A1`" in page_of(tmp_path)
    quick = run(["page", str(tmp_path / "quick.json")])
    assert quick.exit_code == 2 and "no figures to publish" in " ".join(quick.output.replace("│", " ").split())
    assert run(["page", str(tmp_path / "2.json")]).exit_code == 0 and "Not measured yet: A1." in page_of(tmp_path)


def test_some_rows_of_another_machine_leave_the_page_as_it_is_and_all_rows_replace_it(tmp_path):
    run = partial(CliRunner().invoke, cli.app)
    run(["--json", str(tmp_path / "1.json")])
    kept = json.loads(cli.RESULTS.read_text())
    cli.RESULTS.write_text(json.dumps(kept | {"machine": {"processor": "another", "threads": 1}}))
    before = page_of(tmp_path)
    result = run(["--json", str(tmp_path / "2.json"), "--only", "A1"])
    assert result.exit_code == 0 and "benchmarks.md is left as it is" in result.output
    assert page_of(tmp_path) == before
    run(["--json", str(tmp_path / "3.json")])
    assert json.loads(cli.RESULTS.read_text())["machine"] == kept["machine"]
