"""What there is to say about every piece that a config can name, as data and as text."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from epibatch.core.errors import EpibatchError, UnknownNameError
from epibatch.core.piece_arguments import constructor_parameters
from epibatch.core.registry import (
    SPACES,
    PieceEntry,
    named_elsewhere,
    piece_class,
    piece_entries,
    piece_name,
    plain_data,
)

__all__ = ["describe_named", "describe_piece", "describe_pieces", "first_sentence", "list_text", "piece_text"]

_NOT_DECLARED = "not declared"
_AS_ARGUED = "as its arguments say"


# --------------------------------------------------------------------------------------------- as data


def describe_pieces() -> list[dict[str, Any]]:
    """Every piece, second names included, sorted by name; one that cannot be used says why under `error`."""
    return [_describe(name, entries) for name, entries in piece_entries().items()]


def describe_piece(name: str) -> dict[str, Any]:
    """One piece by its name.

    Raises:
        UnknownNameError: no piece has this name.
    """
    entries = piece_entries()
    if name not in entries:
        piece_class(name)  # says what is wrong with the name
    return _describe(name, entries[name])


def describe_named(name: str) -> tuple[str, list[dict[str, Any]]]:
    """What a name leads to: a piece, or those that a class of RLlib or TorchRL is here.

    Args:
        name: a piece's, or the class's.

    Returns:
        A sentence about a class of another library, "" for a piece of this name; and the pieces.

    Raises:
        UnknownNameError: neither is called so.
    """
    try:
        return "", [describe_piece(name)]
    except UnknownNameError:
        sentence, names = named_elsewhere(name)
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
        "takes": None,
        "gives": None,
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
    """What a piece's class says about itself; None where it says nothing."""
    names = ("pipelines", "columnar", "reads", "writes", "takes", "gives", "mutates_episodes", "lookback")
    said = {name: getattr(cls, name) for name in names}
    said = {name: None if hasattr(type(value), "__get__") else value for name, value in said.items()}  # properties
    declared = bool(said["columnar"]) or said["reads"] is not None
    facts: dict[str, Any] = {"pipelines": list(said["pipelines"] or ()), "declared": declared}
    if isinstance(said["lookback"], int) and said["lookback"]:
        facts["lookback"] = said["lookback"]
    if declared:
        facts |= {key: _columns_said(cls, said, key) for key in ("reads", "writes")} | {"gives": said["gives"]}
        facts |= {"takes": None if said["takes"] is None else list(said["takes"])}
        facts |= {"mutates_episodes": said["mutates_episodes"]}
    return facts


def _columns_said(cls: Any, said: dict[str, Any], key: str) -> list[str] | None:
    """Columns that a piece's class reads or writes; None where that depends on its arguments."""
    if said[key] is not None or not hasattr(type(getattr(cls, key)), "__get__"):
        return list(said[key] or ())
    names = getattr(cls, "columns", ())
    names = (names,) if isinstance(names, str) else names
    if not isinstance(names, (tuple, list)) or not names or not all(isinstance(name, str) for name in names):
        return None
    return list(dict.fromkeys(name.split("/")[0] for name in names))


def _keywords(cls: type) -> dict[str, dict[str, Any]]:
    """The constructor's keywords: {} or {"default": value} for each, with its documentation."""
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
    """What the docstrings of a class, its constructor and the classes above it say under `Args:`."""
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
    """The first sentence of a docstring, on one line.

    Example:
        >>> first_sentence("Stack frames of images. More.")
        'Stack frames of images.'
    """
    paragraph = " ".join((docstring or "").strip().split("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z`])", paragraph)[0]


# --------------------------------------------------------------------------------------------- as text


def list_text(pieces: Iterable[dict[str, Any]], *, one_line_each: bool) -> RenderableType:
    """All pieces for a console.

    Args:
        pieces: what `describe_pieces` gives.
        one_line_each: a table that other programs can search, in place of a few lines for each piece.
    """
    if one_line_each:
        table = Table("piece", "owner", "pipelines", "reads", "writes", "keywords", "what it does", box=None)
        for piece in pieces:
            table.add_row(*map(escape, _cells(piece)))
        return table
    return Group(*(_short_block(piece) for piece in pieces))


def _cells(piece: dict[str, Any]) -> list[str]:
    columns = [_columns(piece, "reads"), _columns(piece, "writes")]
    return [piece["piece"], _owner(piece), _pipelines(piece), *columns, _spelled_keywords(piece), _what(piece)]


def _short_block(piece: dict[str, Any]) -> RenderableType:
    name, _, pipelines, reads, writes, keywords, what = map(escape, _cells(piece))
    facts = [pipelines, f"reads {reads}; writes {writes}" if piece["declared"] else f"reads, writes {_NOT_DECLARED}"]
    lines = [what, " | ".join(facts), f"keywords: {keywords}" if piece["keywords"] else ""]
    if piece["error"]:
        lines = [what]
    body = Group(*(Padding(line, (0, 0, 0, 4), expand=False) for line in lines if line))
    return Group(f"[bold]{name}[/bold]  {escape(_owner(piece))}", body, "")


def piece_text(piece: dict[str, Any]) -> RenderableType:
    """All there is to say about one piece.

    Args:
        piece: what `describe_piece` gives.
    """
    if piece["error"]:
        return Group(f"[bold]{escape(piece['piece'])}[/bold]  {escape(_owner(piece))}", escape(piece["error"]))
    facts = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    rows = [("class", piece["path"]), ("pipelines", _pipelines(piece))]
    rows += [(key, _columns(piece, key)) for key in ("reads", "writes")]
    rows += [
        ("takes", _layouts(piece, "takes", "any layout")),
        ("gives", _layouts(piece, "gives", "the layout it took")),
    ]
    rows += [("lookback", "as its arguments ask for, or none" if piece["lookback"] is None else str(piece["lookback"]))]
    if piece["mutates_episodes"]:
        rows += [("episodes", "it writes to the episodes it is given")]
    for row in rows:
        facts.add_row(*map(escape, row))
    title = f"[bold]{escape(piece['piece'])}[/bold]  {escape(_owner(piece))}"
    return Group(title, Padding(escape(_what(piece)), (0, 0, 1, 0), expand=False), facts, *_keyword_rows(piece))


def _keyword_rows(piece: dict[str, Any]) -> list[RenderableType]:
    if not piece["keywords"]:
        return ["", "It takes no keywords."]
    table = Table("keyword", "default", "what", box=None, header_style="bold", padding=(0, 2, 0, 0))
    for key, facts in piece["keywords"].items():
        default = repr(facts["default"]) if "default" in facts else "needed"
        table.add_row(*map(escape, (key, default, facts.get("doc", ""))))
    return ["", table]


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
