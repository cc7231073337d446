"""Every connector of RLlib's has its place here: each class and each name that a package of them offers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from epibatch.porting.offered_names import home_of
from stock.installed import rllib_file

OLD_STACK = ("action", "agent", "connector", "registry", "util")
"""Modules and packages below `ray.rllib.connectors` that only the old API stack uses."""


def files() -> Iterator[tuple[str, Path]]:
    """Modules of connectors and their files."""
    root = rllib_file("connectors")
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if parts[0] not in OLD_STACK:
            below = [part for part in parts if part != "__init__"]
            yield ".".join(["ray.rllib.connectors", *below]), path


def names(path: Path) -> set[str]:
    """Classes that a module defines, second names that it gives them, and what it says it offers."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            if node.targets[0].id == "__all__":
                found |= set(ast.literal_eval(node.value))
            elif isinstance(node.value, (ast.Name, ast.Call)) and node.targets[0].id[0].isupper():
                found.add(node.targets[0].id)
    return found


LISTED = [(module, name) for module, path in files() for name in sorted(names(path))]


def test_the_list_is_whole():
    found = {name for _, name in LISTED}
    assert len(found) >= 30
    assert {"MultiAgentObservationPreprocessor", "ObservationPreprocessor", "FrameStackingLearner"} <= found


@pytest.mark.parametrize(("module", "name"), LISTED)
def test_a_connector_is_here(module, name):
    home = home_of(module, name)
    assert home is not None, f"{module}.{name} has no place here"
    assert hasattr(import_module(home.module), home.name)
    assert home.module == module.replace("ray.rllib", "epibatch"), "porting is search and replace"
