"""docs/benchmarks.md is what the saved results give, with everything that misses its target."""

from __future__ import annotations

import re

from benchmarks.page import PAGE, RESULTS, page, publish, section
from benchmarks.ppo_seeds import RECORD
from benchmarks.results import load, report, result_of, save
from benchmarks.row import Measured, Row, at_most
from benchmarks.rows import all_rows


def row(name, bound, missed=""):
    return Row(name, "a row", lambda options: Measured({}), [at_most(bound)], missed)


def results(*rows, **rest):
    measured = Measured({"epibatch": [3.0], "floor": [1.0]})
    return report([result_of(own, measured) for own in rows], "make bench", **rest)


def test_the_page_is_in_step_with_the_results():
    found = page(load([RESULTS]), all_rows())
    assert PAGE.read_text(encoding="utf-8") == found, "run `python -m benchmarks page`"


def test_the_picture_is_there():
    assert "](growth.png)" in PAGE.read_text(encoding="utf-8")
    assert (PAGE.parent / "growth.png").read_bytes().startswith(b"\x89PNG")


def test_publishing_keeps_the_results_and_writes_the_page(tmp_path):
    rows = [row("A", 4)]
    publish(results(*rows), rows, tmp_path)
    assert [own["name"] for own in load([tmp_path / "benchmarks" / "results.json"])["rows"]] == ["A"]
    assert "| A | a row | 3 s |" in (tmp_path / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert not (tmp_path / "docs" / "growth.png").exists()


def test_what_misses_its_target_is_listed_with_its_reason():
    rows = [row("A", 4), row("B", 2, missed="the loop is long"), row("C", 1)]
    text = section(results(*rows), rows)
    assert (
        "- B: 3 x, target <= 2 x floor: the loop is long.\n- C: 3 x, target <= 1 x floor: no reason is known yet."
        in text
    )
    assert "- A:" not in text


def test_everything_met_and_rows_that_wait():
    rows = [row("A", 4)]
    text = section(results(*rows), [*rows, row("B", 1)])
    assert "epibatch meets every target." in text
    assert text.endswith("Not measured yet: B.")
    assert "`make bench`" in text and "numpy" in text and "--quick" not in text
    assert "no figures to quote" in section(results(*rows, quick=True), rows)


def test_no_commit_is_published_which_may_be_gone_when_somebody_looks_for_it(tmp_path):
    rows = [row("A", 4)]
    measured = results(*rows)
    assert re.fullmatch(r"([0-9a-f]{10}\+?)?", measured["commit"])  # a file of one run says it
    save({**measured, "commit": "533fedbd50+"}, tmp_path / "run.json")
    published = load([tmp_path / "run.json"])
    assert "commit" not in published and "533fedbd50" not in section(published, rows)
    assert f"; {measured['when'][:10]}; `make bench`." in section(published, rows)
    assert "epibatch " in section(published, rows)
    assert not re.findall(r"commit|\b[0-9a-f]{10}\b", PAGE.read_text(encoding="utf-8"))
    for kept in (RESULTS, RECORD):
        assert "commit" not in kept.read_text(encoding="utf-8")


def test_notes_stand_below_the_table():
    rows = [row("A", 4), row("B", 4)]
    values = {"epibatch": [1.0]}
    noted = [result_of(rows[0], Measured(values, note="a sample")), result_of(rows[1], Measured(values))]
    text = section(report(noted, "make bench"), rows)
    assert "|\n\n- A: a sample\n\n" in text and "- B:" not in text


def test_a_row_without_figures_waits():
    rows = [row("A", 4), row("B", 4)]
    text = section(report([result_of(rows[0], Measured({}, note="nothing yet")), *results(rows[1])["rows"]], ""), rows)
    assert text.endswith("Not measured yet: A.") and "nothing yet" not in text
