"""The table of learning runs: every example is there, targets are judged right, and a run fills a row."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def learning(monkeypatch):
    spec = importlib.util.spec_from_file_location("benchmark_learning", ROOT / "benchmarks" / "learning.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_targets_name_examples(learning):
    for target in learning.TARGETS.values():
        assert (ROOT / "examples" / f"{target.example}.py").is_file()
        example = learning.load_example(target.example)
        assert example.Options(seed=3).seed == 3
        assert "Target: " in example.__doc__ and "Measured" in example.__doc__


def test_values_are_judged(learning):
    over, under = learning.TARGETS["lstm_memory"], learning.TARGETS["no_memory"]
    assert over.reached(350.0) and not over.reached(349.9)
    assert under.reached(99.9) and not under.reached(100.0)
    outcomes = [learning.Outcome(value, 1000, 6.0) for value in (-250.0, -310.0)]
    assert learning.summary("pendulum", outcomes) == "pendulum: mean return >= -300 in 1 of 2 seeds"
    assert learning.row("pendulum", 1, outcomes[1]).split()[:4] == ["pendulum", "1", "-310.000", "NO"]


def test_a_run(learning, capsys):
    outcome = learning.train("frozen_lake", 1)
    assert outcome.value >= 0.95 and 1000 < outcome.steps <= 100_000 and outcome.seconds > 0
    assert capsys.readouterr().out == ""


def test_unknown_names(learning, capsys):
    assert learning.parse(["pendulum", "--seeds", "2"]).names == ["pendulum"]
    with pytest.raises(SystemExit):
        learning.parse(["pendulm"])
    assert "unknown: pendulm; known: lstm_memory" in capsys.readouterr().err
