"""Still drawings of what a page shows: episodes as ribbons, and the cells of a train batch, as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_SIDE, _GAP, _WIDTH = 30, 3, 24
"""Pixels of a cell and between cells, and cells in a line of a batch without a time axis."""
_LABEL = "#737d88"
_COLOURS = ("#2b6ca3", "#4a7f2c", "#8a5aa8", "#b0560b", "#1b7a78", "#b23a55")
"""Of chunks, in turn. All colours are readable on white and on black: the background is transparent."""
_PADDING, _LOSS, _BOOTSTRAP, _NO_LOSS, _LOOKBACK = range(5)
_KINDS = ("padding", "step with loss", "bootstrap row", "step without loss", "lookback")
_ENDS = {"terminated": "■", "truncated": "▶", "cut": "⋯"}
_SIGNS = "■ terminated   ▶ truncated   ⋯ goes on"


class _Drawing:
    """Cells and texts, and the size that they need."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._kinds: dict[int, None] = {}
        self.width = self.height = 0.0

    def text(self, x: float, y: float, words: str, colour: str = _LABEL, anchor: str = "start") -> None:
        """Write a line of words, at its baseline."""
        self._parts.append(f'<text x="{x}" y="{y}" fill="{colour}" text-anchor="{anchor}">{_safe(words)}</text>')
        self.width = max(self.width, x + 7.2 * len(words) * {"start": 1, "middle": 0.5, "end": 0}[anchor])
        self.height = max(self.height, y + 5)

    def cell(self, x: float, y: float, kind: int, colour: str, words: str, about: str = "") -> None:
        """Draw a cell, what is written in it, and the text about it that a pointer shows."""
        if about:
            self._kinds[kind] = None
        side = _SIDE - _GAP
        fill = colour if kind == _LOSS else "none"
        dashes = {_BOOTSTRAP: ' stroke-dasharray="4 3"', _PADDING: ' stroke-opacity="0.4"'}.get(kind, "")
        line, wide = (_LABEL, 1) if kind in (_PADDING, _LOOKBACK) else (colour, 2)
        self._parts.append(
            f'<g><title>{_safe(about)}</title><rect x="{x + 1}" y="{y + 1}" width="{side - 2}" height="{side - 2}" '
            f'rx="3" fill="{fill}" stroke="{line}" stroke-width="{wide}"{dashes}/>'
        )
        self.text(x + side / 2, y + side / 2 + 4.5, words, "#ffffff" if kind == _LOSS else _LABEL, "middle")
        self._parts.append("</g>")
        self.width, self.height = max(self.width, x + side), max(self.height, y + side)

    def finished(self, title: str, signs: str = "") -> str:
        """Return the SVG, with a legend of the kinds of cells that it has, and of signs."""
        x, y = 0.0, self.height + 12
        for kind in sorted(self._kinds, key=(_LOSS, _NO_LOSS, _BOOTSTRAP, _LOOKBACK, _PADDING).index):
            self.cell(x, y, kind, _COLOURS[0], "" if kind == _PADDING else "t")
            self.text(x + _SIDE + 4, y + 18, _KINDS[kind])
            x += _SIDE + 24 + 7.2 * len(_KINDS[kind])
        self.text(x, y + 18, signs)
        wide, high = round(self.width + 4), round(self.height + 4)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" '
            f'role="img" aria-label="{_safe(title)}" font-family="DejaVu Sans, system-ui, sans-serif" font-size="12">'
            f"{''.join(self._parts)}</svg>\n"
        )


def draw_episodes(data: Mapping[str, Any]) -> str:
    """Draw the chunks of `Inspection.data`, a line for each environment and agent, or for each chunk."""
    chunks: Sequence[Any] = data["chunks"]
    lines: dict[Any, list[int]] = {}
    for number, chunk in enumerate(chunks):
        key = (chunk["env"], chunk["agent"] or "") if chunk["env"] >= 0 else (number,)
        lines.setdefault(key, []).append(number)
    rows, extra = _rows_that_begin(data), _with_bootstrap_row(data)
    drawing = _Drawing()
    names = [_line_name(chunks[numbers[0]]) for _, numbers in sorted(lines.items())]
    left = 12 + 7.2 * max(map(len, names), default=0)
    begin = min((_time(data, number, -chunk["look"]) for number, chunk in enumerate(chunks)), default=0)
    above, below = 20 if any(chunk["env"] >= 0 for chunk in chunks) else 2, 16 if rows else 4
    for line, (_, numbers) in enumerate(sorted(lines.items())):
        y = line * (above + _SIDE + below) + above
        drawing.text(0, y + 18, names[line])
        for number in numbers:
            chunk, colour = chunks[number], _COLOURS[number % len(_COLOURS)]
            steps = range(-chunk["look"], chunk["n"] + 1)
            places = {t: left + (_time(data, number, t) - begin) * _SIDE for t in steps}
            if chunk["env"] >= 0:
                drawing.text(places[-chunk["look"]], y - 5, f"{chunk['episode']} from t={chunk['t0']}")
            for t in steps:
                if (number, t) in rows:
                    drawing.text(places[t] + 1, y + _SIDE + 10, f"b={rows[number, t]}")
            for t in steps[:-1]:
                about = f"step {chunk['t0'] + t} of episode {chunk['episode']}"
                drawing.cell(places[t], y, _LOOKBACK if t < 0 else _LOSS, colour, str(chunk["t0"] + t), about)
            end = places[chunk["n"]]
            if number in extra:
                about = f"bootstrap row of episode {chunk['episode']}"
                drawing.cell(end, y, _BOOTSTRAP, colour, str(chunk["t0"] + chunk["n"]), about)
                end += _SIDE
            drawing.text(end + 3, y + 18, _ENDS[chunk["end"]])
    return drawing.finished("Episodes and their chunks, one cell per step", _SIGNS)


def draw_batch(data: Mapping[str, Any], module_id: str) -> str:
    """Draw the cells of a module's train batch of `Inspection.data`, each with the step whose values it holds."""
    grid, chunks = data["grids"][module_id], data["chunks"]
    flat = len(grid["shape"]) == 1
    width = min(_WIDTH, len(grid["kind"])) if flat else len(grid["kind"]) // max(1, grid["shape"][0])
    drawing, left = _Drawing(), 44 if not flat else 62
    for t in range(0, width, 1 if width <= 10 else 2):
        drawing.text(left + t * _SIDE + (_SIDE - _GAP) / 2, 12, f"+{t}" if flat else f"t={t}", anchor="middle")
    for cell, (kind, number, at) in enumerate(zip(grid["kind"], grid["chunk"], grid["at"])):
        line, t = divmod(cell, width)
        x, y = left + t * _SIDE, 20 + line * _SIDE
        if t == 0:
            drawing.text(0, y + 18, f"row {cell}" if flat else f"b={line}")
        where = f"row {cell}" if flat else f"[b={line}, t={t}]"
        if kind == _PADDING:
            drawing.cell(x, y, kind, _LABEL, "", f"{where}: padding")
        else:
            chunk = chunks[number]
            about = f"{where}: step {chunk['t0'] + at} of episode {chunk['episode']}, {_KINDS[kind]}"
            drawing.cell(x, y, kind, _COLOURS[number % len(_COLOURS)], str(chunk["t0"] + at), about)
    for line, (_, state, _) in enumerate(grid["states"]):
        words = {None: "initial state", "zeros": "zeros", "?": "another state"}.get(state, f"state after {state}")
        drawing.text(left + width * _SIDE + 8, 20 + line * _SIDE + 18, words)
    return drawing.finished(f"Train batch of {module_id}, {grid['shape']}")


def _time(data: Mapping[str, Any], number: int, step: int) -> int:
    """Return the place of a step of a chunk on its line."""
    chunk = data["chunks"][number]
    if chunk["env"] < 0 and chunk["agent"] is None:
        return int(chunk["t0"] + step)
    begin = min(min(one["x"]) for one in data["chunks"] if chunk["env"] >= 0 or one["episode"] == chunk["episode"])
    return int(chunk["x"][step + chunk["look"]] - begin)


def _line_name(chunk: Mapping[str, Any]) -> str:
    name = chunk["episode"] if chunk["env"] < 0 else f"env {chunk['env']}"
    return name if chunk["agent"] is None else f"{name}, {chunk['agent']}"


def _rows_that_begin(data: Mapping[str, Any]) -> dict[tuple[int, int], int]:
    """(chunk, step) -> the row of a batch of sequences that begins there."""
    found = {}
    for grid in data["grids"].values():
        if len(grid["shape"]) > 1:
            width = len(grid["kind"]) // max(1, grid["shape"][0])
            for cell in range(0, len(grid["kind"]), width):
                found[grid["chunk"][cell], grid["at"][cell]] = cell // width
    return found


def _with_bootstrap_row(data: Mapping[str, Any]) -> set[int]:
    """The chunks with a bootstrap row."""
    cells = (zip(grid["kind"], grid["chunk"]) for grid in data["grids"].values())
    return {number for pairs in cells for kind, number in pairs if kind == _BOOTSTRAP}


def _safe(text: str) -> str:
    """Text as it may stand in XML."""
    return escape("".join(sign if sign.isprintable() else "\ufffd" for sign in text))
