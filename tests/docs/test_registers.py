"""Pages with tables of tests: every row once, complete, and every test that it names exists."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"
CONFORMANCE = REPOSITORY / "tests" / "conformance"
NODE = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
LINK = re.compile(r"\[[^\]]+\]\(([^)#]+)(?:#([\w-]+))?\)")


@cache
def functions_in(path):
    """The test functions of a file by name, those in classes too."""
    if not path.is_file():
        return {}
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return {node.name: node for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def decorated(folder, name):
    """(file, function, call) of every test below a folder with a decorator of this name."""
    for path in sorted(folder.rglob("test_*.py")):
        for function in functions_in(path).values():
            for call in function.decorator_list:
                if isinstance(call, ast.Call) and getattr(call.func, "id", None) == name:
                    yield path, function.name, call


def rows_of(text, pattern):
    """The cells of the rows of tables whose first cell matches."""
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in re.findall(r"^\| .*$", text, re.M)]
    return [row for row in rows if re.fullmatch(pattern, row[0])]


@cache
def names_in(path):
    """The names of the test functions of a file, without parsing it."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return set(re.findall(r"^ *(?:async )?def (test_\w+)\(", text, re.MULTILINE))


def missing_tests(text):
    return [f"{path}::{name}" for path, name in NODE.findall(text) if name not in names_in(REPOSITORY / path)]


def doubled(names):
    return [name for name, count in Counter(names).items() if count > 1]


# ------------------------------------------------------------------------------------ features.md

FEATURES = (DOCS / "internals/features.md").read_text(encoding="utf-8")
FEATURE_ROWS = rows_of(FEATURES, r"[VMTXL]\d+")
FAMILIES = {"V": 33, "M": 30, "T": 80, "X": 64, "L": 25}


def test_features_are_in_order_and_each_is_there_once():
    known = [f"{letter}{number}" for letter, many in FAMILIES.items() for number in range(1, many + 1)]
    assert [row[0] for row in FEATURE_ROWS] == known


def test_what_shows_a_feature_exists():
    for row in FEATURE_ROWS:
        assert len(row) == 4 and all(row), row
        tests, links = NODE.findall(row[-1]), LINK.findall(row[-1])
        assert missing_tests(row[-1]) == [] and (tests or links or row[2].startswith("not here: ")), row
        assert [target for target, _ in links if not (DOCS / "internals" / target).is_file()] == [], row
        assert set(LINK.sub("", NODE.sub("", row[-1]))) <= set(" ,-"), row


def test_a_test_that_is_not_there_is_found():
    gone = "tests/docs/test_registers.py::test_nobody"
    assert missing_tests(f"`{gone}`, `tests/docs/test_registers.py::test_a_test_that_is_not_there_is_found`") == [gone]


# ------------------------------------------------------------------------ differences-from-rllib.md

REGISTER = (DOCS / "differences-from-rllib.md").read_text(encoding="utf-8")
FAULTS = 62
FAULT_ROWS = rows_of(REGISTER, r"O\d+")
PURPOSE_ROWS = rows_of(REGISTER, r"`[a-z0-9-]+`")
PROBES = "tests/conformance/probes"


def test_every_fault_and_every_difference_has_one_row():
    assert [row[0] for row in FAULT_ROWS] and doubled(row[0] for row in FAULT_ROWS + PURPOSE_ROWS) == []
    assert {row[0] for row in FAULT_ROWS} == {f"O{number}" for number in range(1, FAULTS + 1)}
    assert len(rows_of(REGISTER, r"(?!id$).*")) == len(FAULT_ROWS + PURPOSE_ROWS), "an id is misspelt"
    assert [row[0] for row in FAULT_ROWS + PURPOSE_ROWS if len(row) != 5 or not all(row)] == []
    assert [row[:2] for row in FAULT_ROWS if not re.fullmatch(r"fixed|inherited|later: .+", row[1])] == []
    kinds = Counter(row[1].partition(":")[0] for row in FAULT_ROWS)
    sentence = f"Of {FAULTS} faults {kinds['fixed']} are fixed, {kinds['inherited']} is inherited, and {kinds['later']}"
    assert sentence in REGISTER


def test_rows_name_their_own_probes():
    rows = FAULT_ROWS + PURPOSE_ROWS
    named = {(*node, row[0].strip("`")) for row in rows for node in NODE.findall(row[-1]) if node[0].startswith(PROBES)}
    found = list(decorated(REPOSITORY / PROBES, "probe"))
    probes = {(p.relative_to(REPOSITORY).as_posix(), name, ast.literal_eval(call.args[0])) for p, name, call in found}
    assert named == probes
    assert {row[0] for row in FAULT_ROWS if row[1] == "fixed"} <= {id_ for _, _, id_ in named}
    put_off = [row[0] for row in FAULT_ROWS if row[1].startswith("later: ")]
    assert [row[0] for row in rows if not NODE.search(row[-1]) and row[0] not in put_off] == []
    assert missing_tests(REGISTER) == []
    assert len(re.findall(r"tests/[\w/.]+::\w+", REGISTER)) == len(NODE.findall(REGISTER)), "one is not in backticks"


# ---------------------------------------------------------------------- differences-from-rsl-rl.md


def test_every_difference_from_rsl_rl_names_its_test():
    page = (DOCS / "differences-from-rsl-rl.md").read_text(encoding="utf-8")
    rows = rows_of(page, r"R\d+")
    assert [row[0] for row in rows] == [f"R{i + 1}" for i in range(len(rows))] and len(rows) > 5
    assert [row for row in rows if len(row) != 4 or not all(row) or not NODE.search(row[-1])] == []
    assert missing_tests(page) == []


# ----------------------------------------------------------------------- conformance.md: behaviours

PAGE = (DOCS / "internals/conformance.md").read_text(encoding="utf-8")
BEHAVIOURS = {row[0]: row for row in rows_of(PAGE, r"C\d+")}


def test_rows_of_behaviours_name_the_tests_that_hold_them():
    tests = defaultdict(list)
    for path, name, call in [*decorated(CONFORMANCE, "behaviour"), *decorated(CONFORMANCE, "holds")]:
        for number in call.args:
            tests[ast.literal_eval(number)].append(f"{path.name}::{name}")
    assert list(BEHAVIOURS) == [f"C{number}" for number in range(1, 66)] and set(tests) <= set(BEHAVIOURS)
    for number, (_, text, named) in BEHAVIOURS.items():
        assert sorted(re.findall(r"`(test_\w+\.py::test_\w+)`", named)) == sorted(tests[number]), number
        assert text and tests[number], number


# ------------------------------------------------------------------------- conformance.md: figures

FEWEST = 10_000
SUM = re.compile(
    r"([\d,]+) random cases of ([\d,]+)\nproperties, at least ([\d,]+) of each; 0 unexplained mismatches\.\n"
)
FIGURE = re.compile(r"^\| `([\w/]+\.py::\w+)` \| ([\d,]+) \| ([\d,]+) \|$", re.MULTILINE)


def properties():
    """`file::test` of every property, as the sources have it."""
    found = decorated(CONFORMANCE, "random_cases")
    return [f"{path.relative_to(CONFORMANCE).as_posix()}::{name}" for path, name, _ in found]


def number(text):
    return int(text.replace(",", ""))


def faults(page):
    """What is wrong with the figures between the marks of a page."""
    figures = page.partition("<!-- figures of make conformance -->\n")[2].partition("<!-- end of figures -->")[0]
    rows = [(name, number(many), number(cases)) for name, many, cases in FIGURE.findall(figures)]
    named, there = [row[0] for row in rows], set(properties())
    found = [f"no row: {name}" for name in sorted(there - set(named))]
    found += [f"no such property: {name}" for name in sorted(set(named) - there)]
    found += [f"twice: {name}" for name in doubled(named)]
    found += [f"too few cases: {name}" for name, many, cases in rows if not many or cases < FEWEST * many]
    listed = {row[0].strip("`") for row in FAULT_ROWS + PURPOSE_ROWS}
    differences = re.findall(r"^\| ([\w-]+) \| [\d,]+ \|$", figures, re.MULTILINE)
    found += [f"not listed: {name}" for name in differences if name not in listed]
    stated = SUM.search(figures)
    if stated is None:
        return [*found, "not said that there are 0 unexplained mismatches"]
    sums = (sum(row[2] for row in rows), sum(row[1] for row in rows))
    found += ["the sums are others"] * (sums != (number(stated[1]), number(stated[2])))
    return found + ["too few cases of each"] * (number(stated[3]) < FEWEST)


def test_the_page_holds_the_figures_of_a_whole_long_run():
    if FIGURE.search(PAGE) is None:
        pytest.skip("no figures yet: make conformance CASES=10000, then make conformance-page")
    assert faults(PAGE) == []


def test_figures_that_are_wrong_are_found():
    rows = "".join(f"| `{name}` | 1 | {FEWEST:,} |\n" for name in properties())
    count = len(properties())
    stated = f"{FEWEST * count:,} random cases of {count}\nproperties, at least {FEWEST:,} of each; 0 unexplained"
    page = f"<!-- figures of make conformance -->\n{stated} mismatches.\n\n{rows}<!-- end of figures -->"
    first = FIGURE.search(page)
    assert count > 40 and faults(page) == []
    for old, new, expected in (
        (first[0] + "\n", "", "no row: "),
        (first[0], first[0].replace("::", "::x_"), "no such property: "),
        (first[0], f"{first[0]}\n{first[0]}", "twice: "),
        (first[0], f"| `{first[1]}` | {first[2]} | 9,999 |", "too few cases: "),
        ("0 unexplained mismatches", "1 tests failed", "not said"),
        (first[0], f"{first[0]}\n| O99 | 3 |", "not listed: O99"),
    ):
        assert any(fault.startswith(expected) for fault in faults(page.replace(old, new))), expected
