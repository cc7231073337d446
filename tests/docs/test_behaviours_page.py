"""The page of behaviours names every number once, and exactly the tests that say they hold it."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
ITEMS = REPOSITORY / "tests" / "conformance" / "items"
PAGE = (REPOSITORY / "docs/internals/conformance.md").read_text(encoding="utf-8")
ROWS = {row[0]: row for row in re.findall(r"^\| (C\d+) \| (.+) \| (.+) \|$", PAGE, re.MULTILINE)}
NUMBERS = [f"C{number}" for number in range(1, 66)]


def held():
    """Number -> `file::test` of every test that is decorated with it, in the order of the files."""
    tests = defaultdict(list)
    for path in sorted(ITEMS.glob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
                continue
            for call in node.decorator_list:
                if isinstance(call, ast.Call) and getattr(call.func, "id", None) == "behaviour":
                    for number in call.args:
                        tests[ast.literal_eval(number)].append(f"{path.name}::{node.name}")
    return tests


def test_every_behaviour_has_one_row():
    assert re.findall(r"^\| (C\d+) \|", PAGE, re.MULTILINE) == list(ROWS) == NUMBERS


def test_rows_name_the_tests_that_hold_the_behaviour():
    tests = held()
    assert set(tests) <= set(NUMBERS)
    for number, (_, text, named) in ROWS.items():
        assert re.findall(r"`(test_\w+\.py::test_\w+)`", named) == tests[number], number
        assert text and "|" not in text


def test_what_is_not_tested_says_what_it_belongs_to():
    tests = held()
    put_off = {number: named for number, (_, _, named) in ROWS.items() if not tests[number]}
    assert {number: named for number, named in put_off.items() if not re.fullmatch(r"later: [\w ]+", named)} == {}
    assert set(put_off.values()) == {"later: replay buffers"}
