"""`epibatch port`: what it prints, writes and exits with."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from epibatch.cli import app

PORTABLE = "from ray.rllib.connectors.connector_v2 import ConnectorV2\r\n\r\nx = 'ä'\r\n".encode()
PORTED = PORTABLE.replace(b"ray.rllib", b"epibatch")
PARTLY = b"from ray.rllib.core import Columns, COMPONENT_LEARNER\nCOMPONENT_LEARNER\n"


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "portable.py").write_bytes(PORTABLE)
    (tmp_path / "partly.py").write_bytes(PARTLY)
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "book.ipynb").write_text("{}")
    return lambda *words: CliRunner().invoke(app, ["port", *words])


def test_shows_and_writes_nothing_unless_told_to(run, tmp_path):
    result = run("portable.py")
    assert result.exit_code == 0
    assert "-from ray.rllib.connectors.connector_v2" in result.stdout
    assert "+from epibatch.connectors.connector_v2" in result.stdout
    assert result.stderr == "1 import to change in 1 file, nothing left to do by hand; --write changes it\n"
    assert (tmp_path / "portable.py").read_bytes() == PORTABLE


def test_writes_in_place_with_encoding_and_newlines(run, tmp_path):
    assert run("portable.py", "--write").exit_code == 0
    assert (tmp_path / "portable.py").read_bytes() == PORTED
    again = run("portable.py", "--write")
    assert (again.exit_code, again.stdout) == (0, "")
    assert again.stderr == "no imports to change, nothing left to do by hand\n"


def test_something_left_is_exit_code_1_written_or_not(run, tmp_path):
    for words in ([], ["--write"], ["--write"]):
        result = run("partly.py", *words)
        assert result.exit_code == 1
        assert ": ray.rllib.core.COMPONENT_LEARNER: no such name in epibatch.core\n" in result.stdout
    text = (tmp_path / "partly.py").read_text()
    assert (
        text == "from epibatch.core import Columns\nfrom ray.rllib.core import COMPONENT_LEARNER\nCOMPONENT_LEARNER\n"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["."], "a folder"),
        (["broken.py"], "broken.py, line 1"),
        (["book.ipynb"], "nbconvert"),
    ],
)
def test_files_that_cannot_be_ported_are_exit_code_2_and_hold_up_no_other(run, tmp_path, words, said):
    result = run(*words, "portable.py", "--write")
    assert result.exit_code == 2
    assert said in result.stderr and "Traceback" not in result.output
    assert (tmp_path / "portable.py").read_bytes() == PORTED


def test_a_file_that_cannot_be_written(run, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    result = run("portable.py", "--write")
    assert result.exit_code == 2
    assert "read-only" in result.stderr and "changed" not in result.stderr
    assert (tmp_path / "portable.py").read_bytes() == PORTABLE


def test_wrong_use_writes_nothing(run, tmp_path):
    result = run("portable.py", "--write", "ported.py")
    assert result.exit_code == 2
    assert "ported.py" in result.stderr and "--write takes no target" in result.stderr
    assert (tmp_path / "portable.py").read_bytes() == PORTABLE
    for words in ((), ("--write",)):
        result = run(*words)
        assert result.exit_code == 2 and "epibatch port my_connector.py" in result.stderr
    text = " ".join(run("--help").stdout.split())
    assert all(word in text for word in ("Exit code 0", "1: something", "2: a file"))
    shown = run("portable.py", "nothing.py")
    assert shown.exit_code == 2 and "nothing there" in shown.stderr and "+from epibatch" in shown.stdout


def test_a_pipe_gets_a_plain_diff_and_neither_torch_nor_ray_is_loaded(run, tmp_path):
    code = (
        "import sys, epibatch.cli as c\nsys.argv = ['epibatch', 'port', 'portable.py']\ntry:\n    c.main()\nfinally:\n"
    )
    code += "    print([name for name in ('torch', 'ray') if name in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=tmp_path, check=True)
    assert done.stdout.startswith(b"--- portable.py\n+++ portable.py\n@@ ") and b"\x1b" not in done.stdout
    assert done.stderr.endswith(b"[]\n" if os.linesep == "\n" else b"[]\r\n")
