"""Uses of ray outside import statements."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from typing import NamedTuple

from epibatch.core.columns import Columns

from .module_table import module_here
from .offered_names import home_of, offered_names
from .reasons import reason_for
from .scopes import nodes_in_scopes, own_names

__all__ = ["Use", "names_from_star", "uses_of_ray"]

_PATH = re.compile(r"ray(\.\w+)+(:\w+)?")


class Use(NamedTuple):
    """A place where ray is still used.

    Attributes:
        line: its line.
        name: the full name of the used object.
        reason: the reason why it was not ported, and what to write.
        in_code: True if it needs the import; a string does not.
    """

    line: int
    name: str
    reason: str
    in_code: bool = True


def uses_of_ray(tree: ast.Module) -> Iterator[Use]:
    """Yield every use of a module of ray, or of a key of its `SampleBatch`, that needs more than new imports."""
    modules = _bound_modules(tree)
    inner: set[int] = set()
    docstrings = _docstrings(tree)
    for node, hidden in nodes_in_scopes(tree):
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            parts, value = _chain(node, inner)
            if isinstance(value, ast.Name) and value.id in modules and value.id not in hidden:
                yield from _use_of_chain(node.lineno, parts, value.id, modules[value.id])
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            path = node.value.strip()
            if path.startswith("ray.") and _PATH.fullmatch(path):
                yield Use(node.lineno, path, _advice(path.replace(":", "."), "in a string"), in_code=False)


def _bound_modules(tree: ast.Module) -> dict[str, str]:
    """Return local name -> module of ray, for every import that binds a module or `SampleBatch`."""
    modules: dict[str, str] = {}
    own, imported = own_names(tree.body)
    if "ray" not in own - imported:
        modules["ray"] = "ray"
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname and alias.name.split(".")[0] == "ray":
                    modules[alias.asname] = alias.name
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "ray":
            for alias in node.names:
                if _is_module(node.module or "", alias.name) or alias.name == "SampleBatch":
                    modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return modules


def _is_module(theirs: str, name: str) -> bool:
    home = home_of(theirs, name)
    return home.is_module if home is not None else theirs in ("ray", "ray.rllib") and name.islower()


def _chain(node: ast.Attribute, inner: set[int]) -> tuple[list[str], ast.expr]:
    """Return the names of `a.b.c` after its first part, and that part; add its inner attributes to `inner`."""
    parts: list[str] = []
    value: ast.expr = node
    while isinstance(value, ast.Attribute):
        inner.add(id(value))
        parts.insert(0, value.attr)
        value = value.value
    return parts, value


def _use_of_chain(line: int, parts: list[str], bound: str, module: str) -> Iterator[Use]:
    if module.endswith(".SampleBatch"):
        if _column(parts[0]):  # the import itself is listed
            yield Use(line, f"{module}.{parts[0]}", _advice(f"{module}.{parts[0]}", "as an attribute"))
        return
    if bound != "ray" and module_here(module) is not None and offered_names(module_here(module) or "") is not None:
        if home_of(module, parts[0]) is None:  # the module is ported, but lacks this name
            yield Use(line, f"{module}.{parts[0]}", reason_for(module, parts[0]))
        return
    path = ".".join([module, *parts])
    yield Use(line, path, _advice(path, "as an attribute"))


def _column(key: str) -> str:
    """Return the name of a key of `SampleBatch` in `Columns`; empty if there is none."""
    name = {"CUR_OBS": "OBS"}.get(key, key)
    return name if name.isupper() and hasattr(Columns, name) else ""


def _advice(path: str, how: str) -> str:
    """Return the replacement of a dotted path, or the reason why there is none."""
    parts = path.split(".")
    if "SampleBatch" in parts[:-1] and (column := _column(parts[parts.index("SampleBatch") + 1])):
        return f"used {how}: write epibatch.core.columns.Columns.{column}"
    for end in range(len(parts) - 1, 1, -1):
        home = home_of(".".join(parts[:end]), parts[end])
        if home is not None:
            return f"used {how}: write {'.'.join([home.module, home.name, *parts[end + 1 :]])}"
    if (here := module_here(path)) is not None and offered_names(here) is not None:
        return f"used {how}: write {here}"
    return reason_for(".".join(parts[:-1]), parts[-1])


def _docstrings(tree: ast.Module) -> set[int]:
    owners = [node for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    return {id(owner.value) for owner in owners}


def names_from_star(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield names that a module uses but does not bind, so that they come from a star import: (line, name)."""
    nodes = list(ast.walk(tree))
    bound = {"__file__"} | {
        node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    }
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    bound |= {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))}
    bound |= {node.name for node in nodes if isinstance(node, ast.ExceptHandler) and node.name}
    imports = [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]
    bound |= {(alias.asname or alias.name).split(".")[0] for node in imports for alias in node.names}
    names = [node for node in nodes if isinstance(node, ast.Name)]
    for node in sorted(names, key=lambda name: name.lineno):
        if node.id not in bound and not hasattr(builtins, node.id):
            bound.add(node.id)
            yield node.lineno, node.id
