"""Sides are compared, timed in turns and judged by targets; the command prints the table and writes the page."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
from benchmarks import cli
from benchmarks.checks import DifferentValuesError, check_all_same, check_same
from benchmarks.growth import BLOCK, draw
from benchmarks.results import PAGE, REPOSITORY, RESULTS, amount, judged, load, page
from benchmarks.row import RLLIB, Measured, Options, Row, Target, at_most, below, times_faster
from benchmarks.rows import all_rows, chosen
from benchmarks.rows.learner import stateless
from benchmarks.rows.training import LearnsAsWell
from benchmarks.timing import Side, measure, remote_sides, stop_all
from typer.testing import CliRunner

# ------------------------------------------------------------------------------------------- comparing

OURS = {"obs": np.arange(6.0).reshape(3, 2), "state_in": {"h": np.zeros(3, np.float32)}}
ONE_OFF = OURS["obs"] + [[0, 0], [0, 0], [0, 1]]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"obs": OURS["obs"]}, "epibatch and floor: only one side has state_in/h"),
        ({**OURS, "obs": OURS["obs"].astype(np.float32)}, r"obs is float64 \[3, 2\], and float32 \[3, 2\]"),
        ({**OURS, "obs": ONE_OFF}, "obs has 1 other values"),
        ({**OURS, "state_in": {"h": np.full(3, np.nan, np.float32)}}, "state_in/h has 3 other values"),
    ],
)
def test_sides_that_give_other_values(other, message):
    check_same(OURS, {**OURS}, whose="floor")
    with pytest.raises(DifferentValuesError, match=message):
        check_same(OURS, other, whose="floor")


def test_columns_compared_roughly_or_in_part():
    other = {**OURS, "obs": OURS["obs"] + 0.01}
    check_same(OURS, other, whose="floor", but=("obs",))
    check_same(OURS, other, whose="floor", close={"obs": 0.011})
    check_same(OURS, {**OURS, "obs": ONE_OFF}, whose="floor", rows=[0, 1])
    for values, close in ((OURS["obs"] + 0.01, 0.009), (OURS["obs"] * np.nan, 1.0)):
        with pytest.raises(DifferentValuesError, match="obs differs by up to"):
            check_same(OURS, {**OURS, "obs": values}, whose="floor", close={"obs": close})


# ---------------------------------------------------------------------------------------------- timing


class Clock:
    """Seconds that pass only in the calls of a side."""

    def __init__(self):
        self.now = 0.0
        self.log = []

    def __call__(self):
        return self.now

    def side(self, seconds, name="", **how):
        def run(given):
            self.now += seconds
            self.log.append((name, given))

        return Side(run, clock=self, **how)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("gc.collect", lambda: setattr(clock, "now", clock.now + 50.0))
    return clock


def test_sides_take_turns_of_about_the_same_length(clock):
    times = measure({"a": clock.side(0.5, "a"), "b": clock.side(0.25, "b")}, rounds=2, seconds=1.0)
    assert times == {"a": [0.5] * 2, "b": [0.25] * 2}
    assert [name for name, _ in clock.log[-12:]] == ["a", "a", "b", "b", "b", "b"] * 2
    assert clock.side(9.0).calls(seconds=1.0) == 1


def test_a_side_with_new_input_makes_one_call_a_turn_and_its_preparation_is_not_timed(clock):
    def prepare():
        clock.now += 100.0
        return object()

    for how in ({"prepare": prepare}, {"single": True}):
        clock.log.clear()
        assert measure({"a": clock.side(0.5, **how)}, rounds=4, seconds=60.0) == {"a": [0.5] * 4}
        assert len(clock.log) == 1 + 4 * 2  # a call that is not timed before each that is
        assert len({id(given) for _, given in clock.log}) == (9 if "prepare" in how else 1)
    clock.log.clear()
    assert measure({"a": clock.side(0.5, count=lambda output: 10)}, rounds=4, seconds=60.0) == {"a": [0.05] * 4}
    assert len(clock.log) == 1 + 4  # each is timed, per step


@pytest.mark.slow
def test_a_row_in_two_processes():
    options = Options(quick=True, rllib=False)
    try:
        with remote_sides(stateless, options, ["epibatch", "floor"]) as sides:
            check_all_same({name: side.output for name, side in sides.items()})
            assert sides["epibatch"].output["obs"].shape == (4096, 4)
            assert all(side.calls(1.0) == 1 and 0 < side.turn(1) < 60 for side in sides.values())
        with pytest.raises(KeyError, match="nobody"), remote_sides(stateless, options, ["nobody"]):
            pass
    finally:
        stop_all()


# --------------------------------------------------------------------------------------------- targets

MEASURED = Measured({"epibatch": [2.0, 3.0, 8.0], "RLlib": [20.0, 60.0, 16.0], "floor": [1.0, 2.0, 4.0]})


def returns(ours, theirs):
    return Measured({"epibatch": ours, RLLIB: theirs}, unit="return")


DIFFERENCE = LearnsAsWell("of returns", 0.0, RLLIB, faster=True)


@pytest.mark.parametrize(
    ("target", "measured", "text", "judgement"),
    [
        (at_most(2), MEASURED, "<= 2 x floor", ("2 x (1.75 to 2)", "yes")),  # of 2, 1.5, 2
        (at_most(1.9), MEASURED, "<= 1.9 x floor", ("2 x (1.75 to 2)", "NO")),
        (times_faster(10), MEASURED, ">= 10 x faster than RLlib", ("10 x (6 to 15)", "yes")),  # of 10, 20, 2
        (times_faster(11), MEASURED, ">= 11 x faster than RLlib", ("10 x (6 to 15)", "NO")),
        (below(3.0, "<= 3 s"), MEASURED, "<= 3 s", ("3 s (2.5 s to 5.5 s)", "yes")),
        (below(2.9, "<= 2.9 s"), MEASURED, "<= 2.9 s", ("3 s (2.5 s to 5.5 s)", "NO")),
        (at_most(2), Measured({"epibatch": [6.0]}), "<= 2 x floor", ("-", "-")),
        (
            at_most(2),  # the fastest way of a side counts
            Measured({"epibatch": [6.0], "floor: slices": [3.0], "floor: take": [2.0], "floor without": [1.0]}),
            "<= 2 x floor",
            ("3 x", "NO"),
        ),
        # mean of epibatch - (mean of RLlib - standard deviation of RLlib)
        (DIFFERENCE, returns([300.0, 320.0], [290.0, 330.0]), "of returns", ("28.3 return", "yes")),
        (DIFFERENCE, returns([285.0, 285.0], [290.0, 330.0]), "of returns", ("3.28 return", "yes")),
        (DIFFERENCE, returns([280.0, 280.0], [290.0, 330.0]), "of returns", ("-1.72 return", "NO")),
        (DIFFERENCE, returns([280.0, 300.0], [291.0, 291.0]), "of returns", ("-1 return", "NO")),
        (DIFFERENCE, Measured({"epibatch": [1.0, 2.0]}), "of returns", ("-", "-")),
    ],
)
def test_targets(target: Target, measured, text, judgement):
    assert target.text == text and judged(target, measured) == judgement


def test_amounts():
    amounts = [(57.1, "s"), (1234.0, "s"), (9.99e-4, "s"), (4.56e-7, "s"), (1.5, "MiB")]
    assert [amount(*one) for one in amounts] == ["57.1 s", "1234 s", "999 us", "456 ns", "1.5 MiB"]


def test_rows_are_selected_by_name_first_parts_and_family():
    rows = [Row(name, "", lambda options: MEASURED) for name in ("L1", "L1/identity", "L10", "R1", "R1v", "E1/16")]
    selected = {only: [row.name for row in chosen(rows, only)] for only in ("L1", "R1, E1/16", "L")}
    assert list(selected.values()) == [["L1", "L1/identity"], ["R1", "E1/16"], ["L1", "L1/identity", "L10"]]
    assert len({row.name for row in all_rows()}) == len(all_rows()) and all(row.what for row in all_rows())


# ----------------------------------------------------------------------------------- the command, the page

ROWS = [
    Row("A1", "a row", lambda options: Measured({"epibatch": [2.0], "floor": [1.0]}), [at_most(3)]),
    Row("A2", "another", lambda options: Measured({"epibatch": [4.0], "floor": [1.0]}, note="noted"), [at_most(3)]),
]


@pytest.fixture
def run(monkeypatch, tmp_path):
    """The command, with two rows, in a repository of its own."""
    monkeypatch.setattr(cli, "all_rows", lambda: ROWS)
    monkeypatch.setattr(cli, "REPOSITORY", tmp_path)
    monkeypatch.chdir(tmp_path)
    return partial(CliRunner().invoke, cli.app)


def page_of(folder):
    return (folder / PAGE).read_text(encoding="utf-8")


def test_the_page_is_in_step_with_the_results():
    found = load([REPOSITORY / RESULTS])
    assert page_of(REPOSITORY) == page(found, all_rows()), "run `python -m benchmarks page`"
    assert {panel["sizes"][-1] for panel in found["growth"].values()} == {1024, 262_144}


def test_table_file_and_page(run, tmp_path):
    assert run(["--json", str(tmp_path / "quick.json"), "--quick"]).exit_code == 0
    assert not (tmp_path / "docs").exists()  # small sizes are not published
    result = run(["--json", str(tmp_path / "a.json")])
    assert result.exit_code == 0 and "written; see git diff" in result.output
    assert json.loads((tmp_path / "a.json").read_text())["rows"]["A2"]["values"] == {"epibatch": [4.0], "floor": [1.0]}
    text = page_of(tmp_path)
    assert "| A1 | a row | 2 s | - | 1 s | <= 3 x floor | 2 x | yes |" in text and "- A2: noted" in text
    assert "- A2: 4 x, target <= 3 x floor: no reason is known yet." in text
    assert "commit" not in (tmp_path / RESULTS).read_text()  # it may be gone when somebody looks for it
    quick = run(["page", str(tmp_path / "quick.json")])
    assert quick.exit_code == 2 and "no figures to publish" in " ".join(quick.output.replace("│", " ").split())


def test_some_rows_join_those_of_the_same_machine(run, tmp_path):
    run(["--only", "A1"])
    assert "Not measured yet: A2." in page_of(tmp_path)
    run(["--only", "A2"])
    assert "| A1 | a row |" in page_of(tmp_path) and "| A2 | another |" in page_of(tmp_path)
    results = tmp_path / RESULTS
    before, kept = page_of(tmp_path), json.loads(results.read_text())
    results.write_text(json.dumps(kept | {"machine": {"processor": "another", "threads": 1}}))
    assert "benchmarks.md is left as it is" in run(["--only", "A1"]).output and page_of(tmp_path) == before
    run([])  # all rows replace them
    assert json.loads(results.read_text())["machine"] == kept["machine"]
    assert "no row 'B1'; there are A1, A2" in run(["--only", "B1"]).output


def test_a_row_that_cannot_be_measured_is_told_and_the_others_go_on(run, tmp_path, monkeypatch):
    def fails(options):
        assert options.rllib is False
        raise DifferentValuesError("epibatch and floor: obs has 3 other values")

    monkeypatch.setattr(cli, "all_rows", lambda: [Row("A0", "a bad row", fails), *ROWS])
    monkeypatch.setattr(cli, "rllib_is_there", lambda: False)
    result = run(["--json", str(tmp_path / "a.json")])
    assert result.exit_code == 1 and "not measured: A0" in result.output
    assert "A0: DifferentValuesError: epibatch and floor: obs has 3 other values" in result.output
    assert "RLlib is not installed, so its column is empty: pip install" in result.output
    assert list(json.loads((tmp_path / "a.json").read_text())["rows"]) == ["A1", "A2"]


def test_a_picture_of_growth(tmp_path):
    series = {"epibatch": [1e-5, 1e-4], "floor": [1e-6, 1e-5], BLOCK: [1e-5, 2e-5]}
    panel = {"sizes": [1, 1024], "seconds": series}
    draw({"environments": panel, "timesteps": panel}, tmp_path / "new" / "a.png")
    assert (tmp_path / "new" / "a.png").read_bytes().startswith(b"\x89PNG")
