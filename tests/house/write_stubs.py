"""Write the stubs of `epibatch.connectors`: every piece is a public name of it and of the package it is in.

A piece is a public class that is a concrete subclass of ConnectorV2 and no pipeline. Other names of a stub are kept.

Usage: python tests/house/write_stubs.py
"""

from __future__ import annotations

import inspect
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from epibatch.connectors import ConnectorPipelineV2, ConnectorV2
from epibatch.core.lazy import public_names
from sources import MODULES, PACKAGES

ROOT = "epibatch.connectors"
HEAD = "# `make generated` writes the pieces that this package defines; other names are kept.\n\n"
LINE_LENGTH = 120

Homes = dict[str, str]
"""The module that defines each public name."""


def stubs() -> dict[Path, str]:
    """Return the text of each stub of `epibatch.connectors`."""
    pieces = {name: module for module in MODULES for name in _pieces_of(module)}
    homes = {package: _kept_names(package) for package in PACKAGES if package.startswith(ROOT) and "._" not in package}
    for name, module in pieces.items():
        homes[ROOT][name] = homes[module.rpartition(".")[0]][name] = module
    return {PACKAGES[package] / "__init__.pyi": stub_text(package, own) for package, own in homes.items()}


def stub_text(package: str, homes: Homes) -> str:
    """Return a stub that imports names from their modules, one import for each module."""
    lines = [_import_of(package, module, homes) for module in set(homes.values())]
    return HEAD + "".join(sorted(lines, key=lambda line: line.split()[1]))


def _import_of(package: str, module: str, homes: Homes) -> str:
    names = [f"{name} as {name}" for name in sorted(homes) if homes[name] == module]
    inside = module.startswith(f"{package}.")
    relative = module.removeprefix(package) if inside else f".{module.removeprefix(package.rpartition('.')[0])}"
    line = f"from {relative} import {', '.join(names)}"
    if len(line) <= LINE_LENGTH:
        return f"{line}\n"
    return f"from {relative} import (\n" + "".join(f"    {name},\n" for name in names) + ")\n"


def _pieces_of(module: str) -> list[str]:
    if not module.startswith(f"{ROOT}.") or "._" in module or module in PACKAGES:
        return []
    public = {name: value for name, value in vars(import_module(module)).items() if not name.startswith("_")}
    return [name for name, value in public.items() if _is_piece(value, module)]


def _is_piece(defined: object, module: str) -> bool:
    if not isinstance(defined, type) or not issubclass(defined, ConnectorV2) or defined.__module__ != module:
        return False
    return not inspect.isabstract(defined) and not issubclass(defined, ConnectorPipelineV2)


def _kept_names(package: str) -> Homes:
    known = {name: module for name, module in public_names(package).items() if find_spec(module)}
    pieces = {name for module in known.values() for name in _pieces_of(module)}
    kept = known.keys() - pieces
    return {name: module for name, module in known.items() if name in kept and hasattr(import_module(module), name)}


def main() -> None:
    """Write the stubs."""
    for path, text in stubs().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
