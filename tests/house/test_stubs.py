"""The stubs of connectors have every piece."""

from __future__ import annotations

from write_stubs import stubs


def test_the_stubs_are_in_step_with_the_code():
    stale = [str(path) for path, text in stubs().items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "run `make generated` and commit what it writes"
