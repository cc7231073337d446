"""`epibatch envs`: the libraries of environments that are installed, and how a config names one."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from importlib.metadata import version

import pytest
from typer.testing import CliRunner

from epibatch import cli, env_listing


def run(*arguments: str) -> str:
    result = CliRunner().invoke(cli.app, ["envs", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_installed_libraries_have_their_version_and_others_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = env_listing.EnvLibrary("Nowhere", ("gymnasium", "no-such-package"), "[make(3)]", "a: b")
    monkeypatch.setattr(env_listing, "LIBRARIES", (nowhere, env_listing.LIBRARIES[0]))
    rows = {line.split()[0]: line for line in run().splitlines()}
    assert rows["Gymnasium"].split() == ["Gymnasium", version("gymnasium"), "CartPole-v1"]
    assert "pip install gymnasium no-such-package" in rows["Nowhere"] and "[make(3)]" in rows["Nowhere"]
    assert list(rows) == ["library", "Gymnasium", "Nowhere"]
    data = {facts["library"]: facts for facts in json.loads(run("--json"))}
    assert data["Gymnasium"]["version"] == version("gymnasium") and data["Nowhere"]["version"] is None
    assert data["Nowhere"]["packages"] == ["gymnasium", "no-such-package"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs a terminal of its own")
@pytest.mark.parametrize("columns", [40, 80, 500])
def test_a_terminal_shows_each_name_whole(columns: int) -> None:
    import pty

    main, terminal = pty.openpty()
    sizes = {"COLUMNS": str(columns), "LINES": "50", "TERM": "xterm"}
    command = [sys.executable, "-m", "epibatch", "envs"]
    with subprocess.Popen(command, stdout=terminal, stdin=terminal, env={**os.environ, **sizes}) as process:
        os.close(terminal)
        shown = b""
        with contextlib.suppress(OSError):  # the terminal has closed
            while part := os.read(main, 4096):
                shown += part
    os.close(main)
    assert process.returncode == 0
    lines = shown.decode().splitlines()
    for library in env_listing.LIBRARIES:
        for text in (library.library, library.env, library.settings):
            assert any(text in line for line in lines), text
    assert len(lines) == 1 + len(env_listing.LIBRARIES) or columns < 500


def test_games_have_the_piece_of_their_masks() -> None:
    settings = {library.library: library.settings for library in env_listing.LIBRARIES}
    assert "[action_mask]" in settings["PettingZoo"] and "source: infos/action_mask" in settings["OpenSpiel"]


def test_libraries_of_the_seeds_are_listed() -> None:
    expected = "Gymnasium MuJoCo ALE DMControl EnvPool VMAS PettingZoo OpenSpiel MO-Gymnasium Brax gym"
    assert all(name in run() for name in expected.split())
