"""The tables of imports in docs/rllib-names.md are those that `epibatch port` goes by."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from epibatch.porting.rllib_names import MOVED_NAMES, RULES, offered_names

PAGE = Path(__file__).resolve().parents[2] / "docs" / "rllib-names.md"
IMPORTS = PAGE.read_text(encoding="utf-8").partition("## Imports")[2].partition("\n## ")[0]
ROW_MAP = [line.strip("|").split(" | ") for line in IMPORTS.splitlines() if line.startswith("| `")]
PAIRS = [(name, right) for left, right in ROW_MAP for name in re.findall(r"`([^`]+)`", left)]


def test_every_rule_and_every_moved_name_has_one_row():
    moved = [f"{module}.{name}" for module, name in MOVED_NAMES]
    assert sorted(name for name, _ in PAIRS) == sorted([*RULES, *moved])


@pytest.mark.parametrize(("theirs", "ours"), RULES.items())
def test_a_row_says_where_the_names_are_or_that_they_are_to_come(theirs, ours):
    right = dict(PAIRS)[theirs]
    if offered_names(ours.removesuffix(".*")) is None:
        assert right.strip().startswith("to come, with ")
    else:
        assert re.findall(r"`([^`]+)`", right) == [ours]


def test_moved_names_are_where_the_page_says():
    for (module, name), home in MOVED_NAMES.items():
        assert re.findall(r"`([^`]+)`", dict(PAIRS)[f"{module}.{name}"]) == [".".join(home)]
