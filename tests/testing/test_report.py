"""A report prints as a table, and answers by name."""

from __future__ import annotations

from epibatch.testing.contract import Fault
from epibatch.testing.report import CheckReport, CheckResult

FAULT = Fault("Clip.lookback", "1", "0,\n  really", "lookback = 1")
REPORT = CheckReport(
    "Clip",
    (
        CheckResult("data_form", "", "passed"),
        CheckResult("lookback", "learner", "failed", faults=(FAULT, FAULT)),
        CheckResult("lookback", "env_to_module", "passed"),
        CheckResult("chunks", "learner", "skipped", "because"),
        CheckResult("freeze", "learner", "not run", "runs failed"),
    ),
)


def test_it_prints_as_a_table():
    assert str(REPORT).splitlines() == [
        "Clip: 2 passed, 1 failed, 1 skipped, 1 not run",
        "check      side           outcome  why",
        "data_form  all            passed",
        "lookback   learner        failed   Clip.lookback: 0, really; Clip.lookback: 0, really",
        "lookback   env_to_module  passed",
        "chunks     learner        skipped  because",
        "freeze     learner        not run  runs failed",
    ]


def test_names_by_outcome():
    assert REPORT.passed == ["data_form", "lookback"]
    assert REPORT.failed == ["lookback"]
    assert REPORT.names("skipped") == ["chunks"]
    assert not REPORT.ok and len(REPORT) == 5
    assert CheckReport("Clip", REPORT.results[:1]).ok


def test_rows_are_plain_data():
    assert REPORT.rows()[3] == {"check": "chunks", "side": "learner", "outcome": "skipped", "why": "because"}


def test_nothing_was_checked():
    assert str(CheckReport("Clip", ())).startswith("Clip: no checks")


def test_faults_in_full():
    text = (
        "- lookback (learner): Clip.lookback\n    expected: 1\n    found:    0,\n    really\n    do:       lookback = 1"
    )
    assert REPORT.faults_text() == f"{text}\n{text}"
    assert CheckReport("Clip", REPORT.results[:1]).faults_text() == ""
