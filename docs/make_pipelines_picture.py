"""Draw docs/pipelines.svg: the three pipelines between environment, module and loss.

Usage: python docs/make_pipelines_picture.py [OUTPUT]; the suffix of OUTPUT decides the format.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot
from matplotlib.patches import FancyBboxPatch

WIDTH, HEIGHT = 1120, 438
LEFT, RIGHT, END_WIDTH = 190, 930, 112
# Readable on white and on black alike: the background is transparent.
PIECE, OWN, END, LINE, LABEL = "#2b6ca3", "#c4620c", "#59636e", "#7d8894", "#76808b"

ENV_TO_MODULE = ["your\npieces", "add\nobservations", "add\ntime axis", "add\nstates", "batch", "to\ntensors"]
MODULE_TO_ENV = [
    "sample\nactions",
    "to\narrays",
    "a row per\nepisode",
    "drop\ntime axis",
    "your\npieces",
    "unsquash,\nclip",
    "lay out\nfor envs",
]
LEARNER = [
    "your\npieces",
    "bootstrap\nrows",
    "add\nobs",
    "add\ncolumns",
    "pad to\n[B, T]",
    "add\nstates",
    "batch",
    "to\ntensors",
    "add\nGAE",
]


def box(axes, x, y, width, height, **style):
    """Draw a rounded rectangle from its top left corner."""
    style = {"boxstyle": "round,pad=0,rounding_size=8", "linewidth": 0, **style}
    axes.add_patch(FancyBboxPatch((x, y), width, height, **style))


def text(axes, x, y, words, size, color="white", **style):
    """Write words around a point."""
    style = {"ha": "center", "va": "center", "linespacing": 1.25, **style}
    axes.text(x, y, words, color=color, fontsize=size, **style)


def arrow(axes, start, stop, label, at, **style):
    """Draw an arrow between two points, and its label."""
    head = {"arrowstyle": "-|>,head_length=0.6,head_width=0.32", "color": LINE, "linewidth": 2, "shrinkA": 0}
    axes.annotate("", xy=stop, xytext=start, arrowprops={**head, "shrinkB": 1, **style})
    text(axes, *at, label, 11.5, LABEL)


def end(axes, x, y, height, name, words):
    """Draw what stands at an end of a pipeline."""
    box(axes, x, y, END_WIDTH, height, facecolor=END)
    middle = y + height / 2
    text(axes, x + END_WIDTH / 2, middle - 18, name, 14.5, weight="bold")
    text(axes, x + END_WIDTH / 2, middle + 14, words, 10.5)


def pipeline(axes, y, title, pieces, *, leftward=False):
    """Draw a pipeline as a frame with its pieces in the order they run."""
    height, gap, margin = 60, 7, 11
    box(axes, LEFT, y, RIGHT - LEFT, height + 42, facecolor="none", edgecolor=LINE, linewidth=1.5)
    text(axes, LEFT + 14, y + 17, title, 12.5, LABEL, ha="left", weight="bold")
    width = (RIGHT - LEFT - 2 * margin - gap * (len(pieces) - 1)) / len(pieces)
    for i, piece in enumerate(reversed(pieces) if leftward else pieces):
        x = LEFT + margin + i * (width + gap)
        box(axes, x, y + 32, width, height, facecolor=OWN if piece.startswith("your") else PIECE)
        text(axes, x + width / 2, y + 31 + height / 2, piece, 10.5 if len(pieces) > 8 else 11.5)


def draw():
    """Draw the picture.

    Returns:
        The figure.
    """
    figure = pyplot.figure(figsize=(WIDTH / 100, HEIGHT / 100))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(HEIGHT, 0))
    axes.axis("off")
    near, far = 6, WIDTH - 6 - END_WIDTH
    env_to_module, module_to_env, learner = 8, 128, 328
    pipeline(axes, env_to_module, "env-to-module pipeline", ENV_TO_MODULE)
    pipeline(axes, module_to_env, "module-to-env pipeline", MODULE_TO_ENV, leftward=True)
    pipeline(axes, learner, "learner pipeline", LEARNER)
    end(axes, near, env_to_module, 222, "env", "N copies,\nin step")
    end(axes, far, env_to_module, 222, "module", "any torch\nnetwork")
    end(axes, near, learner, 102, "episodes", "chunks with\nlookback")
    end(axes, far, learner, 102, "loss", "PPO's,\nor your own")
    left, right = (near + END_WIDTH + LEFT) / 2, (far + RIGHT) / 2
    for y, first, second in ((env_to_module + 62, "obs", "batch"), (learner + 62, "", "batch")):
        arrow(axes, (near + END_WIDTH, y), (LEFT, y), first, (left, y - 16))
        arrow(axes, (RIGHT, y), (far, y), second, (right, y - 16))
    y = module_to_env + 62
    arrow(axes, (far, y), (RIGHT, y), "outputs", (right, y - 16))
    arrow(axes, (LEFT, y), (near + END_WIDTH, y), "actions", (left, y - 16))
    x, top = near + END_WIDTH / 2, env_to_module + 222
    arrow(axes, (x, top), (x, learner), "each step is recorded once", (x + 124, (top + learner) / 2))
    x = far + END_WIDTH / 2
    dashed = {"linestyle": (0, (4, 2.5))}
    arrow(axes, (x, learner), (x, top), "new weights", (x - 66, (top + learner) / 2), **dashed)
    return figure


def main() -> None:
    """Write the picture."""
    mpl.rcParams.update({"svg.hashsalt": "epibatch", "font.family": "DejaVu Sans"})
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("pipelines.svg")
    metadata = {"Date": None} if target.suffix == ".svg" else None
    draw().savefig(target, transparent=True, metadata=metadata, dpi=120)


if __name__ == "__main__":
    main()
