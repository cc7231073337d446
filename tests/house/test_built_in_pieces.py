"""The table of how to try built-in pieces has each of them, and no others."""

from __future__ import annotations

from ruamel.yaml import YAML

from epibatch.core.registry import BUILT_IN_PIECES


def test_every_built_in_piece_is_tried(repository):
    text = (repository / "tests" / "built_in_pieces.yaml").read_text(encoding="utf-8")
    missing = sorted(set(BUILT_IN_PIECES) - set(YAML(typ="safe").load(text)))
    assert missing == [], (
        "add a line to tests/built_in_pieces.yaml, `my_piece: {}` say, and run tests/test_built_in_pieces.py"
    )
    assert sorted(set(YAML(typ="safe").load(text)) - set(BUILT_IN_PIECES)) == [], "no such piece"
