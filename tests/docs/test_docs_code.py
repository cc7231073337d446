"""The Python blocks of README.md and docs/*.md run, and print what stands in the text block right under them."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import sys
import types
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = sorted([*REPOSITORY.glob("README.md"), *(REPOSITORY / "docs").glob("*.md")])
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks_of(text):
    """Python blocks as (first line, source, expected output or None)."""
    fences = list(FENCE.finditer(text))
    for fence, following in zip(fences, [*fences[1:], None]):
        if fence[1] != "python":
            continue
        # Only a text block with nothing but blank lines in between belongs to the Python block.
        belongs = following and following[1] == "text" and not text[fence.end() : following.start()].strip()
        yield text[: fence.start(2)].count("\n"), fence[2], following[2] if belongs else None


def run_page(path, module):
    """Run a page's blocks in one namespace; returns (line, expected, printed) of those with a text block."""
    outputs = []
    for line, source, expected in blocks_of(path.read_text(encoding="utf-8")):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * line + source, str(path), "exec"), module.__dict__)
        if expected is not None:
            outputs.append((line, expected, printed.getvalue()))
    return outputs


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_code_blocks_run(path, tmp_path, monkeypatch):
    shutil.copytree(REPOSITORY / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("docs_page")
    monkeypatch.setitem(sys.modules, "docs_page", module)  # dataclasses look their module up
    for line, expected, printed in run_page(path, module):
        assert printed == expected, f"{path.name}:{line}"


def test_porting_imports_exist():
    text = (REPOSITORY / "docs" / "porting.md").read_text(encoding="utf-8")
    table = text.partition("## Imports")[2].partition("##")[0]
    targets = re.findall(r"^\| `ray.*\| `(epibatch[\w.]*?)(?:\.\*)?`", table, re.MULTILINE)
    assert len(targets) >= 15
    for name in targets:
        __import__(name)


def test_blocks_are_found():
    text = "```python\na = 1\nprint(a)\n```\n\n```text\n1\n```\nt\n```python\nb = a\n```\nand\n\n```text\n2\n```\n"
    assert list(blocks_of(text)) == [(1, "a = 1\nprint(a)\n", "1\n"), (10, "b = a\n", None)]
