"""Porting of one import statement; only the parts that must change are rewritten."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from .module_table import module_here
from .offered_names import home_of, offered_names

__all__ = ["Ported", "port_from_import", "port_plain_import"]

_ONE_LINE = 88
_PRAGMAS = ("# noqa", "# type:", "# pylint:", "# isort:", "# pragma:", "# pyright:")


@dataclass(frozen=True)
class Ported:
    """A ported import statement.

    Attributes:
        text: the new statements; equal to the old text if nothing changes.
        missing: positions of the imported names that do not exist here.
        lines: their lines in `text`, by position; empty if line numbers do not change.
    """

    text: str
    missing: tuple[int, ...] = ()
    lines: dict[int, int] = field(default_factory=dict)


@dataclass
class _Item:
    """One imported name as written, with its comments."""

    above: list[str] = field(default_factory=list)
    behind: str = ""
    below: list[str] = field(default_factory=list)
    last_row: int = 0


# ------------------------------------------------------------------------------------ import a.b, c.d as e


def port_plain_import(node: ast.Import, text: str) -> Ported:
    """Port `import a.b.c` and `import a.b.c as x`.

    Args:
        node: the statement.
        text: its source text.
    """
    changes, missing = [], []
    for position, (alias, (start, end)) in enumerate(zip(node.names, _dotted_names(text))):
        if not _is_rays(alias.name):
            continue
        here = module_here(alias.name)
        if here is None or offered_names(here) is None:
            missing.append(position)
        else:
            changes.append((start, end, here))
    for start, end, here in reversed(changes):
        text = text[:start] + here + text[end:]
    return Ported(text, missing=tuple(missing))


def _dotted_names(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each module in an `import` statement."""
    offset = _offsets(text)
    start: int | None = None
    end = 0
    for token in _tokens(text)[1:]:
        if token.string == "," or token.type in (tokenize.NEWLINE, tokenize.ENDMARKER):
            if start is not None:
                yield start, end
            start, end = None, 0
        elif end >= 0 and token.string == "as":
            if start is not None:
                yield start, end
            start, end = None, -1  # the next token is the name it is bound to
        elif end >= 0 and (token.type == tokenize.NAME or token.string == "."):
            start = offset(token.start) if start is None else start
            end = offset(token.end)


# --------------------------------------------------------------------------------------- from a.b import c


def port_from_import(node: ast.ImportFrom, text: str, before: str, behind: str) -> Ported:
    """Port `from a.b import c, d as e`; the statement is split if its names are in several modules here.

    Args:
        node: the statement, with an absolute module.
        text: its source text.
        before: the text before it on its first line.
        behind: the text after it on its last line.
    """
    theirs = node.module or ""
    groups: dict[str, list[tuple[int, str]]] = {}
    missing = []
    for position, alias in enumerate(node.names):
        home = None if alias.name == "*" else home_of(theirs, alias.name)
        module, name = (theirs, alias.name) if home is None else (home.module, home.name)
        if alias.name == "*" and (here := module_here(theirs)) and offered_names(here) is not None:
            module = here
        elif home is None:
            missing.append(position)
        bound = alias.asname or (alias.name if name != alias.name else None)
        groups.setdefault(module, []).append((position, f"{name} as {bound}" if bound else name))
    written = [f"{alias.name} as {alias.asname}" if alias.asname else alias.name for alias in node.names]
    if len(groups) == 1 and [name for _, name in next(iter(groups.values()))] == written:
        return Ported(_with_module(text, next(iter(groups))), missing=tuple(missing))
    ported, lines = _split(groups, node, text, before, behind.strip())
    return Ported(ported, tuple(missing), lines)


def _with_module(text: str, module: str) -> str:
    tokens = _tokens(text)
    upto = next(i for i, token in enumerate(tokens) if token.string == "import")
    offset = _offsets(text)
    return text[: offset(tokens[1].start)] + module + text[offset(tokens[upto - 1].end) :]


def _split(
    groups: dict[str, list[tuple[int, str]]], node: ast.ImportFrom, text: str, before: str, behind: str
) -> tuple[str, dict[int, int]]:
    """Return the statements, one per module, and the lines of the names that still come from RLlib."""
    head, items, several_lines = _items(text, len(node.names))
    indent = before[: len(before) - len(before.lstrip())]
    alone = not before.strip() and (not behind or behind.startswith("#"))
    repeated = f"  {behind}" if alone and behind.startswith(_PRAGMAS) else ""
    parts, line, lines = [], 0, {}
    for number, (module, names) in enumerate(groups.items()):
        own = [(name, items[position]) for position, name in names]
        part, rows = _statement(module, own, head if number == 0 else "", indent, several_lines)
        if module == node.module:
            lines = {position: line + row for (position, _), row in zip(names, rows)}
        parts.append(part if "\n" in part or number == len(groups) - 1 else part + repeated)
        line += part.count("\n") + alone
    return (f"\n{indent}" if alone else "; ").join(parts), lines


def _statement(
    module: str, names: list[tuple[str, _Item]], head: str, indent: str, several_lines: bool
) -> tuple[str, list[int]]:
    """Return one import statement, and the line of each name in it."""
    short = f"from {module} import {', '.join(name for name, _ in names)}"
    commented = head or any(item.above or item.behind or item.below for _, item in names)
    if not commented and (not several_lines or len(indent) + len(short) <= _ONE_LINE):
        return short, [0] * len(names)
    lines, rows = [f"from {module} import (" + (f"  {head}" if head else "")], []
    for name, item in names:
        lines += [f"{indent}    {comment}" for comment in item.above]
        rows.append(len(lines))
        lines += [f"{indent}    {name}," + (f"  {item.behind}" if item.behind else "")]
        lines += [f"{indent}    {comment}" for comment in item.below]
    return "\n".join([*lines, f"{indent})"]), rows


def _items(text: str, count: int) -> tuple[str, list[_Item], bool]:
    """Return the comment after the opening parenthesis, the names with comments, and True for several lines."""
    tokens = _tokens(text)
    tokens = tokens[next(i for i, token in enumerate(tokens) if token.string == "import") + 1 :]
    first_row = tokens[0].start[0]
    items, head, current = [_Item() for _ in range(count)], "", 0
    for token in tokens:
        if token.type == tokenize.COMMENT:
            row = token.start[0]
            same_row = [item for item in items if item.last_row == row]
            if same_row:
                same_row[-1].behind = token.string
            elif row == first_row:
                head = token.string
            elif current < count and not items[current].last_row:
                items[current].above.append(token.string)
            else:
                items[min(current, count - 1)].below.append(token.string)
        elif token.string == ",":
            items[current].last_row = token.end[0]
            current += 1
        elif token.type == tokenize.NAME:
            items[current].last_row = token.end[0]
    return head, items, items[-1].last_row > first_row


# --------------------------------------------------------------------------------------------------- tokens


def _is_rays(module: str) -> bool:
    return module == "ray" or module.startswith("ray.")


def _tokens(text: str) -> list[tokenize.TokenInfo]:
    return list(tokenize.generate_tokens(io.StringIO(text).readline))


def _offsets(text: str) -> Callable[[tuple[int, int]], int]:
    """Return a function from a position (row from 1, column) in a text to its offset."""
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    return lambda position: starts[position[0] - 1] + position[1]
