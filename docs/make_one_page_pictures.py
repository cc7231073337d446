"""Draw the pictures of docs/all-of-epibatch.md: one episode of seven steps, from a real run, on its way into a loss.

Usage: python docs/make_one_page_pictures.py [FOLDER]
"""

from __future__ import annotations

import contextlib
import io
import sys
import types
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

DOCS = Path(__file__).parent
SIDE, LABEL = 40, 120
GREY, BLUE, GREEN = "#737d88", "#2b6ca3", "#4a7f2c"
STYLES = {
    "first": f'fill="{BLUE}" stroke="{BLUE}"',
    "second": f'fill="{GREEN}" stroke="{GREEN}"',
    "first bootstrap": f'fill="none" stroke="{BLUE}" stroke-width="2" stroke-dasharray="4 3"',
    "second bootstrap": f'fill="none" stroke="{GREEN}" stroke-width="2" stroke-dasharray="4 3"',
    "lookback": f'fill="none" stroke="{GREY}"',
    "padding": f'fill="none" stroke="{GREY}" stroke-opacity="0.4"',
}
"""Steps of the first and the second chunk, and other rows. The background is transparent, for light and dark pages."""

Cell = tuple[Any, str]
"""Text of a cell, and its style."""


def draw(title: str, lines: Iterable[tuple[str, int, list[Cell], str]]) -> str:
    """Return an SVG of lines of cells.

    Args:
        title: The words for readers who do not see the picture.
        lines: Each a label, the column in which its cells begin, cells, and a note after them.
    """
    parts, width, height = [], 0, 0
    for label, begin, cells, note in lines:
        parts.append(_text(0, height + 24, label))
        for place, (words, style) in enumerate(cells, begin):
            x = LABEL + place * SIDE
            colour = "#ffffff" if style in ("first", "second") else GREY
            parts.append(f'<rect x="{x}" y="{height + 2}" width="36" height="36" rx="4" {STYLES[style]}/>')
            parts.append(_text(x + 18, height + 24, str(words), colour, "middle"))
        end = LABEL + (begin + len(cells)) * SIDE
        parts.append(_text(end + 6, height + 24, note))
        width, height = max(width, end + 7 * len(note) + 12), height + SIDE
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(title)}" font-family="DejaVu Sans, system-ui, sans-serif" font-size="13">'
        f"{''.join(parts)}</svg>\n"
    )


def _text(x: float, y: float, words: str, colour: str = GREY, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" fill="{colour}" text-anchor="{anchor}">{escape(words)}</text>' if words else ""


def names_of(page: Path) -> dict[str, Any]:
    """Run the Python blocks of a page, and return the names that they leave."""
    module = sys.modules["page"] = types.ModuleType("page")
    with contextlib.redirect_stdout(io.StringIO()):
        for block in page.read_text(encoding="utf-8").split("```python\n")[1:]:
            exec(block.partition("```")[0], module.__dict__)
    return vars(module)


def pictures(names: dict[str, Any]) -> dict[str, str]:
    """Return the SVG of each picture.

    Args:
        names: The names of the page's code, of which `chunks`, `batch` and `seen` are drawn.
    """
    first, second = names["chunks"]
    frames, mask = (np.asarray(names["batch"][name]).astype(int) for name in ("obs", "loss_mask"))
    look = int(second.get_observations(-1, neg_index_as_lookback=True)[0])
    state = f"state after step {look}"

    def both(name: str) -> list[Cell]:
        values = [getattr(chunk, f"get_{name}")().ravel().astype(int) for chunk in (first, second)]
        return [(value, kind) for part, kind in zip(values, ("first", "second")) for value in part]

    def row(number: int, values: Any) -> list[Cell]:
        kind, length = ("first", "second")[number], len((first, second)[number])
        kinds = [kind] * length + [f"{kind} bootstrap"] + ["padding"] * len(values)
        return [(value, kind) for value, kind in zip(values, kinds)]

    observations = both("observations")
    del observations[len(first)]  # the newest observation of the first chunk is the first one of the second
    stacks = [stack for number in range(2) for stack in row(number, frames[number]) if stack[1] in ("first", "second")]
    return {
        "episode": draw(
            "An episode: eight observations, seven actions, seven rewards; the last reward is 1.",
            [
                ("observation", 0, [(value, "first") for value, _ in observations], "terminated"),
                ("action", 0, [(value, "first") for value, _ in both("actions")], ""),
                ("reward", 0, [(value, "first") for value, _ in both("rewards")], ""),
            ],
        ),
        "chunks": draw(
            "Two chunks: steps 0 to 3, and steps 4 to 6 with step 3 as lookback.",
            [
                ("first call", 0, observations[: len(first)], "goes on"),
                ("second call", look, [(look, "lookback"), *observations[len(first) : -1]], "terminated"),
            ],
        ),
        "frames": draw(
            "The stack of two frames of each step: the frame before, and its own.",
            [
                (words, 0, [(stack[place], kind) for stack, kind in stacks], "")
                for place, words in enumerate(("frame before", "own frame"))
            ],
        ),
        "batch": draw(
            "The batch: in row 0 steps 0 to 3 and a bootstrap row; in row 1 steps 4 to 6, a bootstrap row and padding.",
            [
                (f"row {number}", 0, row(number, frames[number, :, -1]), f"starts from {words}")
                for number, words in enumerate(("zeros", f"the {state}"))
            ],
        ),
        "loss": draw(
            "The loss mask is 1 for the seven steps, and 0 for bootstrap rows and padding.",
            [(f"mask, row {number}", 0, row(number, mask[number]), "") for number in range(2)],
        ),
        "acting": draw(
            "Step 4 while acting and while learning: the same two frames.",
            [
                (
                    "acting, step 4",
                    0,
                    row(1, np.asarray(names["seen"]).ravel().astype(int)),
                    f"{state}, from the runner",
                ),
                ("batch[1, 0]", 0, row(1, frames[1, 0]), f"{state}, from state_in"),
            ],
        ),
    }


def main() -> None:
    """Write the pictures."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS
    for name, text in pictures(names_of(DOCS / "all-of-epibatch.md")).items():
        (folder / f"one-page-{name}.svg").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
