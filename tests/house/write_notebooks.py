"""Write docs/notebooks: the tutorials as Jupyter notebooks, with the outputs that their pages show.

Usage: python tests/house/write_notebooks.py
"""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[2] / "docs"
FOLDER = DOCS / "notebooks"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(\]\()(?!\w+:|#)([^)\s]+\))")
ABOUT_NOTEBOOK = re.compile(r"\n[^\n]*\]\(notebooks/[^\n]*\n")
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def pages() -> dict[Path, str]:
    """Return the path of each notebook, and its text."""
    return {
        FOLDER / f"{page.stem}.ipynb": notebook(page.read_text(encoding="utf-8"))
        for page in sorted(DOCS.glob("tutorial-*.md"))
    }


def notebook(page: str) -> str:
    """Return a page as a notebook (nbformat 4.5): its python blocks are code, the text blocks below them output.

    Args:
        page: The text of the page. The line that links to its notebook is left out.
    """
    cells: list[dict[str, Any]] = []
    prose, begin = "", 0
    page = ABOUT_NOTEBOOK.sub("", page)
    add = partial(_add, cells)
    for fence in FENCE.finditer(page):
        prose += page[begin : fence.start()]
        begin = fence.end()
        if fence[1] == "python":
            add("markdown", LINK.sub(r"\1../\2", prose))
            add("code", fence[2], execution_count=None, outputs=[])
            prose = ""
        elif fence[1] == "text" and not prose.strip():
            cells[-1]["outputs"] = [{"name": "stdout", "output_type": "stream", "text": fence[2].splitlines(True)}]
        else:
            prose += fence[0]
    add("markdown", LINK.sub(r"\1../\2", prose + page[begin:]))
    content = {"cells": cells, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def _add(cells: list[dict[str, Any]], kind: str, text: str, **more: Any) -> None:
    """Append a cell, unless it has no text."""
    if lines := text.strip().splitlines(keepends=True):
        cells.append({"cell_type": kind, "id": f"cell-{len(cells)}", "metadata": {}, **more, "source": lines})


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
