"""The table of results, and docs/benchmarks.md, which is made of a file of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.growth import draw
from benchmarks.names import FLOOR, OURS, RLLIB
from benchmarks.results import REPOSITORY, again, save
from benchmarks.row import Row

HEADINGS = ("row", "workload", OURS, RLLIB, FLOOR, "target", "measured", "met")
PAGE = REPOSITORY / "docs" / "benchmarks.md"
PICTURE = REPOSITORY / "docs" / "growth.png"
RESULTS = REPOSITORY / "benchmarks" / "results.json"

_TEXT = """# Speed

<!-- Made by `make bench` of benchmarks/results.json and the targets in benchmarks/rows/. Change those. -->

This page compares epibatch with RLlib 2.60 and with a *floor*. The floor is plain NumPy and torch, written for speed,
that makes the same tensors from arrays. For sampling and training it is the loop that one writes by hand. Before a row
is timed, the values of all sides are compared, except where they act in environments of their own. `VectorEpisodes` are
what the runner records: the steps of N environments in one block.

`make bench` measures everything again and writes this page. `make bench ARGS="--only L1,E1"` measures some rows.
[benchmarks/README.md](../benchmarks/README.md) says what goes into each row, what comes out, and how it is timed.

![Time per call against the number of environments, and against timesteps in a train batch](growth.png)

Left: time per call with lists of episodes (dark) and with `VectorEpisodes` (light). Right: time per train batch.

## Figures
"""


def publish(found: Mapping[str, Any], rows: Sequence[Row], folder: Path = REPOSITORY) -> None:
    """Keep results in benchmarks/results.json, and write the page and, if it was measured, the picture of growth.

    Args:
        found: Results of one machine.
        rows: All rows there are.
        folder: The repository.
    """
    save(found, folder / RESULTS.relative_to(REPOSITORY))
    if "growth" in found:
        draw(found["growth"], folder / PICTURE.relative_to(REPOSITORY))
    path = folder / PAGE.relative_to(REPOSITORY)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(found, rows), encoding="utf-8")


def page(found: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """The page.

    Args:
        found: Results, as they were saved.
        rows: All rows there are. Targets and reasons are theirs, figures those of the results.
    """
    return f"{_TEXT}\n{section(found, rows)}\n"


def section(found: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """The figures: machine and day, table, notes, and the targets that are missed.

    Args:
        found: Results, as they were saved.
        rows: All rows there are. Targets and reasons are theirs, figures those of the results.
    """
    saved = {result["name"]: result for result in found["rows"] if result["sides"]}
    results = [again(row, saved[row.name]) for row in rows if row.name in saved]
    waiting = [row.name for row in rows if row.name not in saved]
    parts = [_circumstances(found), markdown(results), notes(results), _missed(results)]
    if waiting:
        parts.append(f"Not measured yet: {', '.join(waiting)}.")
    return "\n\n".join(part for part in parts if part)


def _circumstances(found: Mapping[str, Any]) -> str:
    """Machine, versions, day and commands; no commit, which may be gone from the history when somebody looks for it."""
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    quick = " These are the small sizes of `--quick`, and no figures to quote." if found.get("quick") else ""
    return (
        f"{found['machine']['processor']}, one core, one thread; {versions}; {found['when'][:10]}; "
        f"`{found['command'].replace('; ', '`, `')}`.{quick}"
    )


def notes(results: Sequence[Mapping[str, Any]]) -> str:
    """What else is to be said about rows, a line for each; empty if there is nothing."""
    return "\n".join(f"- {result['name']}: {result['note']}" for result in results if result["note"])


def _missed(results: Sequence[Mapping[str, Any]]) -> str:
    """The targets that are not met, each with what was measured and why."""
    lines = []
    for result in results:
        for target in result["targets"]:
            if target["met"] is False:
                why = result["missed"] or "no reason is known yet"
                lines.append(f"- {result['name']}: {compared(target)}, target {target['text']}: {why}.")
    if not lines:
        return f"{OURS} meets every target."
    return "\n".join(["Targets that are not met:", "", *lines])


# -------------------------------------------------------------------------------------------- the table


def amount(value: float, unit: str) -> str:
    """A time or a size with three digits and the unit that fits."""
    if unit != "s":
        return f"{digits(value)} {unit}"
    for scale, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= scale:
            return f"{digits(value / scale)} {name}"
    return f"{digits(value / 1e-9)} ns"


def digits(value: float) -> str:
    """Three significant digits, without an exponent."""
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def markdown(results: Sequence[dict[str, Any]]) -> str:
    """The table in Markdown: a line for each target, at least one; what the sides took is in the first."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    for result in results:
        sides, unit = result["sides"], result["unit"]
        first = [result["name"], result["what"], *(_side(sides, name, unit) for name in (OURS, RLLIB, FLOOR))]
        targets = [_target(target) for target in result["targets"]] or [["", "", ""]]
        for i, target in enumerate(targets):
            lines.append("| " + " | ".join((first if i == 0 else [""] * len(first)) + target) + " |")
    return "\n".join(lines)


def _side(sides: dict[str, Any], name: str, unit: str) -> str:
    """A side's time, that of its fastest way; beside the floor's the times of other floors."""
    found = _fastest(sides, name)
    if found is None:
        return "-"
    others = [key for key in sides if name == FLOOR and key.endswith(f" {FLOOR}")]
    rest = [f"{key.removesuffix(f' {FLOOR}')} {amount(sides[key]['median'], unit)}" for key in others]
    return amount(found, unit) + (f" ({', '.join(rest)})" if rest else "")


def _fastest(sides: dict[str, Any], name: str) -> float | None:
    return min((own["median"] for key, own in sides.items() if key.partition(":")[0] == name), default=None)


def _target(target: dict[str, Any]) -> list[str]:
    if target["measured"] is None:
        return [target["text"], "-", "-"]
    return [target["text"], compared(target), "yes" if target["met"] else "NO"]


def compared(target: dict[str, Any]) -> str:
    """What was measured of a target, with its quartiles if there were several rounds."""
    found, unit = target["measured"], target["unit"]
    if found["low"] == found["high"]:
        return amount(found["median"], unit)
    low, high = (amount(found[end], unit) if unit == "s" else digits(found[end]) for end in ("low", "high"))
    return f"{amount(found['median'], unit)} ({low} to {high})"
