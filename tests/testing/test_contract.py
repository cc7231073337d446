"""Checks have names, sentences and an order, and the docs list them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from epibatch.core.piece_declarations import PIPELINE_NAMES
from epibatch.testing.contract import Fault, contract_checks, contract_table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "contract-kit.md"


def test_the_page_has_the_table_of_the_code():
    assert contract_table() in PAGE.read_text(encoding="utf-8"), (
        f"put this into docs/contract-kit.md:\n{contract_table()}"
    )


@pytest.mark.parametrize("check", contract_checks().values(), ids=lambda check: check.name)
def test_each_check_says_what_it_is_about(check):
    assert re.fullmatch(r"[a-z_]+", check.name)
    assert re.fullmatch(r"[A-Z`][^\n|]+\.", check.sentence)
    assert check.sides and set(check.sides) <= set(PIPELINE_NAMES)


def test_checks_come_after_those_that_they_build_on():
    names = list(contract_checks())
    for check in contract_checks().values():
        assert set(check.after) <= set(names[: names.index(check.name)]), check.name


def test_a_fault_reads_like_every_error():
    fault = Fault("Piece.lookback", "1", "0", "write lookback = 1")
    assert str(fault) == "Piece.lookback\n  expected: 1\n  found:    0\n  do:       write lookback = 1"


def test_the_order_is_that_of_the_table_whatever_was_imported_first():
    code = (
        "import epibatch.testing.checks.state; from epibatch.testing import contract_checks; print(*contract_checks())"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.split() == list(contract_checks()) and printed.startswith("declarations")
