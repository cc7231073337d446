"""What `make generated` writes is what code and tables give: stubs, and pages of docs/."""

from __future__ import annotations

import pytest

import write_config_stubs
import write_error_page
import write_features
import write_notebooks
import write_piece_table
import write_stubs

GENERATED = {
    "stubs of connectors": write_stubs.stubs,
    "stubs of configs": write_config_stubs.stubs,
    "classes of errors": lambda: {write_error_page.PAGE: write_error_page.page()},
    "table of pieces": lambda: {write_piece_table.PAGE: write_piece_table.page()},
    "features": lambda: {write_features.PAGE: write_features.page()},
    "notebooks": write_notebooks.pages,
}


@pytest.mark.parametrize("name", GENERATED)
def test_it_is_in_step_with_the_code(name):
    stale = [str(path) for path, text in GENERATED[name]().items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "run `make generated` and commit what it writes"
