"""A Python source text written for RLlib, with its imports changed."""

from __future__ import annotations

import ast
import difflib
import io
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from epibatch.core.errors import PortingError
from epibatch.core.imports import import_extra

from .config_calls import failing_config_calls
from .rllib_names import advice_for

_ANNOTATION = 200
"""Strings as long as this are prose."""

_PATH = re.compile(r"ray(\.\w+)+(:\w+)?")


class Leftover(NamedTuple):
    """A name that must be ported by hand.

    Attributes:
        line: its line in the original source, from 1.
        name: the name of RLlib or ray, in full; of a config's method, the call.
        reason: the reason why it was not ported, or its replacement.
        line_after: its line in the ported text.
    """

    line: int
    name: str
    reason: str
    line_after: int


@dataclass(frozen=True)
class PortedSource:
    """A ported source text.

    Attributes:
        original: the original text.
        text: the text with its imports changed.
        imports: number of changed import statements.
        leftovers: names to port by hand, by line.
    """

    original: str
    text: str
    imports: int
    leftovers: tuple[Leftover, ...]

    def diff(self, name: str = "module.py") -> str:
        """Return the change as a unified diff for programs such as `patch`; "" if there is none.

        Args:
            name: The file's name, for the diff's head.
        """
        before, after = (list(io.StringIO(text, newline="")) for text in (self.original, self.text))
        lines = difflib.unified_diff(before, after, name, name)
        return "".join(
            line if line.endswith(("\n", "\r")) else f"{line}\n\\ No newline at end of file\n" for line in lines
        )


def port_source(text: str, name: str = "module.py") -> PortedSource:
    r"""Change the imports of a module written for RLlib to those that epibatch has.

    Only import statements that must change are changed. The text is neither run nor imported. Porting a ported text
    changes nothing.

    Args:
        text: Python source.
        name: The file's name, for messages.

    Raises:
        PortingError: it is no Python source.
        MissingExtraError: libcst is not installed.

    Examples:
        >>> ported = port_source("from ray.rllib.connectors.connector_v2 import ConnectorV2\n")
        >>> ported.text
        'from epibatch.connectors.connector_v2 import ConnectorV2\n'
        >>> [leftover.name for leftover in port_source("import ray\nray.init()\n").leftovers]
        ['ray.init']
    """
    rewriter_module = import_extra("epibatch.porting.import_rewriter", "port", "porting files from RLlib")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in strings of the ported file
            tree = ast.parse(text)
        rewriter = rewriter_module.ImportRewriter(text, _used_names(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        where = f"{name}, line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else name
        message = error.msg if isinstance(error, SyntaxError) else error
        do = "mend the file until Python reads it, then port it; code for Python 2 has to be moved to Python 3 first"
        raise PortingError(where, expected="Python source", found=message, do=do) from error
    in_code = [path for _, path, _ in rewriter.uses]
    left = [
        Leftover(*missing)
        for missing in rewriter.missing  # without `import ray` and `from ray import tune` if their uses are listed
        if missing[1].count(".") > 1 or not any(path.startswith(f"{missing[1]}.") for path in in_code)
    ]
    others = [*rewriter.uses, *rewriter.from_stars, *_paths_in_strings(tree), *failing_config_calls(tree)]
    left += [Leftover(line, what, why, rewriter.line_after(line)) for line, what, why in others]
    return PortedSource(text, rewriter.text, rewriter.changed, tuple(sorted(set(left))))


def _used_names(tree: ast.Module) -> set[str]:
    """Return every name in the code, and every word of its strings, which may be annotations or exports."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    strings = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return names.union(*(re.findall(r"\w+", string) for string in strings if len(string) < _ANNOTATION))


def _paths_in_strings(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield the strings that are a dotted path of ray, except docstrings: line, path and what to write."""
    docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
            path = node.value.strip()
            if _PATH.fullmatch(path):
                yield node.lineno, path, advice_for(path.replace(":", "."), "in a string")
