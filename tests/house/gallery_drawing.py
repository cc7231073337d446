"""Pictures of columns of a batch: a cell for each value, in the colour of its episode, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

LEFT, HIGH, GAP, PART, PIXEL = 50, 20, 4, 14, 8
"""Pixels: left of the cells, height of a cell, between rows, between episodes, a pixel of an image."""
GREY, COLOURS = "#737d88", ("#2b6ca3", "#4a7f2c", "#8a5aa8", "#b0560b", "#1b7a78")
"""Words and outlines; episodes in turn. All are readable on white and on black: the background is transparent."""
PADDING = -1
"""The episode of padding; -2 is that of numbers which belong to no step."""
HATCHES = (
    '<defs><pattern id="p" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    f'<path d="M0 0v5" stroke="{GREY}" stroke-width="1.6" stroke-opacity="0.7"/></pattern></defs>'
)
LABEL, SMALL = f'fill="{GREY}" font-size="12"', f'fill="{GREY}" font-size="10" text-anchor="middle"'
ON_COLOUR, OUTSIDE = 'fill="#fff" text-anchor="middle"', f'fill="{GREY}" text-anchor="middle"'
WHERE = {
    "stored": ", in the episodes",
    "episodes": ", by episode",
    "agents": ", by agent",
    "modules": ", by module",
    "arrays": ", array",
    "tensors": ", tensor",
}
"""Layouts in words. In the first three the rows of each episode or agent are by themselves."""


class Column(NamedTuple):
    """Rows of a column.

    Args:
        name: Its name in the batch.
        layout: One of `WHERE`, or another word that is not shown.
        dtype: Name of the type of its values.
        shape: Its shape; None: rows differ.
        rows: Values of each row: arrays, which may differ in shape.
        origin: Episode and step of each row: int [rows, 2]. A step that is not of the episode is a bootstrap row.
        line: Rows of a sequence, T of `[B, T, ...]`; 0: rows are no sequences.
        pixels: True if rows are images.
    """

    name: str
    layout: str
    dtype: str
    shape: tuple[int, ...] | None
    rows: Sequence[Any]
    origin: Any
    line: int = 0
    pixels: bool = False

    @property
    def facts(self) -> str:
        """Type, shape and layout in words."""
        return f"{self.dtype} {'' if self.shape is None else self.shape}".strip() + WHERE.get(self.layout, "")

    def is_placed(self, names: Sequence[str]) -> bool:
        """True if rows stand below their names or steps; other rows are close together, as in an array."""
        return not self.line and (bool(names) or self.layout in list(WHERE)[:3])


class _Picture:
    """Paths and texts by their look, and the size that they need."""

    def __init__(self) -> None:
        self.parts: dict[str, list[str]] = {}
        self.width = self.height = 0.0

    def cell(self, x: float, y: float, wide: float, high: float, look: str) -> None:
        self.parts.setdefault(f"<path {look} d", []).append(f"M{x:g} {y:g}h{wide:g}v{high:g}h-{wide:g}z")
        self.width, self.height = max(self.width, x + wide), max(self.height, y + high)

    def text(self, x: float, y: float, words: str, look: str, width: float = 0) -> None:
        self.parts.setdefault(f"<g {look}", []).append(f'<text x="{x:g}" y="{y:g}">{words}</text>')
        self.width = max(self.width, x + width)

    def finished(self, title: str) -> str:
        wide, high = round(self.width + 3), round(self.height + 3)
        body = [
            f'{look}="{"".join(parts)}"/>' if look.startswith("<path") else f"{look}>{''.join(parts)}</g>"
            for look, parts in sorted(self.parts.items(), key=lambda item: item[0].startswith("<g"))
        ]
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" '
            f'role="img" aria-label="{escape(title)}" font-family="DejaVu Sans, system-ui, sans-serif" font-size="11">'
            f"{HATCHES if any('url(#p)' in look for look in self.parts) else ''}{''.join(body)}</svg>\n"
        )


def draw(
    title: str,
    parts: Sequence[tuple[str, Sequence[Column]]],
    lengths: Sequence[int],
    names: Sequence[str] = (),
    unit: str = "step",
) -> str:
    """Return the SVG of columns, one below the other, with the same steps below each other.

    Args:
        title: The words for readers who do not see the picture.
        parts: Words and columns: those before a piece, and those after it.
        lengths: The number of steps of each episode.
        names: Words above the rows, by episode; (): their steps.
        unit: The word for these; "" leaves out both.
    """
    picture, columns = _Picture(), [column for _, own in parts for column in own]
    wide = max([20, *(6.5 * len(words) + 7 for column in columns for words in _words(column))])
    placed = [column for column in columns if column.is_placed(names)]
    slot = max([6 * max(map(len, names), default=0), *(_size(column, wide)[0] for column in placed)]) + GAP
    places: dict[tuple[int, int], float] = {}
    x = float(LEFT)
    for chunk, step in sorted({(int(chunk), int(step)) for column in placed for chunk, step in column.origin}):
        x += PART if places and not names and (chunk, step - 1) not in places else 0
        places[chunk, step] = x
        x += slot
    heads = [(*pair, at + (slot - GAP) / 2) for pair, at in places.items()]
    if not placed and not columns[0].line:
        slot = _size(columns[0], wide)[0] + GAP
        heads = [(*pair, LEFT + n * slot + (slot - GAP) / 2) for n, pair in enumerate(columns[0].origin)]
    y = 16.0 if heads and unit else 0.0
    for chunk, step, at in heads if unit else ():
        picture.text(at, 11, str(names[chunk] if names else step), SMALL)
    if y:
        picture.text(0, 11, unit, LABEL)
    for words, own in parts:
        for number, column in enumerate(own):
            picture.text(0, y + 15, "" if number else words, LABEL)
            caption = f'<tspan font-weight="bold">{escape(column.name)}</tspan> {escape(column.facts)}'
            picture.text(LEFT, y + 15, caption, LABEL, 7.6 * len(column.name) + 6 * len(column.facts) + 4)
            y = _draw_rows(picture, y + 22, column, wide, places if column.is_placed(names) else {}, lengths) + 6
        y += 6
    return picture.finished(title)


def words_of(value: Any) -> str:
    """Return a value in few signs; of large integers, such as hashes, the first of their hexadecimal digits."""
    if isinstance(value, dict):
        return ", ".join(f"{key}: {entry}" for key, entry in value.items())
    if isinstance(value, (int, np.integer)):
        return str(value) if abs(int(value)) < 10**5 else f"{int(value) % 2**64:016x}"[:4]
    words = f"{float(value):.2f}".rstrip("0").rstrip(".")
    return "0" if words == "-0" else words


def _words(column: Column) -> list[str]:
    shown = [] if column.pixels else [row for row, (chunk, _) in zip(column.rows, column.origin) if chunk != PADDING]
    return [words_of(value) for row in shown for value in np.ravel(row) if not isinstance(value, (bool, np.bool_))]


def _size(column: Column, wide: float) -> tuple[float, float]:
    """Return the width and the height of the largest row in pixels."""
    if column.pixels:
        down, across = _levels(column.rows[0]).shape[:2]
        return across * PIXEL, down * PIXEL
    grids = [_grid(row) for row in column.rows]
    return max(across for across, _ in grids) * (wide + 1) - 1, max(down for _, down in grids) * (HIGH + 1) - 1


def _grid(row: Any) -> tuple[int, int]:
    """Return the entries of a row beside each other, and below each other: vectors stand upright."""
    shape = (*np.shape(row), 1, 1)
    return int(np.prod(shape[1:])), shape[0]


def _draw_rows(picture: _Picture, y: float, column: Column, wide: float, places: Any, lengths: Sequence[int]) -> float:
    """Draw the rows of a column; return where they end."""
    width, height = _size(column, wide)
    for number, (row, origin) in enumerate(zip(column.rows, column.origin)):
        chunk, step = map(int, origin)
        line, place = divmod(number, column.line or len(column.rows))
        x, top = places.get((chunk, step), LEFT + place * (width + GAP)), y + line * (height + GAP)
        if column.line and place == 0:
            picture.text(0, top + 14, f"row {line}", LABEL)
        if column.pixels:
            for (down, across), _ in np.ndenumerate(_levels(row)[..., 0]):
                colour = "".join(f"{level:02x}" for level in np.broadcast_to(_levels(row)[down, across], 3))
                picture.cell(x + across * PIXEL, top + down * PIXEL, PIXEL, PIXEL, f'fill="#{colour}"')
        else:
            extra = column.layout != "stored" and chunk >= 0 and step >= lengths[chunk]
            _draw_row(picture, x, top, np.asarray(row), wide, chunk, extra)
    return y + (line + 1) * (height + GAP)


def _draw_row(picture: _Picture, x: float, y: float, row: Any, wide: float, chunk: int, extra: bool) -> None:
    for place, value in enumerate(row.ravel()):
        colour, is_mask = COLOURS[chunk % len(COLOURS)], row.dtype == bool
        filled = chunk >= 0 and not extra and (not is_mask or value)
        look = f'fill="{colour}"' if filled else f'fill="none" stroke="{colour}"'
        if chunk < 0:
            look = f'fill="{"url(#p)" if chunk == PADDING else "none"}" stroke="{GREY}" stroke-opacity="0.5"'
        elif extra:
            fill = f'fill="{colour}" fill-opacity="0.5"' if is_mask and value else 'fill="none"'
            look = f'{fill} stroke="{colour}" stroke-width="1.5" stroke-dasharray="4 3"'
        inset, (down, across) = 0 if filled else 0.75, divmod(place, _grid(row)[0])
        left, top = x + across * (wide + 1), y + down * (HIGH + 1)
        picture.cell(left + inset, top + inset, wide - 2 * inset, HIGH - 2 * inset, look)
        if chunk != PADDING and not is_mask:
            picture.text(left + wide / 2, top + 14, escape(words_of(value)), ON_COLOUR if filled else OUTSIDE)


def _levels(row: Any) -> Any:
    """Return an image as 0 to 255 [height, width, 3 or 1]: channels that come first are below each other, in gray."""
    levels = np.clip(np.rint(row * (1.0 if row.dtype == np.uint8 else 255.0)), 0, 255).astype(int)
    return levels.reshape(-1, row.shape[-1], 1) if row.shape[0] in (1, 3) and row.shape[-1] > 3 else levels
