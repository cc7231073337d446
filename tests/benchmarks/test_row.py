"""Targets are compared with the right figures, and rows are found by their names."""

from __future__ import annotations

import contextlib
from functools import partial

import pytest
from benchmarks.equality import DifferentValuesError
from benchmarks.row import Measured, Options, Row, Workload, at_least_of, at_most, below, timed, times_faster
from benchmarks.rows import all_rows, chosen
from benchmarks.timing import Side

MEASURED = Measured({"epibatch": [2.0, 3.0, 8.0], "RLlib": [20.0, 60.0, 16.0], "floor": [1.0, 2.0, 4.0]})


@pytest.mark.parametrize(
    ("target", "value", "met"),
    [
        (at_most(2), 2.0, True),  # of 2, 1.5, 2
        (at_most(1.9), 2.0, False),
        (times_faster(10), 10.0, True),  # of 10, 20, 2
        (times_faster(11), 10.0, False),
        (at_least_of(0.5, "floor"), 2.0, True),
        (at_least_of(0.6, "floor"), 2.0, False),
        (below(3.0, "<= 3 s"), 3.0, True),
        (below(2.9, "<= 2.9 s"), 3.0, False),
    ],
)
def test_targets(target, value, met):
    assert target.value(MEASURED) == value
    assert target.met(value) is met


def test_a_target_against_a_side_that_is_missing_has_no_value():
    alone = Measured({"epibatch": [1.0]})
    assert times_faster(2).value(alone) is None
    assert at_most(2).value(alone) is None
    assert below(2.0, "").value(Measured({"floor": [1.0]})) is None


def test_the_fastest_way_to_do_a_thing_counts():
    measured = Measured({"epibatch": [6.0], "floor: slices": [3.0], "floor: take": [2.0], "floor without": [1.0]})
    assert measured.side("floor") == [2.0]
    assert at_most(2).value(measured) == 3.0
    assert measured.side("flo") is None


def test_texts():
    assert at_most(1.3).text == "<= 1.3 x floor"
    assert times_faster(13).text == ">= 13 x faster than RLlib"
    assert at_least_of(0.82, "bare loop").text == ">= 82 % of the bare loop's steps/s"


def test_rows_are_selected_by_name_first_parts_and_family():
    rows = [Row(name, "", lambda options: MEASURED) for name in ("L1", "L1/identity", "L10", "R1", "R1v", "E1/16")]

    def names(only):
        return [row.name for row in chosen(rows, only)]

    assert names("L1") == ["L1", "L1/identity"]
    assert names("R1, E1/16") == ["R1", "E1/16"]
    assert names("L") == ["L1", "L1/identity", "L10"]
    assert len(names("")) == len(rows)
    with pytest.raises(ValueError, match="no row 'L2'; there are L1, L1/identity"):
        names("L1,L2")


def test_every_row_has_a_name_of_its_own_and_says_what_it_is():
    rows = all_rows()
    assert len({row.name for row in rows}) == len(rows)
    assert all(row.what for row in rows)


class Local:
    """A side in this process, as `team` hands it over."""

    def __init__(self, side):
        self.output = side.once()
        self.calls, self.turn = side.calls, side.turn


def here(monkeypatch, outputs):
    """A timed row whose sides run in this process and give these outputs; garbage is not collected."""
    monkeypatch.setattr("gc.collect", lambda: 0)

    def refuse(found):
        if found["epibatch"] != found["floor"]:
            raise DifferentValuesError(f"{found['epibatch']} and {found['floor']}")

    sides = {name: partial(Side, lambda _, output=output: output) for name, output in outputs.items()}
    locals_ = {name: Local(make()) for name, make in sides.items()}
    monkeypatch.setattr("benchmarks.row.team", lambda *rest: contextlib.nullcontext(locals_))
    return timed(lambda options: Workload(sides, refuse, steps=7, note="a note"))


def test_sides_that_give_something_else_are_not_timed(monkeypatch):
    measure = here(monkeypatch, {"epibatch": 1, "floor": 2})
    with pytest.raises(DifferentValuesError, match="1 and 2"):
        measure(Options(quick=True))


def test_sides_that_give_the_same_are_timed(monkeypatch):
    measured = here(monkeypatch, {"epibatch": 1, "floor": 1})(Options(quick=True, rounds=2))
    assert {name: len(own) for name, own in measured.values.items()} == {"epibatch": 2, "floor": 2}
    assert (measured.steps, measured.note, measured.unit) == (7, "a note", "s")
