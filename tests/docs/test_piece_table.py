"""docs/piece-table.md is what the code gives."""

from __future__ import annotations

from write_piece_table import PAGE, page


def test_the_page_is_in_step_with_the_code():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make generated` and commit what it writes"
