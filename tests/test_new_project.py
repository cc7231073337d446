"""`epibatch new`: a folder that tests itself and trains; what is there already stays."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from epibatch.cli import app

FILES = ["environment.py", "pieces.py", "test_project.py", "train.yaml"]


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield lambda *words: CliRunner().invoke(app, words)
    for name in {"environment", "pieces"} & set(sys.modules) - before:
        del sys.modules[name]


def files_in(folder):
    return sorted(path.name for path in folder.iterdir())


def printed_commands(output):
    return [shlex.split(line, comments=True) for line in output.partition("next:\n")[2].splitlines()]


def test_the_printed_commands_run(run, tmp_path, monkeypatch):
    result = run("new", "my project")
    assert result.exit_code == 0, result.output
    assert files_in(tmp_path / "my project") == FILES and all(name in result.output for name in FILES)
    enter, tests, train, play = printed_commands(result.output)
    assert (enter, tests) == (["cd", "my project"], ["python", "-m", "pytest"])
    monkeypatch.chdir(enter[1])
    for words, short in ((train, ["--iterations", "1"]), (play, ["--episodes", "1"])):
        result = run(*words[1:], *short)
        assert words[0] == "epibatch" and result.exit_code == 0, result.output
    assert "warnings:" not in result.output


@pytest.mark.slow
def test_its_own_tests_pass_and_it_reaches_its_goal(run, tmp_path):
    assert run("new", "mine").exit_code == 0
    for words in (["pytest", "-q"], ["epibatch", *printed_commands(run("new", "other").output)[2][1:]]):
        done = subprocess.run(
            [sys.executable, "-m", *words], cwd=tmp_path / "mine", capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert "solved: mean return" in done.stdout


def test_an_empty_folder_is_taken_and_another_one_stays(run, tmp_path):
    (tmp_path / "empty").mkdir()
    assert run("new", "empty").exit_code == 0 and files_in(tmp_path / "empty") == FILES
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "train.yaml").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name, words in (("used", ["a new or an empty folder", "never overwritten"]), ("file", ["choose another name"])):
        result = run("new", name)
        assert result.exit_code == 2 and all(word in result.stderr for word in [f"epibatch new {name}", *words])
    assert files_in(tmp_path / "used") == ["train.yaml"]
    assert (tmp_path / "used" / "train.yaml").read_text() == (tmp_path / "file").read_text() == "mine"
