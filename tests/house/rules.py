"""Rules that today's code breaks in places: each function returns these places, by file, module or package.

`allow_lists.py` compares them with the lists in tests/house/allowed/.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping

from sources import FUNCTIONS, Import, Source

Places = dict[str, list[str]]

PUBLIC_UNDERSCORES = {"_asdict", "_fields", "_getframe", "_make", "_replace"}
"""Names that begin with an underscore and are documented by Python."""

RLLIB_PATHS = re.compile(
    r"epibatch\.(core\.(errors|columns|typing|spaces|registry|tensors|metrics|checkpoints)|core\.rl_module\.\w+"
    r"|core\.(padding|sequence_ends|shared_moments)"
    r"|connectors\.(connector_v2|connector_pipeline_v2)|connectors\.(common|env_to_module|module_to_env|learner)\..+"
    r"|env_runner\.(\w+_env_runner|multi_agent_env|callbacks)|learner\.postprocessing\..+"
    r"|episodes\.(single_agent_episode|multi_agent_episode|infinite_lookback_buffer)"
    r"|algorithms\.(ppo|algorithm_config|algorithm)"
    r"|offline\.(parquet|minari|rllib|d4rl|tensordict|lerobot))"
)
"""Modules that tests may import although they are no packages: RLlib's paths, and those that docs name."""


def import_cycles(modules: Mapping[str, Source]) -> Places:
    """Return each module that is in an import cycle, with the modules of its cycle."""
    graph = {
        name: {_defining(statement, modules) for statement in source.imports if not statement.for_typing} - {None}
        for name, source in modules.items()
    }
    return {name: cycle for cycle in cycles_of(graph) for name in cycle}


def imports_in_functions(modules: Mapping[str, Source]) -> Places:
    """Return the names that functions import from the package itself, by package (`epibatch.core`)."""
    places: Places = {}
    for source in modules.values():
        package = ".".join(source.module.split(".")[:2])
        package = package if modules[package].is_package else "epibatch"
        for statement in source.imports:
            if statement.in_function and not statement.for_typing and _module_of(statement, modules):
                place = f"{source.path}:{statement.line} {statement.module} {statement.name}"
                places.setdefault(package, []).append(place.rstrip())
    return places


def private_attributes(modules: Mapping[str, Source]) -> Places:
    """Return uses of private attributes (`other._rows`) of classes of other modules, by file.

    An attribute is a file's own if a class or function in the file defines it, or if a method reads it from `self`.
    Adapters to other libraries (`interop`) may use theirs.
    """
    places: Places = {}
    for source in modules.values():
        if source.module.startswith("epibatch.interop."):
            continue
        own_names = _own_attributes(source.tree)
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Attribute) and re.match("_[a-z]", node.attr) and node.attr not in own_names:
                places.setdefault(source.path, []).append(f"line {node.lineno}: {ast.unparse(node)}")
    return places


def internals_in_tests(modules: Mapping[str, Source], tests: Iterable[Source]) -> Places:
    """Return imports of modules that are neither packages nor public paths, by test file."""
    places: Places = {}
    for source in tests:
        for statement in source.imports:
            target = None if statement.by_call else _module_of(statement, modules)
            if target and not is_public(target, modules):
                places.setdefault(source.path, []).append(f"line {statement.line}: {target}")
    return places


def is_public(module: str, modules: Mapping[str, Source]) -> bool:
    """True if tests may import this module: a package, a module at the top of `epibatch`, or a public path."""
    if "._" in module:
        return False
    return modules[module].is_package or module.count(".") <= 1 or RLLIB_PATHS.fullmatch(module) is not None


def cycles_of(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one node, each sorted."""
    reach = {name: _reachable(name, graph) for name in graph}
    components = {tuple(sorted(other for other in reach[name] if name in reach[other])) for name in graph}
    return sorted(list(component) for component in components if len(component) > 1)


def _reachable(start: str, graph: Mapping[str, Iterable[str]]) -> set[str]:
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        new = set(graph[waiting.pop()]) - reached
        reached |= new
        waiting.extend(new)
    return reached


def _module_of(statement: Import, modules: Mapping[str, Source]) -> str | None:
    """Return the module of the package that an import statement names; None for other libraries."""
    full = f"{statement.module}.{statement.name}"
    return full if full in modules else statement.module if statement.module in modules else None


def _defining(statement: Import, modules: Mapping[str, Source]) -> str | None:
    """Return the module that an import loads: for a name that a package collects, the module that defines it."""
    target = _module_of(statement, modules)
    if target == statement.module and statement.name and modules[target].is_package:
        for inner in modules[target].imports:
            if inner.name == statement.name and inner.module != target:
                return _defining(inner, modules)
    return target


def _bound_names(tree: ast.Module) -> set[str]:
    """Return the names that a module defines, without those that it imports."""

    def names(node: ast.AST) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (*FUNCTIONS, ast.ClassDef)):
                yield child.name
            elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                yield child.id
            else:
                yield from names(child)

    return set(names(tree))


def _own_attributes(tree: ast.Module) -> set[str]:
    names = set(PUBLIC_UNDERSCORES)
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names |= _bound_names(ast.Module(body=node.body, type_ignores=[]))
        elif isinstance(node, ast.Attribute):
            owner = node.value.func if isinstance(node.value, ast.Call) else node.value
            if isinstance(owner, ast.Name) and owner.id in ("self", "cls", "super", "np", "torch"):
                names.add(node.attr)
    return names
