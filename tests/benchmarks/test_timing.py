"""Turns, calls and ratios, with a clock that tells what it is told."""

from __future__ import annotations

import pytest
from benchmarks.timing import Side, measure, ratios, spread


@pytest.fixture(autouse=True)
def no_garbage(monkeypatch):
    """Collecting it takes long in a process as large as this one."""
    monkeypatch.setattr("gc.collect", lambda: 0)


class Clock:
    """Seconds that pass only when a side says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def side(self, seconds, log=None, name="", **how):
        def run(given):
            self.now += seconds
            if log is not None:
                log.append((name, given))

        return Side(run, clock=self, **how)


def test_seconds_per_call():
    clock = Clock()
    times = measure({"a": clock.side(0.25), "b": clock.side(0.5)}, rounds=3, seconds=2.0)
    assert times == {"a": [0.25] * 3, "b": [0.5] * 3}


def test_sides_take_turns_of_about_the_same_length():
    clock, log = Clock(), []
    measure({"a": clock.side(0.5, log, "a"), "b": clock.side(0.25, log, "b")}, rounds=2, seconds=1.0)
    assert [name for name, _ in log[-12:]] == ["a", "a", "b", "b", "b", "b"] * 2


def test_a_side_with_fresh_input_makes_one_call_a_turn_and_its_preparation_is_not_timed():
    clock, log = Clock(), []

    def prepare():
        clock.now += 100.0
        return object()

    times = measure({"a": clock.side(0.5, log, prepare=prepare)}, rounds=4, seconds=60.0)
    assert times == {"a": [0.5] * 4}
    assert len(log) == 1 + 4 * 2  # a call that is not timed in front of each that is
    assert len({id(given) for _, given in log}) > 1


def test_single_calls():
    clock, log = Clock(), []
    times = measure({"a": clock.side(0.5, log, single=True)}, rounds=4, seconds=60.0)
    assert times == {"a": [0.5] * 4}
    assert len(log) == 1 + 4 * 2


def test_a_call_longer_than_a_turn_is_made_once():
    clock = Clock()
    assert clock.side(9.0).calls(seconds=1.0) == 1


def test_garbage_is_collected_in_front_of_the_time(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("gc.collect", lambda: setattr(clock, "now", clock.now + 50.0))
    assert clock.side(0.5).turn(2) == 0.5


def test_spread():
    assert spread([5.0, 1.0, 2.0, 3.0, 4.0]) == type(spread([1.0]))(3.0, 2.0, 4.0)
    assert spread([7.0]).low == spread([7.0]).median == spread([7.0]).high == 7.0


def test_ratios_are_taken_round_by_round():
    # both sides are twice as slow in the second round: the ratio is not
    assert ratios([2.0, 4.0], [1.0, 2.0]) == [2.0, 2.0]
    with pytest.raises(ValueError, match="longer"):
        ratios([1.0], [1.0, 2.0])
