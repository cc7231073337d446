"""docs/internals/engine.md and the docstrings it names: every file and function exists, every module is listed."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs/internals/engine.md"
TEXT = PAGE.read_text(encoding="utf-8")
PICTURE = PAGE.with_name("engine.svg").read_text(encoding="utf-8")
ROOTS = [REPOSITORY / "connectors", REPOSITORY, REPOSITORY / "src/epibatch"]
FOLDERS = ["connectors/_engine", "episodes/_storage", "episodes/_parts"]
FILE = re.compile(r"[\w/]+\.py\b")
DEFINED = re.compile(r"`([\w/]+\.py)` \(((?:`[\w.]+`(?:, )?)+)\)")
DEFINED_IN = re.compile(r"`([\w.]+)` (?:\(|in )`([\w/]+\.py)`")
CLASS_IN = re.compile(r"`(\w+)` \(`(common|learner|module_to_env)/`\)")


def paths_of(name, roots=ROOTS):
    return [root / name for root in roots if (root / name).is_file()]


def names_in(path):
    """Classes and functions of a file, methods and fields as Class.name."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            yield node.name
        for inner in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(inner, ast.FunctionDef):
                yield f"{node.name}.{inner.name}"


def missing(text):
    """What a text names and does not exist."""
    yield from (name for name in FILE.findall(text) if not paths_of(name))
    pairs = [(file, name) for file, names in DEFINED.findall(text) for name in re.findall(r"`([\w.]+)`", names)]
    for file, name in pairs + [(file, name) for name, file in DEFINED_IN.findall(text)]:
        if not any(name in names_in(path) for path in paths_of(file)):
            yield f"{file}: {name}"
    for name, folder in CLASS_IN.findall(text):
        file = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() + ".py"
        if not paths_of(f"{folder}/{file}"):
            yield f"{folder}/{file}"


def test_files_and_functions_of_the_page_exist():
    assert len(DEFINED.findall(TEXT)) > 10
    assert list(missing(TEXT)) == []


def test_files_in_the_picture_exist():
    files = FILE.findall(PICTURE)
    assert files and [name for name in files if not paths_of(name, [*ROOTS, REPOSITORY / "episodes"])] == []


def test_what_is_not_there_is_found():
    text = "`no.py`, `_engine/run.py` (`run_plan`, `no_plan`), `Plan.x` in `_engine/plan.py`, `NoPiece` (`common/`)"
    absent = ["no.py", "_engine/run.py: no_plan", "_engine/plan.py: Plan.x", "common/no_piece.py"]
    assert list(missing(text)) == absent


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_docstring_lists_every_module(folder):
    tree = ast.parse((REPOSITORY / folder / "__init__.py").read_text(encoding="utf-8"))
    listed = re.findall(r"^    (\w+): ", ast.get_docstring(tree), re.MULTILINE)
    assert sorted(listed) == sorted(path.stem for path in (REPOSITORY / folder).glob("*.py") if path.stem != "__init__")
