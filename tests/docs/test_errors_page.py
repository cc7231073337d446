"""What the tables of docs/errors.md quote is in messages of the code, and each row leads to its class."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from epibatch.core import errors
from sources import MODULES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "errors.md"
ROWS = re.findall(r"^\| (\[.*?|a warning) \| `(.*?)` \| .+ \| .+ \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def test_quoted_words_are_in_messages():
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in MODULES.values())
    nodes = (node for tree in trees for node in ast.walk(tree))
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    assert len(ROWS) > 25
    assert [words for _, words in ROWS if not any(words in text for text in texts)] == []


def test_each_row_leads_to_its_class():
    links = [link for cell, _ in ROWS for link in re.findall(r"\[(\w+)\]\(#(\w+)\)", cell)]
    assert [name for name, anchor in links if anchor != name.lower() or not hasattr(errors, name)] == []
