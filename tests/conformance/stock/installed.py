"""RLlib's own examples, read from the installed package and ported when a test runs; nothing of them is kept here."""

from __future__ import annotations

import ast
import contextlib
import copy
import importlib.util
import io
import re
import runpy
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from epibatch.porting import PortedSource, port_source

SCAFFOLDING = re.compile(
    r"ray\.rllib\.examples\.(utils|envs|connectors\.classes)\b.*"  # of the scripts; classes are ported by themselves
    r"|ray\.rllib\.utils\.test_utils\.check"  # compares what an example gives with what it says
    r"|ray\.rllib\.env\.wrappers\.atari_wrappers\..*"
    r"|ray\.tune(\.register_env)?"
)
"""What an example may take from RLlib after it was ported, because it is no part of what it shows."""


def rllib_file(path: str) -> Path:
    """A file below the installed `ray/rllib`."""
    spec = importlib.util.find_spec("ray")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "rllib" / path


def ported(source: str, name: str) -> PortedSource:
    """A source text, ported; porting it again changes nothing.

    Raises:
        NotPorted: it needs something of RLlib that is not here.
    """
    result = port_source(source, name)
    assert port_source(result.text, name).text == result.text
    missing = [left for left in result.leftovers if not SCAFFOLDING.fullmatch(left.name)]
    if missing:
        raise NotPorted(missing)
    return result


class NotPorted(Exception):
    """An example needs names that are not here.

    Attributes:
        reasons: why, for each of them.
    """

    def __init__(self, missing: list[Any]) -> None:
        super().__init__([tuple(left[1:3]) for left in missing])
        self.reasons = {left.reason for left in missing}


def ported_module(path: str, folder: Path) -> Any:
    """A file of RLlib as a module of its own: ported, written into a folder and imported from there."""
    file = rllib_file(path)
    target = folder / f"ported_{file.stem}.py"
    target.write_text(ported(file.read_text(encoding="utf-8"), file.name).text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(target.stem, target)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --------------------------------------------------------------------------------------------- scripts


def config_of(script: Path, *arguments: str) -> Any:
    """The config that an example script makes of its arguments, taken where the script would start its experiment."""
    from ray.rllib.examples import utils

    taken: list[Any] = []
    with (
        mock.patch.object(utils, "run_rllib_example_script_experiment", lambda config, args: taken.append(config)),
        mock.patch.object(sys, "argv", [str(script), *arguments]),
    ):
        runpy.run_path(str(script), run_name="__main__")
    (config,) = taken
    return config


# --------------------------------------------------------------------------------- examples in docstrings


@dataclass(frozen=True)
class DocstringExample:
    """One `.. testcode::` block.

    Attributes:
        name: module, owner of the docstring, and number of the block in it.
        source: its code.
    """

    name: str
    source: str


def docstring_examples(path: str) -> Iterator[DocstringExample]:
    """The blocks in a file's docstrings that RLlib's own documentation tests run, in order."""
    tree = ast.parse(rllib_file(path).read_text(encoding="utf-8"))
    for owner, node in _owners(tree, path.removesuffix(".py").replace("/", ".")):
        for number, source in enumerate(_blocks(ast.get_docstring(node) or "")):
            yield DocstringExample(f"{owner}#{number}" if number else owner, source)


def _owners(node: Any, name: str) -> Iterator[tuple[str, Any]]:
    yield name, node
    for child in node.body:
        if isinstance(child, (ast.ClassDef, ast.FunctionDef)):
            yield from _owners(child, f"{name}.{child.name}")


def _blocks(docstring: str) -> Iterator[str]:
    lines = docstring.splitlines()
    for start, line in enumerate(lines):
        if line.strip() != ".. testcode::":
            continue
        indent = len(line) - len(line.lstrip())
        body = []
        for following in lines[start + 1 :]:
            if following.strip() and len(following) - len(following.lstrip()) <= indent:
                break
            body.append(following)
        source = textwrap.dedent("\n".join(body)).strip()
        if not source.startswith(":skipif: True"):
            yield re.sub(r"\A(:\w+:.*\n)+", "", source)


def run_example(example: DocstringExample, namespace: dict[str, Any]) -> list[Any]:
    """Run a ported block.

    Returns:
        The value of each of its statements that is an expression.

    Raises:
        NotPorted: it needs something of RLlib that is not here.
    """
    return run_source(ported(example.source, example.name).text, example.name, namespace)


def run_source(source: str, name: str, namespace: dict[str, Any]) -> list[Any]:
    """Run a source text; the value of each of its statements that is an expression, as it was then."""
    values = []
    with contextlib.redirect_stdout(io.StringIO()):
        for statement in ast.parse(source).body:
            if isinstance(statement, ast.Expr):
                code = compile(ast.Expression(statement.value), name, "eval")
                values.append(copy.deepcopy(eval(code, namespace)))
            else:
                exec(compile(ast.Module([statement], []), name, "exec"), namespace)
    return values
