"""Write docs/piece-table.md: every piece that comes with epibatch, as the code describes it.

Usage: python tests/house/write_piece_table.py
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from epibatch.core.registry import built_in_pieces, counterparts, piece_class, piece_name
from epibatch.piece_listing import describe_piece

PAGE = Path(__file__).resolve().parents[2] / "docs" / "piece-table.md"
HEAD = """# All pieces

<!-- made by `make generated` of the code: change that -->

Every piece that comes with epibatch, by the package of `epibatch.connectors` it is in. `epibatch pieces NAME` shows
the keywords of one. What a piece reads has to be in the batch before it; what it takes from the episodes is not
listed. Counterparts do about the same in RLlib 2.60 and in TorchRL: `epibatch pieces CatFrames` finds ours by
theirs, and [Features, one by one](internals/features.md) goes through all of their features.
"""
COLUMNS = "| piece | what it does | pipelines | reads | writes | RLlib | TorchRL |\n|---|---|---|---|---|---|---|"


def page() -> str:
    """Return the page."""
    names = {piece_name(piece_class(name)) for name in built_in_pieces()}  # without second names
    pieces = sorted((describe_piece(name) for name in names), key=lambda piece: (_package(piece), piece["piece"]))
    parts = [HEAD]
    for package, own in groupby(pieces, _package):
        parts.append("\n".join([f"## {package}\n", COLUMNS, *map(_line, own), ""]))
    return "\n".join(parts)


def _package(piece: dict[str, Any]) -> str:
    return str(piece["path"].split(".")[2])


def _line(piece: dict[str, Any]) -> str:
    own = counterparts(piece_class(piece["piece"]))
    cells = [f"`{piece['piece']}`", piece["description"], _names(piece["pipelines"])]
    cells += ["as its arguments say" if piece[key] is None else _names(piece[key]) for key in ("reads", "writes")]
    cells += [_names(own.get(library, ())) for library in ("RLlib", "TorchRL")]
    return "| " + " | ".join(cell.replace("|", "\\|") or "-" for cell in cells) + " |"


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
