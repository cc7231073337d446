"""A Python source text written for RLlib, with its imports changed."""

from __future__ import annotations

import ast
import bisect
import difflib
import re
import warnings
from dataclasses import dataclass
from typing import NamedTuple

from epibatch.core.errors import PortingError

from .config_calls import failing_config_calls
from .import_statements import Ported, port_from_import, port_plain_import
from .module_table import module_here
from .names_in_use import names_from_star, uses_of_ray
from .offered_names import offered_names
from .reasons import reason_for

__all__ = ["Leftover", "PortedSource", "port_source"]

_Left = tuple[int, str, str, int | None]
"""Line, name, reason, and on which line of the statements that take the place of its own it will stand."""

_ANNOTATION = 200
"""Strings as long as this are prose."""

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|$)")


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
            name: the file's name, for the diff's head.
        """
        before, after = _lines(self.original), _lines(self.text)
        found = difflib.unified_diff(before, after, name, name, lineterm="\n")
        return "".join(
            line if line.endswith(("\n", "\r")) else f"{line}\n\\ No newline at end of file\n" for line in found
        )


class _Edit(NamedTuple):
    start: int
    end: int
    text: str


def port_source(text: str, name: str = "module.py") -> PortedSource:
    r"""Change the imports of a module written for RLlib to those that epibatch has.

    Only import statements that must change are changed. The text is neither run nor imported. Porting a ported text
    changes nothing.

    Args:
        text: Python source.
        name: the file's name, for messages.

    Raises:
        PortingError: it is no Python source.

    Example:
        >>> ported = port_source("from ray.rllib.connectors.connector_v2 import ConnectorV2\n")
        >>> ported.text
        'from epibatch.connectors.connector_v2 import ConnectorV2\n'
        >>> [leftover.name for leftover in port_source("import ray\nray.init()\n").leftovers]
        ['ray.init']
    """
    tree = _parsed(text, name)
    starts = _line_starts(text)
    edits: list[_Edit] = []
    left: list[_Left] = []
    stars: list[tuple[int, str]] = []
    used = _used_names(tree)
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Import, ast.ImportFrom)) or not _is_of_ray(node):
            continue
        start, end = _span(node, text, starts)
        ported = _port(node, text, start, end)
        if ported.text != text[start:end].replace("\r\n", "\n").replace("\r", "\n"):
            edits.append(_Edit(start, end, _with_newlines(ported.text, text, start, end)))
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*" and not ported.missing:
            stars.append((node.lineno, node.module or ""))
        for position in ported.missing:
            left.append((*_missing(node, position, used), ported.lines.get(position)))
    uses = list(uses_of_ray(tree))
    left += [(use.line, use.name, use.reason, None) for use in uses]
    left += [(line, name, reason, None) for line, name, reason in _not_in_stars(tree, stars)]
    left += [(line, name, reason, None) for line, name, reason in failing_config_calls(tree)]
    left = _without_used_imports(left, {use.name for use in uses if use.in_code}, tree)
    result = text
    for edit in sorted(edits, reverse=True):
        result = result[: edit.start] + edit.text + result[edit.end :]
    after = _LinesAfter(edits, starts)
    leftovers = {Leftover(line, what, why, after(line, down)) for line, what, why, down in left}
    return PortedSource(text, result, len(edits), tuple(sorted(leftovers)))


def _port(node: ast.Import | ast.ImportFrom, text: str, start: int, end: int) -> Ported:
    source = text[start:end].replace("\r\n", "\n").replace("\r", "\n")
    if isinstance(node, ast.Import):
        return port_plain_import(node, source)
    behind = _LINE.match(text, end)
    return port_from_import(node, source, re.split(r"[\r\n]", text[:start])[-1], behind[0] if behind else "")


def _missing(node: ast.Import | ast.ImportFrom, position: int, used: set[str]) -> tuple[int, str, str]:
    alias = node.names[position]
    if isinstance(node, ast.Import):
        parent, _, leaf = alias.name.rpartition(".")
        reason = "not needed any more if nothing below uses it" if alias.name == "ray" else reason_for(parent, leaf)
        return node.lineno, alias.name, reason
    name = "" if alias.name == "*" else alias.name
    unused = name and (alias.asname or name) not in used
    reason = reason_for(node.module or "", name)
    return alias.lineno, f"{node.module}.{alias.name}", f"not used below: delete it ({reason})" if unused else reason


def _used_names(tree: ast.Module) -> set[str]:
    """Return every name in the code, and every word of its strings, which may be annotations or exports."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    strings = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return names.union(*(re.findall(r"\w+", string) for string in strings if len(string) < _ANNOTATION))


def _without_used_imports(left: list[_Left], used: set[str], tree: ast.Module) -> list[_Left]:
    """Leave out `import ray` and `from ray import tune` if their uses are listed one by one."""
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    lines = {alias.lineno for node in imports for alias in node.names}
    return [
        one
        for one in left
        if one[0] not in lines or not any(name.startswith(f"{one[1]}.") for name in used) or one[1].count(".") > 1
    ]


def _not_in_stars(tree: ast.Module, stars: list[tuple[int, str]]) -> list[tuple[int, str, str]]:
    """Return names that come from a star import, and that the module here lacks."""
    if not stars:
        return []
    offered = {name for _, theirs in stars for name in offered_names(module_here(theirs) or "") or ()}
    theirs = stars[0][1]
    unknown = [(line, name) for line, name in names_from_star(tree) if name not in offered]
    return [(line, f"{theirs}.{name}", f"from the star import: {reason_for(theirs, name)}") for line, name in unknown]


# ---------------------------------------------------------------------------------------- text and positions


def _parsed(text: str, name: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in strings of the ported file
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        where = f"{name}, line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else name
        said = error.msg if isinstance(error, SyntaxError) else error
        do = "mend the file until Python reads it, then port it; code for Python 2 has to be moved to Python 3 first"
        raise PortingError(where, expected="Python source", found=said, do=do) from error


def _is_of_ray(node: ast.Import | ast.ImportFrom) -> bool:
    if isinstance(node, ast.ImportFrom):
        return not node.level and (node.module or "").split(".")[0] == "ray"
    return any(alias.name.split(".")[0] == "ray" for alias in node.names)


def _lines(text: str) -> list[str]:
    """Return the lines as Python counts them, with their ends."""
    return [line for line in _LINE.findall(text) if line]


def _line_starts(text: str) -> list[int]:
    starts = [0]
    for line in _lines(text):
        starts.append(starts[-1] + len(line))
    return starts


def _span(node: ast.stmt, text: str, starts: list[int]) -> tuple[int, int]:
    """Return the start and end of a statement; ast counts columns in bytes of UTF-8."""

    def offset(line: int, column: int) -> int:
        start = starts[line - 1]
        rest = text[start : start + column]
        return start + (column if rest.isascii() else len(rest.encode()[:column].decode(errors="ignore")))

    return offset(node.lineno, node.col_offset), offset(node.end_lineno or node.lineno, node.end_col_offset or 0)


def _with_newlines(ported: str, text: str, start: int, end: int) -> str:
    """Return the ported statement with the newlines of the surrounding text."""
    near = re.search(r"\r\n|\r|\n", text[start:end]) or re.search(r"\r\n|\r|\n", text)
    return ported.replace("\n", near[0]) if near else ported


class _LinesAfter:
    """Map from lines of the original text to lines of the ported text."""

    def __init__(self, edits: list[_Edit], starts: list[int]) -> None:
        ordered = sorted(edits)
        self._begin = [bisect.bisect_right(starts, edit.start) for edit in ordered]
        self._stop = [bisect.bisect_right(starts, max(edit.start, edit.end - 1)) for edit in ordered]
        self._lines = [len(_lines(edit.text)) for edit in ordered]

    def __call__(self, line: int, down: int | None) -> int:
        shift = 0
        for begin, stop, lines in zip(self._begin, self._stop, self._lines):
            if line > stop:
                shift += lines - (stop - begin + 1)
            elif line >= begin and down is not None:
                return begin + shift + down
        return line + shift
