"""`epibatch envs`: the libraries of environments that are installed, and how a config names one."""

from __future__ import annotations

import json
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


def test_libraries_of_the_seeds_are_listed() -> None:
    expected = "Gymnasium MuJoCo ALE DMControl EnvPool VMAS PettingZoo OpenSpiel MO-Gymnasium Brax gym"
    assert all(name in run() for name in expected.split())
