"""Calls of RLlib's configs that fail here, found in a source text."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from epibatch.algorithms.config.settings import AlgorithmSettings, PPOTrainingSettings
from epibatch.algorithms.other_libraries import RLLIB_METHODS, other_setting

_SETTINGS = {*AlgorithmSettings.section_of(), *PPOTrainingSettings.spellings(), "model"}
_SECTIONS = {*AlgorithmSettings.sections(), "stopping"}
_PACKAGES = ("ray.rllib", "ray.tune", "epibatch")


def failing_config_calls(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    r"""Yield every unsupported method and setting of an algorithm's config: line, name and what to do.

    A config is an object with "config" in its name, in a file that imports from RLlib or epibatch.

    Examples:
        >>> source = "from ray.rllib.algorithms.ppo import PPOConfig\nPPOConfig().training(lr=1, use_critic=True)"
        >>> [(line, name) for line, name, _ in failing_config_calls(ast.parse(source))]
        [(2, 'training(use_critic=...)')]
    """
    if not any(_is_import(node) for node in ast.walk(tree)):
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not _is_config(node.func):
            continue
        method, line = node.func.attr, node.func.end_lineno or node.lineno
        if method in RLLIB_METHODS:
            yield line, f"{method}(...)", RLLIB_METHODS[method]
        elif method == "framework" and not _is_torch(node):
            yield line, "framework(...)", "leave it out: networks are always PyTorch's"
        elif method in _SECTIONS:
            for keyword in node.keywords:
                if keyword.arg is not None and keyword.arg not in _SETTINGS:
                    advice = other_setting(keyword.arg, _SETTINGS) or "no such setting here"
                    yield keyword.value.lineno, f"{method}({keyword.arg}=...)", advice


def _is_import(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name.startswith(_PACKAGES) for alias in node.names)
    return isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").startswith(_PACKAGES)


def _is_config(node: ast.AST) -> bool:
    """True if the object of a method has "config" in its name or in a part of its dotted path."""
    while isinstance(node, (ast.Attribute, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if "config" in name.lower():
            return True
    return False


def _is_torch(call: ast.Call) -> bool:
    values = [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "framework")]
    return all(not isinstance(value, ast.Constant) or value.value in (None, "torch") for value in values)
