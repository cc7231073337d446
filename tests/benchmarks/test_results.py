"""What is saved: figures, ratios per round, targets; and files that are put together."""

from __future__ import annotations

import json

import pytest
from benchmarks.results import ResultsError, again, load, report, result_of, save
from benchmarks.row import Measured, Row, at_most, below, times_faster

VALUES = {"epibatch": [2.0, 3.0, 8.0], "RLlib": [20.0, 60.0, 16.0], "floor: a": [9.0] * 3, "floor: b": [1.0, 2.0, 4.0]}
ROW = Row("A1", "a row", lambda options: Measured(VALUES), [at_most(2), times_faster(13), below(3.5, "<= 3.5 s")])


def test_figures():
    result = result_of(ROW, Measured(VALUES, steps=7))
    assert result["sides"]["epibatch"] == {"median": 3.0, "low": 2.5, "high": 5.5, "rounds": [2.0, 3.0, 8.0]}
    assert result["ratios"] == {
        "epibatch / floor": {"median": 2.0, "low": 1.75, "high": 2.0},  # of 2, 1.5, 2
        "RLlib / epibatch": {"median": 10.0, "low": 6.0, "high": 15.0},  # of 10, 20, 2
    }
    assert [(own["text"], own["measured"]["median"], own["unit"], own["met"]) for own in result["targets"]] == [
        ("<= 2 x floor", 2.0, "x", True),
        (">= 13 x faster than RLlib", 10.0, "x", False),
        ("<= 3.5 s", 3.0, "s", True),
    ]
    assert (result["steps"], result["unit"]) == (7, "s")


def test_saved_figures_are_judged_by_the_targets_of_today():
    saved = json.loads(json.dumps(result_of(ROW, Measured(VALUES, steps=7))))
    assert again(ROW, saved) == saved
    stricter = Row("A1", "a row", ROW.measure, [at_most(1.9)], missed="because")
    judged = again(stricter, saved)
    assert [own["met"] for own in judged["targets"]] == [False] and judged["missed"] == "because"
    assert judged["sides"] == saved["sides"]


def test_a_side_that_is_missing_has_no_ratio_and_no_verdict():
    result = result_of(ROW, Measured({"epibatch": [1.0]}))
    assert result["ratios"] == {}
    assert [own["met"] for own in result["targets"]] == [None, None, True]


def test_later_files_replace_rows(tmp_path):
    def saved(name, rows, **changes):
        path = tmp_path / name
        save({**report(rows, name), **changes}, path)
        return path

    first = saved("a.json", [{"name": "A", "n": 1}, {"name": "B", "n": 1}], growth={"x": 1})
    second = saved("b.json", [{"name": "B", "n": 2}, {"name": "C", "n": 2}])
    both = load([first, second])
    assert [(row["name"], row["n"]) for row in both["rows"]] == [("A", 1), ("B", 2), ("C", 2)]
    assert both["growth"] == {"x": 1} and both["command"] == "a.json; b.json"
    save(both, tmp_path / "both.json")
    assert load([tmp_path / "both.json", second])["command"] == "a.json; b.json"
    with pytest.raises(ResultsError, match="another versions"):
        load([first, saved("c.json", [], versions={"numpy": "0"})])
    with pytest.raises(ResultsError, match="another machine"):
        load([first, saved("d.json", [], machine={"processor": "other"})])
