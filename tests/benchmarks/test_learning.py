"""The table of learning runs: every example is there, targets are judged right, and a run fills a row."""

from __future__ import annotations

import pytest
import typer
from benchmarks import learning


def test_targets_name_examples():
    for target in learning.TARGETS.values():
        example = learning.load_example(target.example)
        assert example.Options(seed=3).seed == 3
        assert "Target: " in example.__doc__ and "Measured" in example.__doc__


def test_values_are_judged():
    over, under = learning.TARGETS["lstm_memory"], learning.TARGETS["no_memory"]
    assert over.reached(350.0) and not over.reached(349.9)
    assert under.reached(99.9) and not under.reached(100.0)
    outcomes = [learning.Outcome(value, 1000, 6.0) for value in (-250.0, -310.0)]
    assert learning.summary("pendulum", outcomes) == "pendulum: mean return >= -300 in 1 of 2 seeds"
    assert learning.row("pendulum", 1, outcomes[1]).split()[:4] == ["pendulum", "1", "-310.000", "NO"]
    with pytest.raises(typer.BadParameter, match="unknown: pendulm; known: lstm_memory"):
        learning.main(["pendulm"])


@pytest.mark.slow
def test_a_run(capsys):
    outcome = learning.train("frozen_lake", 1)
    assert outcome.value >= 0.95 and 1000 < outcome.steps <= 100_000 and outcome.seconds > 0
    assert capsys.readouterr().out == ""
