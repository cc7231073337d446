"""The register of differences has every fault once, and every test it names exists."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
REGISTER = (REPOSITORY / "docs" / "differences-from-rllib.md").read_text(encoding="utf-8")
FAULTS = 62
STATUS = re.compile(r"fixed|inherited|later: .+")
PURPOSE_ID = re.compile(r"`[a-z0-9]+(-[a-z0-9]+)*`")
NODE = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
PROBES = ("tests/conformance/faults", "tests/conformance/on_purpose")


def table_rows():
    """The cells of every row of every table, header rows left out."""
    for line in REGISTER.splitlines():
        if line.startswith("| ") and not line.startswith("| id |"):
            yield [cell.strip() for cell in line.strip("|").split(" | ")]


ROWS = list(table_rows())
FAULT_ROWS = [row for row in ROWS if re.fullmatch(r"O\d+", row[0])]
PURPOSE_ROWS = [row for row in ROWS if row not in FAULT_ROWS]
NODES = sorted({match for row in ROWS for match in NODE.findall(row[-1])})


def names_in(path):
    """Names of the test functions of a file."""
    tree = ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def probes():
    """(path, name, id) of every probe: the tests whose decorator says which row they belong to."""
    for path in [path for folder in PROBES for path in sorted((REPOSITORY / folder).glob("test_*.py"))]:
        for function in ast.parse(path.read_text(encoding="utf-8")).body:
            for decorator in getattr(function, "decorator_list", []):
                if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", None) == "probe":
                    yield path.relative_to(REPOSITORY).as_posix(), function.name, ast.literal_eval(decorator.args[0])


def test_every_fault_has_exactly_one_row():
    assert Counter(row[0] for row in FAULT_ROWS) == Counter(f"O{number}" for number in range(1, FAULTS + 1))


def test_rows_are_complete():
    assert [row[0] for row in ROWS if len(row) != 5 or not all(row)] == []
    assert [row[:2] for row in FAULT_ROWS if not STATUS.fullmatch(row[1])] == []


def test_every_difference_on_purpose_has_an_id_of_its_own():
    assert [row[:2] for row in PURPOSE_ROWS if not PURPOSE_ID.fullmatch(row[0])] == []
    assert [id_ for id_, count in Counter(row[0] for row in PURPOSE_ROWS).items() if count > 1] == []


def test_what_is_not_put_off_names_a_test():
    put_off = [row for row in FAULT_ROWS if row[1].startswith("later: ")]
    assert [row[0] for row in ROWS if not NODE.search(row[-1]) and row not in put_off] == []


def test_rows_name_their_own_probes_and_every_fixed_fault_has_one():
    named = {(*node, row[0].strip("`")) for row in ROWS for node in NODE.findall(row[-1]) if node[0].startswith(PROBES)}
    assert named == set(probes())
    assert {row[0] for row in FAULT_ROWS if row[1] == "fixed"} - {id_ for _, _, id_ in named} == set()


def test_the_counts_in_the_text_are_those_of_the_rows():
    kinds = Counter(row[1].partition(":")[0] for row in FAULT_ROWS)
    sentence = f"Of {FAULTS} faults {kinds['fixed']} are fixed, {kinds['inherited']} is inherited, and {kinds['later']}"
    assert sentence in REGISTER


@pytest.mark.parametrize("path", sorted({path for path, _ in NODES}))
def test_named_tests_exist(path):
    named = {name for own, name in NODES if own == path}
    assert (REPOSITORY / path).is_file()
    assert named - names_in(path) == set()


def test_nothing_that_looks_like_a_test_is_misspelt():
    mentioned = re.findall(r"tests/[\w/.]+::\w+", REGISTER)
    assert sorted(set(mentioned)) == [f"{path}::{name}" for path, name in NODES]
