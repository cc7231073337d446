"""What `make generated` writes is what code and tables give: stubs, and pages of docs/."""

from __future__ import annotations

import re

import pytest

import write_config_stubs
import write_error_page
import write_features
import write_gallery
import write_notebooks
import write_stubs
from epibatch.core.registry import built_in_pieces, piece_class, piece_name

GENERATED = {
    "stubs of connectors": write_stubs.stubs,
    "stubs of configs": write_config_stubs.stubs,
    "classes of errors": lambda: {write_error_page.PAGE: write_error_page.page()},
    "gallery of pieces": write_gallery.files,
    "features": lambda: {write_features.PAGE: write_features.page()},
    "notebooks": write_notebooks.pages,
}


@pytest.mark.parametrize("name", GENERATED)
def test_it_is_in_step_with_the_code(name):
    stale = [str(path) for path, text in GENERATED[name]().items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "run `make generated` and commit what it writes"


def test_every_built_in_piece_has_an_entry_with_a_picture_or_words():
    entries = re.split(r"^### (\w+)$", write_gallery.PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert sorted(entries[::2]) == sorted({piece_name(piece_class(name)) for name in built_in_pieces()})
    without = {name for name, text in zip(entries[::2], entries[1::2]) if f"](gallery/{name}.svg)" not in text}
    assert without == {"check_finite", "video_recorder"}
    pictures = {path.stem for path in write_gallery.PICTURES.iterdir()}
    assert pictures == {"legend", *entries[::2]} - without
