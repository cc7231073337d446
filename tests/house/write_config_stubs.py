"""Write the stubs of the config classes: their source without bodies, with typed methods made of the settings' models.

python tests/house/write_config_stubs.py
"""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

MODULES = [
    f"epibatch.algorithms.{name}"
    for name in (
        "algorithm_config",
        "appo",
        "bc",
        "cql",
        "dqn",
        "fragments",
        "impala",
        "iql",
        "marwil",
        "ppo",
        "replay",
        "sac",
    )
]
HEAD = "# Written by `make generated`: the source without bodies, with the settings of the models.\n"


def stub_text(module: str) -> str:
    """The stub of a module, formatted."""
    loaded = import_module(module)
    tree = ast.parse(inspect.getsource(loaded))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    body = "\n\n".join("\n".join(_class_lines(node, getattr(loaded, node.name))) for node in classes)
    lines = [HEAD, *_imports(tree, body), body]
    return _formatted("\n".join(lines))


def _class_lines(node: ast.ClassDef, cls: type) -> Iterator[str]:
    yield f"class {node.name}{'(' + ', '.join(map(ast.unparse, node.bases)) + ')' if node.bases else ''}:"
    yield f"    {_docstring(cls.__doc__, 4)}"
    signatures = _signatures(cls)
    for child in node.body:
        if isinstance(child, ast.AnnAssign):
            yield f"    {ast.unparse(child.target)}: {ast.unparse(child.annotation)}"
        elif isinstance(child, ast.FunctionDef) and child.name not in signatures and _is_public(child.name):
            docstring = child.body[:1] if ast.get_docstring(child) else []
            child.body = [*docstring, ast.Expr(ast.Constant(...))]
            yield from (f"    {line}" for line in ast.unparse(child).splitlines())
    inherited = _signatures(cls.__mro__[1])
    for method, signature in signatures.items():
        if signature != inherited.get(method):
            yield f"    def {method}{_unquoted(signature)}:"
            yield f"        {_docstring(vars(cls)[method].__doc__, 8)}"
    known = _settings(inherited)
    for name, text in _settings(signatures).items():
        if known.get(name) != text and name not in vars(cls):
            yield f"    {name}: {text}"


def _is_public(name: str) -> bool:
    return name == "__init__" or not name.startswith("_")


def _signatures(cls: type) -> dict[str, inspect.Signature]:
    """Return the signatures of the methods that set a section."""
    methods = {name: value for base in reversed(cls.__mro__) for name, value in vars(base).items()}
    given = {name: method for name, method in methods.items() if "__signature__" in getattr(method, "__dict__", {})}
    return {name: inspect.signature(method) for name, method in given.items() if inspect.isfunction(method)}


def _settings(signatures: dict[str, inspect.Signature]) -> dict[str, str]:
    """Return the settings that can be read as attributes, with their types."""
    parameters = [each for signature in signatures.values() for each in list(signature.parameters.values())[1:]]
    settings = {each.name: each.annotation for each in parameters if each.name != "model"}
    return {"algorithm": "str", **settings} if settings else {}


def _unquoted(signature: inspect.Signature) -> str:
    """A signature whose annotations are text, as source."""
    parameters = list(signature.parameters.values())
    first = next((i for i, each in enumerate(parameters) if each.kind == each.KEYWORD_ONLY), len(parameters))
    texts = ["self", *(f"{each.name}: {each.annotation}{_default(each)}" for each in parameters[1:])]
    return f"({', '.join([*texts[:first], '*', *texts[first:]])}) -> Self"


def _default(parameter: inspect.Parameter) -> str:
    return f" = {'...' if parameter.default is ... else repr(parameter.default)}"


def _docstring(text: str, indent: int) -> str:
    lines = inspect.cleandoc(text).splitlines()
    body = "\n".join(" " * indent * bool(line and i) + line for i, line in enumerate(lines))
    return f'"""{body}' + (f"\n{' ' * indent}" if len(lines) > 1 else "") + '"""'


def _imports(tree: ast.Module, body: str) -> Iterator[str]:
    """The source's imports of names that the stub has, and those of its types."""
    yield "from collections.abc import Callable, Collection, Mapping, Sequence"
    yield "from typing import Any, ClassVar, Literal, TypeVar"
    yield "import gymnasium as gym"
    yield "import torch"
    yield "from typing_extensions import Self"
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module not in ("__future__", "typing", "collections.abc"):
            yield ast.unparse(node)
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("ConfigT", "__all__"):
            yield ast.unparse(node)
    yield from (
        ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign) and "__all__" in ast.unparse(node)
    )


def _formatted(text: str) -> str:
    """The text without unused imports, as ruff writes it."""
    for words in (["check", "--fix", "--exit-zero", "--select", "F401,F811,I,UP"], ["format"]):
        command = [
            sys.executable,
            "-m",
            "ruff",
            *words,
            "--quiet",
            "--stdin-filename",
            "src/epibatch/algorithms/x.pyi",
            "-",
        ]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    return text


def stubs() -> dict[Path, str]:
    """Return the text of each stub of a config class."""
    return {Path(str(import_module(name).__file__)).with_suffix(".pyi"): stub_text(name) for name in MODULES}


def main() -> None:
    """Write the stubs."""
    for path, text in stubs().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
