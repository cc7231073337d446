"""The source files of the repository: their places, their syntax trees, their imports."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPOSITORY = Path(__file__).resolve().parents[2]
PYPROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
IMPORT_OF_PACKAGE = re.compile(r"^[ \t]*((?:from|import) epibatch\b(?:[^\n(]*\([^)]*\)|[^\n]*))", re.MULTILINE)


def folders_below(folder: Path, package: str) -> Iterator[tuple[str, Path]]:
    """Yield a package and the packages below it with their real folders. The root folders are links there."""
    yield package, folder.resolve()
    for inner in sorted(folder.iterdir()):
        if (inner / "__init__.py").is_file():
            yield from folders_below(inner, f"{package}.{inner.name}")


PACKAGES = dict(folders_below(REPOSITORY / "src" / "epibatch", "epibatch"))
MODULES = {
    package if path.stem == "__init__" else f"{package}.{path.stem}": path
    for package, folder in PACKAGES.items()
    for path in sorted(folder.glob("*.py"))
}


@dataclass(frozen=True)
class Import:
    """One imported name: `from module import name`, or `import module` with no name."""

    line: int
    module: str
    """The absolute name of the module. Empty if it is computed: `import_module(name)`."""
    name: str = ""
    is_relative: bool = False
    in_function: bool = False
    for_typing: bool = False
    """True if it is inside `if TYPE_CHECKING:` or in a stub."""
    by_call: bool = False
    """True if it is a call of `import_module` or `__import__`."""


@dataclass(frozen=True)
class Source:
    """A parsed file."""

    path: str
    """Its path from the repository's root."""
    module: str
    tree: ast.Module

    @property
    def is_package(self) -> bool:
        return self.path.endswith("__init__.py")

    @cached_property
    def imports(self) -> list[Import]:
        """Every import, those inside functions and in a package's stub included."""
        package = self.module.split(".")[: None if self.is_package else -1]
        found = list(_imports_below(self.tree, package, {}))
        stub = REPOSITORY / f"{self.path}i"
        if stub.exists():
            found += _imports_below(ast.parse(stub.read_text(encoding="utf-8")), package, {"for_typing": True})
        return found


def package_sources() -> dict[str, Source]:
    """Every module of the package by its name."""
    return {name: _source(path, name, path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def tests_imports() -> list[Source]:
    """Every file below tests/, of which only the imports of the package are parsed: that takes a tenth of the time."""
    paths = sorted((REPOSITORY / "tests").rglob("*.py"))
    return [_source(path, path.stem, only_imports(path.read_text(encoding="utf-8"))) for path in paths]


def only_imports(text: str) -> str:
    """Blank all lines but the imports of the package, which begin a line or are indented."""
    kept, end = [], 0
    for match in IMPORT_OF_PACKAGE.finditer(text):
        kept += ["\n" * text.count("\n", end, match.start(1)), match[1]]
        end = match.end()
    return "".join(kept)


def _source(path: Path, module: str, text: str) -> Source:
    return Source(path.relative_to(REPOSITORY).as_posix(), module, ast.parse(text))


def _imports_below(node: ast.AST, package: list[str], where: Mapping[str, bool]) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        inner = where
        if isinstance(child, ast.Import):
            yield from (Import(child.lineno, alias.name, **where) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = package[: len(package) - child.level + 1] if child.level else []
            module = ".".join([*base, *([child.module] if child.module else [])])
            relative = bool(child.level)
            yield from (Import(child.lineno, module, alias.name, relative, **where) for alias in child.names)
        elif isinstance(child, ast.Call) and _last_name(child.func) in ("import_module", "__import__"):
            first = child.args[0] if child.args else None
            name = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""
            yield Import(child.lineno, name, by_call=True, **where)
        elif isinstance(child, (*FUNCTIONS, ast.Lambda)):
            inner = {**where, "in_function": True}
        elif isinstance(child, ast.If) and _last_name(child.test) == "TYPE_CHECKING":
            body = ast.Module(body=child.body, type_ignores=[])
            yield from _imports_below(body, package, {**where, "for_typing": True})
            child = ast.Module(body=child.orelse, type_ignores=[])
        yield from _imports_below(child, package, inner)


def _last_name(node: ast.expr) -> str:
    """The name, or the last part of a dotted one."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
