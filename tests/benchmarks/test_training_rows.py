"""Training rows: what is compared, and what is kept of trainings that take minutes."""

from __future__ import annotations

import json
import statistics

import pytest
from benchmarks import ppo_seeds
from benchmarks.page import compared
from benchmarks.results import result_of
from benchmarks.row import FLOOR, OURS, RLLIB, Measured, Options, Row
from benchmarks.rows.training import LearnsAsWell, iterations, recorded_returns, trainers

TARGET = LearnsAsWell("", 0.0, RLLIB, times_faster=True)


@pytest.mark.parametrize(
    ("ours", "theirs", "met"),
    [
        ([300.0, 320.0], [290.0, 330.0], True),  # the same mean
        ([285.0, 285.0], [290.0, 330.0], True),  # 25 below, a deviation is 28.3
        ([280.0, 280.0], [290.0, 330.0], False),  # 30 below
        ([280.0, 300.0], [291.0, 291.0], False),  # no deviation at all
        ([500.0, 500.0], [290.0, 330.0], True),
    ],
)
def test_not_below_by_more_than_the_spread(ours, theirs, met):
    value = TARGET.value(Measured({OURS: ours, RLLIB: theirs}))
    assert value == pytest.approx(statistics.mean(ours) - statistics.mean(theirs) + statistics.stdev(theirs))
    assert TARGET.met(value) is met


def test_it_is_a_difference_of_returns_and_no_ratio():
    measured = Measured({OURS: [300.0, 320.0], RLLIB: [290.0, 330.0]}, unit="return")
    (target,) = result_of(Row("A", "", lambda options: measured, [TARGET]), measured)["targets"]
    assert compared(target) == "28.3 return"


def test_without_rllib_there_is_nothing_to_compare_with():
    assert TARGET.value(Measured({OURS: [1.0, 2.0]})) is None
    assert list(trainers(Options(rllib=False))) == [OURS, FLOOR]


def test_the_record(tmp_path, monkeypatch):
    record = {OURS: {"returns": {"0": 100.0, "1": 200.0}}, RLLIB: {"returns": {"7": 1.0, "1": 110.0, "0": 90.0}}}
    path = tmp_path / "ppo_seeds.json"
    monkeypatch.setattr(ppo_seeds, "RECORD", path)
    assert recorded_returns(Options()).values == {}
    path.write_text(json.dumps({**record, FLOOR: {"returns": {"1": 3.0}}}))
    assert recorded_returns(Options()).values == {}
    path.write_text(json.dumps(record))
    measured = recorded_returns(Options())
    assert measured.values == {OURS: [100.0, 200.0], RLLIB: [90.0, 110.0]}
    assert "epibatch 150 +- 71 over 2 seeds" in measured.note


def test_iterations_of_both_own_sides_train(monkeypatch):
    monkeypatch.setattr("benchmarks.rows.training.STEPS", 200)
    monkeypatch.setattr("benchmarks.rows.training.EPOCHS", 1)
    for side in iterations(Options(rllib=False)).sides.values():
        made = side()
        assert made.calls(1.0) == 1
        assert 8 < made.once() < 60  # an untrained policy's episodes
