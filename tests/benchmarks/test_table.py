"""Amounts are readable, and the table says which way of a floor was the fastest and what misses its target."""

from __future__ import annotations

import pytest
from benchmarks.results import result_of
from benchmarks.row import Measured, Row, at_most, below, times_faster
from benchmarks.table import amount, cells, compared, markdown

VALUES = {"epibatch": [3e-3], "floor: a": [2e-3], "floor: b": [1e-3], "leanest floor": [5e-4]}
RESULT = result_of(
    Row("A1", "a row", lambda options: Measured(VALUES), [at_most(4), times_faster(2)]), Measured(VALUES)
)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1.23456, "s", "1.23 s"),
        (57.1, "s", "57.1 s"),
        (1234.0, "s", "1234 s"),
        (0.0123456, "s", "12.3 ms"),
        (9.99e-4, "s", "999 us"),
        (1e-6, "s", "1 us"),
        (4.56e-7, "s", "456 ns"),
        (1.5, "MiB", "1.5 MiB"),
        (2.345, "x", "2.35 x"),
    ],
)
def test_amounts(value, unit, text):
    assert amount(value, unit) == text


def test_cells():
    first, second = cells(RESULT)
    assert first == ["A1", "3 ms", "-", "1 ms (leanest 500 us)", "3 (3 to 3)", "-", "<= 4 x floor", "3 x", "yes"]
    assert second == [""] * 6 + [">= 2 x faster than RLlib", "-", "-"]


def test_markdown():
    lines = markdown([RESULT]).splitlines()
    assert lines[0] == "| row | workload | epibatch | RLlib | floor | target | measured | met |"
    assert lines[2] == "| A1 | a row | 3 ms | - | 1 ms (leanest 500 us) | <= 4 x floor | 3 x | yes |"
    assert len({line.count("|") for line in lines}) == 1


def test_quartiles_stand_behind_the_median():
    values = {"epibatch": [1e-3, 2e-3, 4e-3], "floor": [1e-3, 1e-3, 1e-3]}
    row = Row("A1", "a row", lambda options: Measured(values), [at_most(4), below(3e-3, "<= 3 ms")])
    texts = [compared(target) for target in result_of(row, Measured(values))["targets"]]
    assert texts == ["2 x (1.5 to 3)", "2 ms (1.5 ms to 3 ms)"]
