"""docs/internals/features.md: rows in order, each once, and what shows a feature exists."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs/internals"
PAGE = (DOCS / "features.md").read_text(encoding="utf-8")
SECTIONS = {"Trajectory views": "V", "Transforms": "X"}
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
LINK = re.compile(r"\[[^\]]+\]\(([^)#]+)(?:#([\w-]+))?\)")


def rows_of(section):
    """The cells of a section's table."""
    body = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in re.findall(r"^\| [A-Z]\d.*$", body, re.M)
    ]


ROWS = [row for section in SECTIONS for row in rows_of(section)]
ID = re.compile(r"[VX]\d+")


def functions_in(path):
    """Names of the test functions of a file, those in classes too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def anchors_in(path):
    """What the headings of a Markdown page can be linked by."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def missing(cell):
    """What a row's last cell names and does not exist."""
    for path, name in TEST.findall(cell):
        if not (REPOSITORY / path).is_file() or name not in functions_in(REPOSITORY / path):
            yield f"{path}::{name}"
    for target, anchor in LINK.findall(cell):
        page = DOCS / target
        if not page.is_file() or (anchor and anchor not in anchors_in(page)):
            yield f"{target}#{anchor}" if anchor else target


def test_every_row_of_the_page_stands_in_its_section():
    assert len(re.findall(r"^\| [VX]\d+ ", PAGE, re.M)) == len(ROWS) > 0
    for section, letter in SECTIONS.items():
        assert {row[0][0] for row in rows_of(section)} <= {letter}


def test_ids_are_in_order_and_each_stands_once():
    for section in SECTIONS:
        ids = [row[0] for row in rows_of(section)]
        assert all(ID.fullmatch(id_) for id_ in ids)
        assert [id_ for id_, count in Counter(ids).items() if count > 1] == []
        assert ids == sorted(ids, key=lambda id_: int(id_[1:])), section


def test_only_ids_of_the_two_lists():
    known = {*(f"V{number}" for number in range(14, 34)), *(f"X{number}" for number in range(1, 65))}
    assert {row[0] for row in ROWS} - known == set()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_is_whole_and_what_shows_it_exists(row):
    assert len(row) == 4 and all(row)
    assert TEST.search(row[-1]) or LINK.search(row[-1])
    assert list(missing(row[-1])) == []
    rest = LINK.sub("", TEST.sub("", row[-1]))
    assert not set(rest) - set(" ,;"), "only tests and links, as `tests/...py::test_name` and [page](page.md)"


def test_what_is_not_there_is_found():
    cell = "`tests/docs/test_features_page.py::test_nobody`, [no](no.md), [a](../design.md#nothing), [b](../design.md)"
    assert list(missing(cell)) == [
        "tests/docs/test_features_page.py::test_nobody",
        "no.md",
        "../design.md#nothing",
    ]
