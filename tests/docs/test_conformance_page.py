"""The page of conformance holds the figures of a whole long run: every property that there is, with enough cases."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
CONFORMANCE = REPOSITORY / "tests" / "conformance"
PAGE = (REPOSITORY / "docs/internals/conformance.md").read_text(encoding="utf-8")
REGISTER = (REPOSITORY / "docs" / "differences-from-rllib.md").read_text(encoding="utf-8")
FEWEST = 10_000
SUM = re.compile(
    r"([\d,]+) random cases of ([\d,]+)\nproperties, at least ([\d,]+) of each; 0 unexplained mismatches\.\n"
)
ROW = re.compile(r"^\| `([\w/]+\.py::\w+)` \| ([\d,]+) \| ([\d,]+) \|$", re.MULTILINE)
DIFFERENCE = re.compile(r"^\| ([\w-]+) \| ([\d,]+) \|$", re.MULTILINE)


def properties() -> list[str]:
    """`file::test` of every property, as the sources have it."""
    found = []
    for path in sorted(CONFORMANCE.rglob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            calls = [own for own in getattr(node, "decorator_list", []) if isinstance(own, ast.Call)]
            if any(isinstance(own.func, ast.Name) and own.func.id == "random_cases" for own in calls):
                found.append(f"{path.relative_to(CONFORMANCE).as_posix()}::{node.name}")  # type: ignore[attr-defined]
    return found


def number(text: str) -> int:
    return int(text.replace(",", ""))


def faults(page: str) -> list[str]:
    """What is wrong with the figures between the marks of a page."""
    figures = page.partition("<!-- figures of make conformance -->\n")[2].partition("<!-- end of figures -->")[0]
    rows = [(name, number(many), number(cases)) for name, many, cases in ROW.findall(figures)]
    named, there = {row[0] for row in rows}, set(properties())
    found = [f"no row: {name}" for name in sorted(there - named)]
    found += [f"no such property: {name}" for name in sorted(named - there)]
    found += [f"twice: {name}" for name in sorted(named) if [row[0] for row in rows].count(name) > 1]
    found += [f"too few cases: {name}" for name, many, cases in rows if not many or cases < FEWEST * many]
    listed = set(re.findall(r"^\| `?([\w-]+)`? \|", REGISTER, re.MULTILINE))
    found += [f"not listed: {name}" for name, _ in DIFFERENCE.findall(figures) if name not in listed]
    stated = SUM.search(figures)
    if stated is None:
        return [*found, "not said that there are 0 unexplained mismatches"]
    total, many, least = map(number, stated.groups())
    sums = (sum(row[2] for row in rows), sum(row[1] for row in rows))
    return found + ["the sums are others"] * (sums != (total, many)) + ["too few cases of each"] * (least < FEWEST)


def test_the_page_holds_the_figures_of_a_whole_long_run():
    if ROW.search(PAGE) is None:
        pytest.skip("no figures yet: make conformance CASES=10000, then make conformance-page")
    assert faults(PAGE) == []


def invented() -> str:
    """A page as it should be, for as long as the real one has no figures to spoil."""
    names = properties()
    rows = "".join(f"| `{name}` | 1 | {FEWEST:,} |\n" for name in names)
    stated = f"{FEWEST * len(names):,} random cases of {len(names)}\nproperties, at least {FEWEST:,} of each; "
    text = f"{stated}0 unexplained mismatches.\n\n{rows}"
    return PAGE.replace("<!-- end of figures -->", text + "<!-- end of figures -->")


def test_a_page_with_them_is_accepted():
    assert faults(FILLED) == []


def test_properties_are_found_in_the_sources():
    found = properties()
    assert len(found) == len(set(found)) > 40
    assert "pipelines/test_learner_pipeline.py::test_train_batches" in found
    assert "pieces/test_every_piece.py::test_those_by_themselves_have_their_property" not in found


FILLED = PAGE if ROW.search(PAGE) else invented()
FIRST = ROW.search(FILLED)
SPOILED = {
    "a row is gone": (lambda page, row: page.replace(row[0] + "\n", ""), "no row: "),
    "a row of a property that is gone": (
        lambda page, row: page.replace(row[0], row[0].replace("::", "::x_")),
        "no such",
    ),
    "a row is there twice": (lambda page, row: page.replace(row[0], f"{row[0]}\n{row[0]}"), "twice: "),
    "a property ran too few": (lambda page, row: page.replace(row[0], f"| `{row[1]}` | {row[2]} | 9,999 |"), "too few"),
    "one failed": (lambda page, row: page.replace("0 unexplained mismatches", "1 tests failed"), "not said"),
    "least": (lambda page, row: re.sub(r"at least [\d,]+ of", "at least 9,999 of", page), "too few cases of each"),
    "another sum": (lambda page, row: re.sub(r"[\d,]+ random cases", "7 random cases", page), "the sums"),
    "no figures": (lambda page, row: re.sub(r"(?s)<!-- figures.*<!-- end of figures -->", "", page), "no row: "),
    "an unknown difference": (lambda page, row: page.replace(row[0], f"{row[0]}\n| O99 | 3 |"), "not listed: O99"),
}


@pytest.mark.parametrize("what", SPOILED)
def test_a_page_without_them_is_refused(what):
    spoil, expected = SPOILED[what]
    assert FIRST is not None
    spoiled = spoil(FILLED, FIRST)
    assert spoiled != FILLED
    assert any(fault.startswith(expected) for fault in faults(spoiled)), faults(spoiled)
