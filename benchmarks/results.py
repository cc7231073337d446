"""Figures as JSON, and what is made of them: the table, and docs/benchmarks.md."""

from __future__ import annotations

import json
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.growth import draw
from benchmarks.row import FLOOR, OURS, RLLIB, Measured, Row, Target
from benchmarks.timing import spread

PACKAGES = ("epibatch", "numpy", "torch", "gymnasium", "ray", "stable-baselines3", "rsl-rl-lib")
REPOSITORY = Path(__file__).resolve().parents[1]
PAGE, PICTURE = Path("docs/benchmarks.md"), Path("docs/growth.png")
RESULTS = Path("benchmarks/results.json")
FIGURES = "## Figures"
HEADINGS = ("row", "workload", OURS, RLLIB, FLOOR, "target", "measured", "met")

Report = dict[str, Any]
Result = tuple[Row, Measured]


class ResultsError(ValueError):
    """Files of results that do not go together."""


# ---------------------------------------------------------------------------------------------- files


def report(results: Iterable[Result], command: str, **rest: Any) -> Report:
    """Return everything that one run measured, as plain data.

    Args:
        results: Rows and their figures.
        command: What the run was started with.
        **rest: What else belongs to it.
    """
    git = ["git", "describe", "--always", "--abbrev=10", "--exclude=*", "--dirty=+"]
    return {
        "command": command,
        "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": {"processor": processor(), "cores used": 1, "threads": 1},
        "versions": versions(),
        "commit": subprocess.run(git, cwd=REPOSITORY, capture_output=True, text=True, check=False).stdout.strip(),
        "rows": {
            row.name: {
                **vars(measured),
                "values": {name: [float(f"{value:.5g}") for value in own] for name, own in measured.values.items()},
            }
            for row, measured in results
        },
        **rest,
    }


def save(found: Mapping[str, Any], path: Path) -> None:
    """Write a report."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def load(paths: Sequence[Path]) -> Report:
    """Return one report of several files: rows of later ones replace those of earlier ones.

    The result is what is kept and published, so it does not name the measured commit, as the files do: a rebase may
    have left that commit behind when somebody looks for it.

    Raises:
        ResultsError: the files are of different machines or versions of other packages.
    """
    whole: Report = {}
    for path in paths:
        found = json.loads(path.read_text(encoding="utf-8"))
        for key in ("machine", "versions"):
            if whole and whole[key] != found[key]:
                raise ResultsError(f"{path} is of another {key} than {paths[0]}: {found[key]}, not {whole[key]}")
        commands = [part for own in (whole, found) for part in own.get("command", "").split("; ") if part]
        rows = {**whole.get("rows", {}), **found["rows"]}
        whole.update(found, command="; ".join(dict.fromkeys(commands)), rows=rows)
        whole.pop("commit", None)
    return whole


def processor() -> str:
    """Return the processor's name, as far as the system tells."""
    listing = Path("/proc/cpuinfo")
    text = listing.read_text(encoding="utf-8") if listing.is_file() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Return version by package, of those that are installed."""
    found = {"Python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


# ----------------------------------------------------------------------------------------------- page


def publish(found: Report, rows: Sequence[Row], folder: Path = REPOSITORY) -> None:
    """Keep results in benchmarks/results.json, and write the page and, if it was measured, the picture of growth.

    Args:
        found: Results of one machine.
        rows: All rows there are.
        folder: The repository.
    """
    save(found, folder / RESULTS)
    if "growth" in found:
        draw(found["growth"], folder / PICTURE)
    (folder / PAGE).parent.mkdir(parents=True, exist_ok=True)
    (folder / PAGE).write_text(page(found, rows), encoding="utf-8")


def page(found: Report, rows: Sequence[Row]) -> str:
    """Return the page: its text, then machine and day, table, notes, and the targets that are missed.

    The text is what the page has above the heading `## Figures`. No commit is named, which may be gone from the
    history when somebody looks for it.

    Args:
        found: Results, as they were saved.
        rows: All rows there are. Targets and reasons are theirs, figures those of the results.
    """
    saved = {name: Measured(**own) for name, own in found["rows"].items() if own["values"]}
    results = [(row, saved[row.name]) for row in rows if row.name in saved]
    waiting = [row.name for row in rows if row.name not in saved]
    packages = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    circumstances = (
        f"{found['machine']['processor']}, one core, one thread; {packages}; {found['when'][:10]}; "
        f"`{found['command'].replace('; ', '`, `')}`."
    )
    text, _, _ = (REPOSITORY / PAGE).read_text(encoding="utf-8").partition(FIGURES)
    parts = [text + FIGURES, circumstances, table(results), notes(results), _missed(results)]
    parts += [f"Not measured yet: {', '.join(waiting)}."] if waiting else []
    return "\n\n".join(part for part in parts if part) + "\n"


def notes(results: Sequence[Result]) -> str:
    """Return the notes on rows, a line each."""
    return "\n".join(f"- {row.name}: {measured.note}" for row, measured in results if measured.note)


def _missed(results: Sequence[Result]) -> str:
    """Return the targets that are not met, each with what was measured and why."""
    lines = []
    for row, measured in results:
        for target in row.targets:
            compared, met = judged(target, measured)
            if met == "NO":
                lines.append(
                    f"- {row.name}: {compared}, target {target.text}: {row.missed or 'no reason is known yet'}."
                )
    return "\n".join(["Targets that are not met:", "", *lines]) if lines else f"{OURS} meets every target."


def table(results: Sequence[Result]) -> str:
    """Return the table in Markdown: a line for each target, at least one. The first line has the times of the sides."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    for row, measured in results:
        first = [row.name, row.what, *(_side(measured, name) for name in (OURS, RLLIB, FLOOR))]
        for i, target in enumerate(row.targets or [None]):
            last = [target.text, *judged(target, measured)] if target else [""] * 3
            lines.append("| " + " | ".join((first if i == 0 else [""] * len(first)) + last) + " |")
    return "\n".join(lines)


def _side(measured: Measured, name: str) -> str:
    """Return a side's time; beside the floor's the times of other floors."""
    values = measured.side(name)
    if not values:
        return "-"
    others = [key for key in measured.values if name == FLOOR and key.endswith(f" {FLOOR}")]
    times = [amount(spread(measured.values[key]).median, measured.unit) for key in others]
    rest = ", ".join(f"{key.removesuffix(f' {FLOOR}')} {time}" for key, time in zip(others, times))
    return amount(spread(values).median, measured.unit) + (f" ({rest})" if rest else "")


def judged(target: Target, measured: Measured) -> tuple[str, str]:
    """Return what was measured of a target, with its quartiles if there were several rounds, and `yes` or `NO`."""
    found, unit = target.compared(measured), target.unit or measured.unit
    if found is None:
        return "-", "-"
    low, median, high = (amount(value, unit) for value in found)
    if unit != "s":
        low, high = digits(found.low), digits(found.high)
    text = median if found.low == found.high else f"{median} ({low} to {high})"
    return text, "yes" if target.met(found.median) else "NO"


def amount(value: float, unit: str) -> str:
    """Return a time or a size with three digits and the unit that fits."""
    if unit != "s":
        return f"{digits(value)} {unit}"
    for scale, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= scale:
            return f"{digits(value / scale)} {name}"
    return f"{digits(value / 1e-9)} ns"


def digits(value: float) -> str:
    """Return three significant digits, without an exponent."""
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"
