"""docs/piece-table.md: every piece that comes with epibatch, made of the code, of facts and of a file of figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.machine import REPOSITORY
from benchmarks.piece_costs import SIZES
from benchmarks.piece_facts import Bare, Facts, all_facts
from benchmarks.table import amount, digits
from epibatch.core.registry import built_in_pieces, counterparts, piece_class, piece_name
from epibatch.piece_listing import describe_piece

PAGE = REPOSITORY / "docs" / "piece-table.md"
FIGURES = REPOSITORY / "benchmarks" / "pieces.json"
TARGET = 1.5
PACKAGES = ("Python", "epibatch", "numpy", "torch")
HEAD = """# All pieces

<!-- made by `make generated` of the code, benchmarks/piece_facts/ and benchmarks/pieces.json: change those -->

Every piece that comes with epibatch, by the room of `epibatch.connectors` it lives in. `epibatch pieces NAME` shows
the keywords of one. What a piece reads has to be in the batch in front of it; what it takes from the episodes is not
listed. Counterparts do about the same in RLlib 2.60 and in TorchRL: `epibatch pieces CatFrames` finds ours by
theirs, and [features.md](internals/features.md) goes through all of their features.
"""
COSTS = """## What they cost

A piece's run, as `pipeline.profile()` counts it, beside the bare NumPy expression that it stands for, on {sizes} rows
of episodes of about 200 steps: the median of the ratio, first and third quartile in brackets, and in the last column
what the piece took on {largest} rows, for which at most {target:g} is the target. `obs` is float32 [16], or uint8
[16, 16, 3] or [16, 16, 1] for pieces about images; `newest` are the newest observations of as many running episodes.
"""


def page(figures: Mapping[str, Any]) -> str:
    """The page.

    Args:
        figures: As `benchmarks.pieces` saves them; {} if nothing was measured.
    """
    facts, pieces = all_facts(), [describe_piece(name) for name in piece_names()]
    rooms: dict[str, list[dict[str, Any]]] = {}
    for piece in pieces:
        rooms.setdefault(room_of(piece["path"]), []).append(piece)
    parts = [HEAD]
    for room in sorted(rooms):
        parts.append(f"## {room}\n\n{_table_of(rooms[room])}\n")
    parts.append(_costs(pieces, facts, figures))
    return "\n".join(parts)


def piece_names() -> list[str]:
    """The registered names of the pieces that come with epibatch, without second names."""
    return sorted({piece_name(piece_class(name)) for name in built_in_pieces()})


def room_of(path: str) -> str:
    """The room of a class of `epibatch.connectors`.

    Example:
        >>> room_of("epibatch.connectors.common.frame_stacking:FrameStacking")
        'common'
    """
    return path.split(".")[2]


def _table_of(pieces: Iterable[dict[str, Any]]) -> str:
    lines = ["| piece | what it does | pipelines | reads | writes | RLlib | TorchRL |", "|---|---|---|---|---|---|---|"]
    for piece in pieces:
        own = counterparts(piece_class(piece["piece"]))
        cells = [f"`{piece['piece']}`", piece["description"], ", ".join(f"`{one}`" for one in piece["pipelines"])]
        cells += [_columns(piece[key]) for key in ("reads", "writes")]
        cells += [", ".join(f"`{one}`" for one in names) for names in (own.get("RLlib", ()), own.get("TorchRL", ()))]
        lines.append(_line(cells))
    return "\n".join(lines)


def _columns(names: Iterable[str] | None) -> str:
    return "as its arguments say" if names is None else ", ".join(f"`{name}`" for name in names)


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") or "-" for cell in cells) + " |"


def _costs(pieces: Iterable[dict[str, Any]], facts: Mapping[str, Facts], figures: Mapping[str, Any]) -> str:
    measured = [(piece["piece"], facts[piece["piece"]].bare) for piece in pieces if piece["piece"] in facts]
    sizes, costs = [f"{rows:,}" for rows in SIZES], figures.get("pieces", {})
    text = COSTS.format(sizes=" and ".join(sizes), target=TARGET, largest=sizes[-1])
    head = ["piece", "stands for", *(f"{size} rows" for size in sizes), "takes"]
    lines = [_line(head), "|" + "---|" * len(head)]
    for name, bare in measured:
        if isinstance(bare, Bare):
            lines.append(_line([_built(name, bare), bare.text, *_figures(costs.get(name, {}))]))
    without = [f"- `{name}`: {bare}." for name, bare in measured if isinstance(bare, str)]
    parts = [text, "\n".join(lines), _circumstances(figures), "Without an expression:", "\n".join(without)]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _built(name: str, bare: Bare) -> str:
    keywords = {key: value for key, value in bare.keywords.items() if key != "as_learner_connector"}
    return f"`{name}`" + (f" ({', '.join(f'{key}={value!r}' for key, value in keywords.items())})" if keywords else "")


def _figures(cost: Mapping[str, Any]) -> list[str]:
    found = [cost.get(str(rows)) for rows in SIZES]
    cells = ["not measured yet" if own is None else _ratio(own["ratio"]) for own in found]
    last = found[-1]
    return [*cells, "-" if last is None else amount(last["piece"], "s")]


def _ratio(ratio: Mapping[str, float]) -> str:
    return f"{digits(ratio['median'])} ({digits(ratio['low'])} to {digits(ratio['high'])})"


def _circumstances(figures: Mapping[str, Any]) -> str:
    if not figures:
        return ""
    versions = ", ".join(f"{name} {own}" for name, own in figures["versions"].items() if name in PACKAGES)
    return f"{figures['machine']['processor']}, one core, one thread; {versions}; {figures['when'][:10]}."


def beyond(figures: Mapping[str, Any]) -> list[str]:
    """Pieces that take more than the target allows on the most rows."""
    rows = str(SIZES[-1])
    costs = figures.get("pieces", {})
    return [name for name, own in costs.items() if rows in own and own[rows]["ratio"]["median"] > TARGET]
