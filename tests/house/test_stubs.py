"""The stubs of connectors have every piece, those of configs every setting."""

from __future__ import annotations

import write_config_stubs
import write_stubs


def test_the_stubs_are_in_step_with_the_code():
    stubs = write_stubs.stubs() | write_config_stubs.stubs()
    stale = [str(path) for path, text in stubs.items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "run `make generated` and commit what it writes"
