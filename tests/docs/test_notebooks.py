"""The notebooks of docs/notebooks can be opened, their links lead somewhere, and their cells print what they show."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import types
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
OF_CODE = {"cell_type", "id", "metadata", "source", "execution_count", "outputs"}
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells_of(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def test_each_tutorial_is_a_notebook():
    assert [path.stem for path in NOTEBOOKS] == sorted(page.stem for page in DOCS.glob("tutorial-*.md"))
    assert len(NOTEBOOKS) == 5


@each_notebook
def test_the_form_is_that_of_nbformat(path):
    content = json.loads(path.read_text(encoding="utf-8"))
    assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in content["cells"]]
    assert len(set(ids)) == len(ids) and all(re.fullmatch(r"[\w-]{1,64}", name) for name in ids)
    for cell in content["cells"]:
        expected = OF_CODE if cell["cell_type"] == "code" else OF_CODE - {"execution_count", "outputs"}
        assert set(cell) == expected and "".join(cell["source"]).strip()


@each_notebook
def test_links_lead_from_the_folder_of_the_notebooks(path):
    prose = "\n".join("".join(cell["source"]) for cell in cells_of(path) if cell["cell_type"] == "markdown")
    targets = re.findall(r"\]\((?!https?:)([^)#\s]+)", prose)
    assert targets and [target for target in targets if not (path.parent / target).is_file()] == []
    assert "```python" not in prose and path.name not in prose


@pytest.mark.slow
@each_notebook
def test_cells_print_what_they_show(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("docs_page")  # as for the pages, which register the same names
    monkeypatch.setitem(sys.modules, "docs_page", module)  # dataclasses look their module up
    code = [cell for cell in cells_of(path) if cell["cell_type"] == "code"]
    for cell in code:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("".join(cell["source"]), cell["id"], "exec"), module.__dict__)
        shown = "".join(line for output in cell["outputs"] for line in output["text"])
        assert printed.getvalue() == shown, cell["id"]
    assert any(cell["outputs"] for cell in code)
