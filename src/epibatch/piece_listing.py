"""Descriptions of all pieces that a config can name, as data and as text."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from epibatch.core.errors import EpibatchError, UnknownNameError
from epibatch.core.piece_arguments import constructor_parameters
from epibatch.core.registry import (
    SPACES,
    PieceEntry,
    piece_class,
    piece_entries,
    piece_name,
    pieces_of_counterpart,
    plain_data,
)

_NOT_DECLARED = "not declared"
_AS_ARGUED = "as its arguments say"


# --------------------------------------------------------------------------------------------- as data


def describe_pieces() -> list[dict[str, Any]]:
    """Return every piece, with second names, sorted by name; for an unusable piece `error` has the reason."""
    return [_describe(name, entries) for name, entries in piece_entries().items()]


def describe_piece(name: str) -> dict[str, Any]:
    """Return the description of one piece by its name.

    Raises:
        UnknownNameError: no piece has this name.
    """
    entries = piece_entries()
    if name not in entries:
        piece_class(name)  # raises an error that explains the name
    return _describe(name, entries[name])


def describe_named(name: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the pieces of a name: a piece, or the pieces that replace a class of RLlib or TorchRL.

    Args:
        name: The piece's or the class's name.

    Returns:
        A sentence about a class of another library, "" for a piece of this name; and the pieces.

    Raises:
        UnknownNameError: neither a piece nor a class has this name.
    """
    try:
        return "", [describe_piece(name)]
    except UnknownNameError:
        sentence, names = pieces_of_counterpart(name)
        if not names:
            raise
        return sentence, [describe_piece(one) for one in names]


def _describe(name: str, entries: list[PieceEntry]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "piece": name,
        "owner": " and ".join(entry.owner for entry in entries),
        "version": " and ".join(entry.version for entry in entries),
        "path": " and ".join(entry.path for entry in entries),
        "pipelines": [],
        "declared": False,
        "reads": None,
        "writes": None,
        "input_layouts": None,
        "output_layout": None,
        "lookback": None,
        "mutates_episodes": None,
        "keywords": {},
        "description": "",
        "error": None,
    }
    try:
        cls: Any = piece_class(name)
    except EpibatchError as error:
        described["error"] = str(error)
        return described
    sentence = first_sentence(cls.__doc__) if piece_name(cls) == name else f"Another name of {piece_name(cls)}."
    return described | _declared(cls) | {"keywords": _keywords(cls), "description": sentence}


def _declared(cls: Any) -> dict[str, Any]:
    """Return the declarations of a piece's class; None for those that it lacks."""
    names = ("pipelines", "reads", "writes", "input_layouts", "output_layout", "mutates_episodes", "lookback")
    said = {name: getattr(cls, name) for name in names}
    declared = said["reads"] is not None
    said = {name: None if hasattr(type(value), "__get__") else value for name, value in said.items()}  # properties
    facts: dict[str, Any] = {"pipelines": list(said["pipelines"] or ()), "declared": declared}
    if isinstance(said["lookback"], int) and said["lookback"]:
        facts["lookback"] = said["lookback"]
    if declared:
        facts |= {key: _columns_said(cls, said, key) for key in ("reads", "writes")}
        facts |= {name: said[name] for name in ("output_layout", "mutates_episodes")}
        facts |= {"input_layouts": None if said["input_layouts"] is None else list(said["input_layouts"])}
    return facts


def _columns_said(cls: Any, said: dict[str, Any], key: str) -> list[str] | None:
    """Return the columns that a piece reads or writes by default; None if it needs arguments to say that."""
    if said[key] is not None or not hasattr(type(getattr(cls, key)), "__get__"):
        return list(said[key] or ())
    try:
        return list(getattr(cls(), key))
    except (EpibatchError, TypeError):  # it needs arguments
        names = getattr(cls, "to" if key == "writes" else "columns", None) or getattr(cls, "columns", ())
    names = (names,) if isinstance(names, str) else names
    if not isinstance(names, (tuple, list)) or not names or not all(isinstance(name, str) for name in names):
        return None
    return list(dict.fromkeys(name.split("/")[0] for name in names))


def _keywords(cls: type) -> dict[str, dict[str, Any]]:
    """Return the constructor's keywords: {} or {"default": value} for each, with its documentation."""
    texts = _argument_texts(cls)
    keywords: dict[str, dict[str, Any]] = {}
    for key, parameter in constructor_parameters(cls).items():
        if key in SPACES:
            continue
        keywords[key] = {}
        if parameter.default is not inspect.Parameter.empty:
            try:
                keywords[key]["default"] = plain_data(parameter.default)
            except TypeError:
                keywords[key]["default"] = repr(parameter.default)
        if key in texts:
            keywords[key]["doc"] = texts[key]
    return keywords


def _argument_texts(cls: type) -> dict[str, str]:
    """Return the `Args:` of the docstrings of a class, its constructor and its base classes."""
    texts: dict[str, str] = {}
    for owner in cls.__mro__[:-1]:
        init = owner.__dict__.get("__init__")
        for docstring in (owner.__doc__, getattr(init, "__doc__", None)):
            section = re.search(r"^Args:\n((?:[ \t]+.*\n?|\n)+)", inspect.cleandoc(docstring or ""), re.MULTILINE)
            for name, text in re.findall(
                r"^ {4}(\w+): *(.*(?:\n {5,}.*)*)", section[1] if section else "", re.MULTILINE
            ):
                texts.setdefault(name, " ".join(text.split()))
    return texts


def first_sentence(docstring: str | None) -> str:
    """Return the first sentence of a docstring, on one line.

    Examples:
        >>> first_sentence("Stack frames of images. More.")
        'Stack frames of images.'
    """
    paragraph = " ".join((docstring or "").strip().split("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z`])", paragraph)[0]


# ------------------------------------------------------------------------------------------- as text


def list_text(pieces: Iterable[dict[str, Any]], *, short: bool = False, width: int | None = None) -> str:
    """Return the pieces as lines, under the packages that they are from.

    Args:
        pieces: The result of `describe_pieces`.
        short: True for one line with the description of each; False adds the facts needed in a config.
        width: Width of the terminal; None leaves lines whole, for files and other programs.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for piece in pieces:
        groups.setdefault(_group(piece), []).append(piece)
    blocks = []
    for group in sorted(groups, key=lambda group: (not group.startswith("epibatch."), group)):
        if short:
            lines = _aligned([(piece["piece"], _what(piece)) for piece in groups[group]], width)
        else:
            lines = [line for piece in groups[group] for line in _block(piece, width)]
        blocks.append("\n".join([group, *(f"  {line}" for line in lines)]))
    return "\n\n".join(blocks)


def _group(piece: dict[str, Any]) -> str:
    """Return the package of a piece of epibatch, or the provider of another piece."""
    return piece["path"].partition(":")[0].rpartition(".")[0] if piece["owner"] == "epibatch" else _owner(piece)


def _block(piece: dict[str, Any], width: int | None) -> list[str]:
    lines = [_what(piece)]
    if not piece["error"]:
        columns = f"reads {_columns(piece, 'reads')}; writes {_columns(piece, 'writes')}"
        lines.append(f"{_pipelines(piece)} | {columns if piece['declared'] else f'reads, writes {_NOT_DECLARED}'}")
    if piece["keywords"]:
        lines.append(f"keywords: {_spelled_keywords(piece)}")
    return [piece["piece"], *(text for line in lines for text in _wrapped("    ", line, width))]


def piece_text(piece: dict[str, Any], *, width: int | None = None) -> str:
    """Return everything about one piece as lines.

    Args:
        piece: The result of `describe_piece`.
        width: Width of the terminal; None leaves lines whole.
    """
    title = f"{piece['piece']}  {_owner(piece)}"
    if piece["error"]:
        return f"{title}\n{piece['error']}"
    rows = [("class", piece["path"]), ("pipelines", _pipelines(piece))]
    rows += [(key, _columns(piece, key)) for key in ("reads", "writes")]
    unsaid = {"input_layouts": "any layout", "output_layout": "the layout it took"}
    rows += [(key, _layouts(piece, key, text)) for key, text in unsaid.items()]
    rows += [("lookback", "as its arguments ask for, or none" if piece["lookback"] is None else str(piece["lookback"]))]
    if piece["mutates_episodes"]:
        rows += [("episodes", "it writes to the episodes it is given")]
    keywords = [("keyword", "default", "what")]
    for key, facts in piece["keywords"].items():
        keywords.append((key, repr(facts["default"]) if "default" in facts else "needed", facts.get("doc", "")))
    table = _aligned(keywords, width) if piece["keywords"] else ["It takes no keywords."]
    return "\n".join([title, *_wrapped("", _what(piece), width), "", *_aligned(rows, width), "", *table])


def _aligned(rows: Sequence[tuple[str, ...]], width: int | None) -> list[str]:
    """Return rows as lines with their columns below each other; the last column is wrapped."""
    widths = [max(map(len, column)) for column in zip(*rows)][:-1]
    heads = ["".join(f"{cell:<{size}}  " for cell, size in zip(row, widths)) for row in rows]
    return [line for head, row in zip(heads, rows) for line in _wrapped(head, row[-1], width)]


def _wrapped(head: str, text: str, width: int | None) -> list[str]:
    """Return a head and a text as one line, or wrapped below the text's first word; below a long head."""
    if width is None:
        return [f"{head}{text}".rstrip()]
    if len(head) > width // 2:
        return [head.rstrip(), *_wrapped("    ", text, width)]
    wrapper = textwrap.TextWrapper(max(width - 2, 20), break_long_words=False, break_on_hyphens=False)
    wrapper.initial_indent, wrapper.subsequent_indent = head, " " * len(head)
    return wrapper.wrap(text) or [head.rstrip()]


def _owner(piece: dict[str, Any]) -> str:
    owners, versions = piece["owner"].split(" and "), piece["version"].split(" and ")
    return " and ".join(f"{owner} {version}".rstrip() for owner, version in zip(owners, versions))


def _pipelines(piece: dict[str, Any]) -> str:
    return ", ".join(piece["pipelines"]) or "pipelines not said"


def _columns(piece: dict[str, Any], key: str) -> str:
    if not piece["declared"]:
        return _NOT_DECLARED
    return _AS_ARGUED if piece[key] is None else ", ".join(piece[key]) or "none"


def _layouts(piece: dict[str, Any], key: str, unsaid: str) -> str:
    value = piece[key]
    if not piece["declared"]:
        return _NOT_DECLARED
    return unsaid if value is None else value if isinstance(value, str) else " or ".join(value)


def _what(piece: dict[str, Any]) -> str:
    if piece["error"] is None:
        return str(piece["description"])
    found = [
        line.partition(":")[2].strip() for line in piece["error"].splitlines() if line.strip().startswith("found:")
    ]
    return f"cannot be used: {found[0] if found else piece['error']}"


def _spelled_keywords(piece: dict[str, Any]) -> str:
    return ", ".join(
        f"{key}={facts['default']!r}" if "default" in facts else f"{key} (needed)"
        for key, facts in piece["keywords"].items()
    )
