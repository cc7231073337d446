"""Processes of runners and learners are killed while they train, a short version of `make kills`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize("algorithm", ["ppo", "appo"])
def test_kills_lose_and_double_nothing(algorithm):
    arguments = ["--runs", "1", "--kills", "5", "--runners", "2", "--learners", "2", "--algorithm", algorithm]
    command = [sys.executable, "-m", "benchmarks.kills", *arguments]
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=240, check=True)
    figures = dict(line.strip("| ").split(" | ") for line in run.stdout.splitlines() if line.startswith("| "))
    assert int(figures["kills"]) >= 5 and int(figures["steps"].replace(",", "")) >= 500, run.stdout
    assert [figures[name] for name in ("unreturned", "raised", "overlapping", "missing")] == ["0"] * 4, run.stdout
    assert float(figures["gap"]) < 1e-10, run.stdout
