"""Draw docs/replay.svg: the lanes of a replay buffer, and what a draw refers to.

Usage: python docs/make_replay_picture.py [OUTPUT]; the suffix of OUTPUT decides the format.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot
from matplotlib.patches import Rectangle

WIDTH, HEIGHT = 1120, 400
LEFT, TOP, SIDE, GAP = 150, 62, 44, 6
# Readable on white and on black alike: the background is transparent.
FIRST, SECOND, THIRD, FREE, LINE, LABEL, DRAWN = (
    "#2b6ca3",
    "#5b8f3a",
    "#8a5aa8",
    "none",
    "#7d8894",
    "#76808b",
    "#c4620c",
)

# One row of the lane for each: the episode's colour, and the step; None: its last observation.
LANES = [
    [(FIRST, t) for t in (6, 7)] + [(FIRST, None)] + [(SECOND, t) for t in range(7)] + [(SECOND, None)]
    + [(THIRD, t) for t in range(8)] + [(THIRD, None)],
    [(SECOND, t) for t in range(3, 11)] + [(SECOND, None)] + [(THIRD, t) for t in range(6)] + [(THIRD, None)]
    + [(FIRST, t) for t in range(3)] + [(FIRST, None)],
]  # fmt: skip


def text(axes, x, y, words, size=12, color=LABEL, **style):
    """Write words around a point."""
    axes.text(x, y, words, color=color, fontsize=size, **{"ha": "center", "va": "center", "linespacing": 1.3, **style})


def row(axes, x, y, color, step):
    """Draw a row of a lane: a step, or the last observation of an episode."""
    last = step is None
    axes.add_patch(
        Rectangle((x, y), SIDE - 4, SIDE - 4, facecolor="none" if last else color, edgecolor=color, linewidth=2)
    )
    text(axes, x + (SIDE - 4) / 2, y + (SIDE - 4) / 2, "obs" if last else str(step), 11, color if last else "white")


def lane(axes, number, rows):
    """Draw a lane from its oldest row to its newest."""
    y = TOP + number * 140
    text(axes, LEFT - 14, y + SIDE / 2 - 2, f"lane {number}\nenvironment {number}", 12, ha="right")
    for i, (color, step) in enumerate(rows):
        row(axes, LEFT + i * SIDE, y, color, step)
    return y


def bracket(axes, first, last, y, words, color=DRAWN):
    """Draw a bracket below some rows of a lane, and what it is."""
    left, right = LEFT + first * SIDE, LEFT + (last + 1) * SIDE - 4
    axes.plot([left, left, right, right], [y, y + 8, y + 8, y], color=color, linewidth=2)
    text(axes, (left + right) / 2, y + 24, words, 11.5, color)


def draw():
    """Draw the picture.

    Returns:
        The figure.
    """
    figure = pyplot.figure(figsize=(WIDTH / 100, HEIGHT / 100))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(HEIGHT, 0))
    axes.axis("off")
    tops = [lane(axes, i, rows) for i, rows in enumerate(LANES)]
    text(axes, LEFT, 30, "overwritten next", 12, ha="left")
    text(axes, LEFT + 20 * SIDE, 30, "newest", 12, ha="right")
    under = SIDE + 2
    bracket(axes, 3, 5, tops[0] + under, "lookback", LINE)
    bracket(axes, 6, 6, tops[0] + under, "drawn")
    bracket(axes, 7, 10, tops[0] + under, "ahead", LINE)
    bracket(axes, 9, 12, tops[1] + under, "a drawn sequence of 4")
    bracket(axes, 13, 15, tops[1] + under, "ahead", LINE)
    lines = (
        "A number is a step: its observation, and the action, the reward and the outputs that followed.",
        '"obs" is the last observation of an episode. So each observation lies there once.',
        "A draw copies nothing. It says where its rows lie; pieces read what they need, lookback and ahead too.",
    )
    text(axes, LEFT, tops[1] + 125, "\n".join(lines), 12, ha="left")
    return figure


def main() -> None:
    """Write the picture."""
    mpl.rcParams.update({"svg.hashsalt": "epibatch", "font.family": "DejaVu Sans"})
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("replay.svg")
    metadata = {"Date": None} if target.suffix == ".svg" else None
    draw().savefig(target, transparent=True, metadata=metadata, dpi=120)


if __name__ == "__main__":
    main()
