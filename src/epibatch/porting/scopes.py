"""Names that functions and comprehensions bind locally."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

__all__ = ["nodes_in_scopes", "own_names"]

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

_Names = frozenset[str]


def nodes_in_scopes(tree: ast.AST) -> Iterator[tuple[ast.AST, _Names]]:
    r"""Yield every node of a module, and the names that the functions and comprehensions around it bind locally.

    Example:
        >>> tree = ast.parse("ray.init()\ndef trace(ray): return ray.origin")
        >>> [(node.attr, sorted(hidden)) for node, hidden in nodes_in_scopes(tree) if isinstance(node, ast.Attribute)]
        [('init', []), ('origin', ['ray'])]
    """
    waiting: list[tuple[ast.AST, _Names]] = [(tree, frozenset())]
    while waiting:
        node, hidden = waiting.pop()
        yield node, hidden
        waiting += reversed(list(_children(node, hidden)))


def _children(node: ast.AST, hidden: _Names) -> Iterator[tuple[ast.AST, _Names]]:
    """Yield the children of a node, each with the names that are hidden there."""
    if isinstance(node, _FUNCTIONS):
        body: list[ast.AST] = [node.body] if isinstance(node, ast.Lambda) else [*node.body]
        own, shared = own_names(body)
        inside = (hidden | own | {argument.arg for argument in _arguments(node.args)}) - shared
        within = {id(part) for part in body}
        for child in ast.iter_child_nodes(node):
            yield child, inside if id(child) in within else hidden
    elif isinstance(node, _COMPREHENSIONS):
        inside = hidden | own_names(loop.target for loop in node.generators)[0]
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.comprehension):
                yield child, inside
                continue
            yield child.iter, hidden if child is node.generators[0] else inside
            yield child.target, inside
            yield from ((condition, inside) for condition in child.ifs)
    else:
        yield from ((child, hidden) for child in ast.iter_child_nodes(node))


def _arguments(arguments: ast.arguments) -> Iterator[ast.arg]:
    yield from (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    yield from (argument for argument in (arguments.vararg, arguments.kwarg) if argument is not None)


def own_names(parts: Iterable[ast.AST]) -> tuple[_Names, _Names]:
    """Return the names that a scope binds itself, and those that it imports or shares with the module."""
    own: set[str] = set()
    shared: set[str] = set()
    waiting = list(parts)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            own.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            shared |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.Global):
            shared |= set(node.names)
        elif isinstance(node, _NAMED) and node.name:
            own.add(node.name)
        if not isinstance(node, (*_FUNCTIONS, *_COMPREHENSIONS, ast.ClassDef)):
            waiting += ast.iter_child_nodes(node)
    return frozenset(own), frozenset(shared)
