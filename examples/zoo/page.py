"""Pictures and page of the zoo, from its curves."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from ruamel.yaml import YAML

HERE = Path(__file__).resolve().parent
DOCS = HERE.parents[1] / "docs"
CURVES = HERE / "curves"
RUNS = CURVES / "runs.csv"
COLOURS = ("#1f6feb", "#e8710a", "#1a9850", "#8e44ad")
SOURCE = "https://github.com/DLR-RM/rl-baselines3-zoo/blob/master/benchmark.md"

Curve = dict[str, list[tuple[float, float]]]
"""Seed -> steps and mean return."""


def rows_of(path: Path) -> list[list[str]]:
    """Return the rows of a CSV file; none if there is no such file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.reader(file))


def settings_of(name: str) -> dict[str, Any]:
    """Return the YAML file beside this one."""
    return dict(YAML(typ="safe").load(HERE / f"{name}.yaml"))


def curves_of(task: str, library: str) -> Curve:
    """Return the curves of a task."""
    curves: Curve = defaultdict(list)
    for seed, steps, value in rows_of(CURVES / f"{task}.{library}.csv"):
        if value != "nan":
            curves[seed].append((float(steps), float(value)))
    return curves


def last_values(task: str, library: str) -> list[float]:
    """Return where the curves of a task end, by seed."""
    return [curve[-1][1] for _, curve in sorted(curves_of(task, library).items())]


def speed_of(task: str, library: str) -> float:
    """Return the steps per second of the processor, over all seeds."""
    runs = [row for row in rows_of(RUNS) if row[:2] == [task, library]]
    return sum(float(row[3]) for row in runs) / sum(float(row[4]) for row in runs)


def lines_of(task: str, entry: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the lines of a task's picture: their names, tasks and libraries."""
    lines = [(f"epibatch, {entry['name']}" if "name" in entry else "epibatch", task, "epibatch")]
    lines += [(f"epibatch, {name}", other, "epibatch") for other, name in entry.get("beside", {}).items()]
    lines += [(f"SB3, {name}", other, "sb3") for other, name in entry.get("beside", {}).items()]
    if sb3 := entry.get("sb3"):
        lines.append((f"SB3, {sb3}" if sb3 != "RecurrentPPO" else "sb3-contrib, RecurrentPPO", task, "sb3"))
    return [line for line in lines if curves_of(*line[1:])]


def draw(task: str, entry: dict[str, Any]) -> None:
    """Draw the mean of a task's seeds, in a band from the lowest to the highest."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": task, "svg.fonttype": "none", "font.size": 11})
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7.2, 3.8), layout="constrained")
    for (name, *where), colour in zip(lines_of(task, entry), COLOURS, strict=False):
        curves = [np.array(curve) for curve in curves_of(*where).values()]
        if min(map(len, curves)) == 1:
            axes.axhline(float(np.mean([curve[-1, 1] for curve in curves])), color=colour, linestyle="--", label=name)
            continue
        start, end = max(curve[0, 0] for curve in curves), min(curve[-1, 0] for curve in curves)
        steps = np.linspace(start, end, 100)
        values = np.array([np.interp(steps, curve[:, 0], curve[:, 1]) for curve in curves])
        axes.fill_between(steps, values.min(0), values.max(0), color=colour, alpha=0.18, linewidth=0)
        axes.plot(steps, values.mean(0), color=colour, label=name)
    axes.set(xlabel="environment steps", ylabel="mean return", title=entry["title"])
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9.5)
    (DOCS / "zoo").mkdir(exist_ok=True)
    figure.savefig(DOCS / "zoo" / f"{task}.svg", metadata={"Date": None})
    plt.close(figure)


def written(values: list[float]) -> str:
    """Return the mean of values and the lowest and highest, as text."""
    places = 0 if max(map(abs, values)) >= 100 else 2
    mean, low, high = (f"{number:,.{places}f}" for number in (float(np.mean(values)), min(values), max(values)))
    return f"{mean} ({low} to {high})"


def row(title: str, name: str, task: str, library: str) -> str:
    """Return a line's row of the table."""
    values, curves = last_values(task, library), curves_of(task, library)
    steps = max(curve[-1][0] for curve in curves.values())
    linked = f"[{title}](#{title.lower().replace(' ', '-').replace(chr(39), '')})"
    cells = (linked, name, f"{steps:,.0f}", written(values), len(values))
    return "| " + " | ".join(map(str, cells)) + f" | {speed_of(task, library):,.0f} |"


def section(task: str, entry: dict[str, Any]) -> str:
    """Return a task's part of the page."""
    words = "; ".join(f"{name} {written(last_values(*where))}" for name, *where in lines_of(task, entry))
    config = settings_of(task)
    imports = " --allow-imports" if "examples" in config["environment"]["env"] else ""
    parts = [f"## {entry['title']}", f"![Mean return over environment steps; at the end: {words}.](zoo/{task}.svg)"]
    if "data" in entry:
        recorded = f"epibatch record RUN --to build/zoo/data --episodes {entry['data']['episodes']}"
        parts.append(f"    {recorded}   # RUN: of {entry['data']['run']}.yaml")
    parts.append(f"    epibatch train examples/zoo/{task}.yaml{imports}")
    parts.append(entry["about"])
    if "published" in entry:
        parts.append(f"Published: {entry['published']} ([RL Baselines3 Zoo]({SOURCE})).")
    return "\n\n".join(parts)


def page() -> str:
    """Return docs/zoo.md."""
    tasks = settings_of("tasks")
    tasks = {task: entry for task, entry in tasks.items() if curves_of(task, "epibatch")}
    rows = [row(entry["title"], *line) for task, entry in tasks.items() for line in lines_of(task, entry)
            if line[1] == task or line[1] not in tasks]  # fmt: skip
    return "\n".join([
        (HERE / "introduction.md").read_text(),
        "| task | library | steps | mean return at the end: mean of the seeds (lowest to highest) | seeds | steps/s |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
        "\n\n".join(section(*item) for item in tasks.items()),
        "",
    ])  # fmt: skip


def write() -> None:
    """Draw all pictures, and write the page."""
    for task, entry in settings_of("tasks").items():
        if curves_of(task, "epibatch"):
            draw(task, entry)
    (DOCS / "zoo.md").write_text(page())
