"""What the tables of docs/errors.md quote is in messages of the code, and each row leads to its class."""

from __future__ import annotations

import re
from pathlib import Path

from epibatch.core import errors
from sources import MODULES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "errors.md"
ROWS = re.findall(r"^\| (\[.*?|a warning) \| `(.*?)` \| .+ \| .+ \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def texts_of(constants):
    """The texts among constants of code, those of its functions and tuples included."""
    for value in constants:
        if isinstance(value, str):
            yield value
        else:
            yield from texts_of(value if isinstance(value, tuple) else getattr(value, "co_consts", ()))


def test_quoted_words_are_in_messages():
    codes = [compile(path.read_text(encoding="utf-8"), str(path), "exec") for path in MODULES.values()]
    texts = "\0".join(text for code in codes for text in texts_of(code.co_consts))
    assert len(ROWS) > 25
    assert [words for _, words in ROWS if words not in texts] == []


def test_each_row_leads_to_its_class():
    links = [link for cell, _ in ROWS for link in re.findall(r"\[(\w+)\]\(#(\w+)\)", cell)]
    assert [name for name, anchor in links if anchor != name.lower() or not hasattr(errors, name)] == []
