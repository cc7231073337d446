"""Write docs/gallery.md: every piece that comes with epibatch, each with a picture of what it did in a real run.

Usage: python tests/house/write_gallery.py

tests/house/gallery.yaml says how each piece is tried: an entry may have
    arguments: keywords of the constructor
    observations, actions: kinds of `gallery_runs`; agents: likewise, for each of two agents
    lengths: steps of each episode; objectives: true for rewards of two numbers; policy: the recorded logits
    module: settings of the network; advantages: true for a learner pipeline with advantages
    place: the piece after which it stands, or start
    with: further pieces, by pipeline; after_others: likewise, each after another piece
    undone: true to show what the environment gets of the module's actions
    explore: true for a call that explores
    before, after: columns to show; otherwise all that the piece changes
    words: a sentence below the picture; needed without one, if `picture` is false
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from ruamel.yaml import YAML

from epibatch.core.registry import built_in_pieces, counterparts, piece_class, piece_name
from epibatch.piece_listing import describe_piece
from gallery_drawing import PADDING, Column, draw
from gallery_runs import MADE_OF_CODE, Example
from sources import MODULES, REPOSITORY

PAGE = REPOSITORY / "docs" / "gallery.md"
PICTURES = REPOSITORY / "docs" / "gallery"
TABLE = REPOSITORY / "tests" / "house" / "gallery.yaml"
HEAD = """# Gallery of pieces

<!-- made by `make generated` of the code and of tests/house/gallery.yaml: change those -->

Every piece that comes with epibatch, with the columns that it changes, before it and after it. The pictures are drawn
from real runs. `epibatch pieces NAME` shows the keywords of a piece. If you know the name of a class of RLlib or
TorchRL, `epibatch pieces CatFrames` finds the piece that does about the same, and
[Features, one by one](internals/features.md) goes through all features of both libraries.

## How to read the pictures

![{words}](gallery/legend.svg)

- A cell is a number, and each episode has a colour. Cells below each other belong to the same step, and entries of a
  vector stand upright. In columns of True and False a filled cell is True. Bootstrap rows are dashed, padding is
  hatched.
- Next to a column's name are its type, its shape, and where it is. *In the episodes* is what the environment gave. *By
  episode* means that each episode has rows of its own. An *array* or a *tensor* has the rows of all episodes.
- Learner pieces see two episodes. The first is terminated, the second was cut. An observation is mostly the number of
  its step.
- Pieces that only act are called at each step of one episode, and get one row each time. Those of the module-to-env
  pipeline get one row of each environment.
- Of two agents, `right` comes a step later than `left` and ends earlier. Each has a colour, and steps of its own.
- *Reads* are columns that have to be in the batch before the piece. What it takes from the episodes is not listed.
"""


def files() -> dict[Path, str]:
    """Return the page and the pictures.

    Raises:
        ValueError: A run of a piece shows nothing and its entry has no words, or an entry is of no piece.
    """
    entries: dict[str, Any] = YAML(typ="safe").load(TABLE.read_text(encoding="utf-8"))
    names = {piece_name(piece_class(name)) for name in built_in_pieces()}  # without second names
    if unknown := set(entries) - names:
        raise ValueError(f"{TABLE.name}: no pieces {sorted(unknown)}")
    pieces = sorted((describe_piece(name) for name in names), key=lambda piece: (_package(piece), piece["piece"]))
    words, legend = _legend()
    parts = [HEAD.format(words=words)]
    written = {PICTURES / "legend.svg": legend}
    for package, own in groupby(pieces, _package):
        parts.append(f"## {package}\n")
        for piece in own:
            entry = entries.get(piece["piece"], {})
            picture = ""
            if entry.get("picture", True):
                title, written[PICTURES / f"{piece['piece']}.svg"] = _picture(piece, entry)
                picture = f"![{title}](gallery/{piece['piece']}.svg)\n\n"
            elif "words" not in entry:
                raise ValueError(f"{TABLE.name}: {piece['piece']} has neither a picture nor words")
            parts.append(f"### {piece['piece']}\n\n{piece['description']}\n\n{picture}{_lines(piece, entry)}")
    return {PAGE: "\n".join(parts), **written}


def _package(piece: dict[str, Any]) -> str:
    return str(piece["path"].split(".")[2])


def _picture(piece: dict[str, Any], entry: dict[str, Any]) -> tuple[str, str]:
    """Return the words for a picture, and the picture."""
    example = Example(piece["piece"], entry, piece["pipelines"])
    parts = [(words, columns) for words, columns in zip(("before", "after"), example.run()) if columns]
    if parts[-1][0] != "after":
        raise ValueError(f"{TABLE.name}: {piece['piece']} changes no column: show others, or write words")
    said = [f"{words.capitalize()}: {'; '.join(f'{c.name} {c.facts}' for c in columns)}." for words, columns in parts]
    return " ".join(said), draw(" ".join(said), parts, example.ends, example.names, example.unit)


def _lines(piece: dict[str, Any], entry: dict[str, Any]) -> str:
    """Return the lines below a picture: words, example, class, pipelines, columns, counterparts."""
    module, name = piece["path"].split(":")
    path = MODULES[module].relative_to(REPOSITORY).as_posix()
    facts = f"[`{name}`](../{path}) in {_names(piece['pipelines'])}."
    argued = [key for key in ("reads", "writes") if piece[key] is None]
    facts += f" {' and '.join(argued).capitalize()} what its arguments say." if argued else ""
    facts += "".join(f" {key.capitalize()} {_names(piece[key])}." for key in ("reads", "writes") if piece[key])
    lines = [entry["words"]] if "words" in entry else []
    lines += [f"Here: `{_spelled(piece['piece'], name, entry)}`"] if entry.get("picture", True) else []
    lines.append(facts)
    if others := counterparts(piece_class(piece["piece"])):
        lines.append(" ".join(f"{library}: {_names(classes)}." for library, classes in others.items()))
    return "".join(f"- {line}\n" for line in lines)


def _spelled(name: str, cls: str, entry: dict[str, Any]) -> str:
    """Return the piece as a config names it; with code among its arguments as Python does."""
    arguments = entry.get("arguments", {})
    if code := MADE_OF_CODE.get(name):
        keywords = {key: repr(value) for key, value in arguments.items()}
        keywords |= {key: getattr(value, "__name__", repr(value)) for key, value in code.items()}
        return f"{cls}({', '.join(f'{key}={value}' for key, value in keywords.items())})"
    yaml, text = YAML(), io.StringIO()
    yaml.default_flow_style, yaml.width = True, 1000
    yaml.dump({"piece": name, **arguments}, text)
    return text.getvalue().strip()


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _legend() -> tuple[str, str]:
    """Return the words for the legend, and its picture."""
    both, one, step = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)], [(0, 0), (0, 1), (0, 2)], [0, 1, 2]
    rows = {
        "two episodes, by step": ([0, 1, 2, 0, 1], both),
        "vectors of two entries": ([[0, 10], [1, 11], [2, 12]], one),
        "True, False, True": ([True, False, True], one),
        "three steps and a bootstrap row": ([*step, 3], [*one, (0, 3)]),
        "three steps and padding": ([*step, 0], [*one, (PADDING, 0)]),
    }
    columns = [
        Column(words, "", "", None, [np.array(value) for value in values], np.array(origin))
        for words, (values, origin) in rows.items()
    ]
    title = f"Five lines of cells: {'; '.join(rows)}."
    return title, draw(title, [("", columns)], [3, 3], unit="")


if __name__ == "__main__":
    found = files()
    PICTURES.mkdir(exist_ok=True)
    for stale in set(PICTURES.iterdir()).difference(found):
        stale.unlink()
    for path, text in found.items():
        path.write_text(text, encoding="utf-8")
