"""docs/benchmarks.md: made of a file of results, never typed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.growth import draw
from benchmarks.machine import REPOSITORY
from benchmarks.names import OURS
from benchmarks.results import again, save
from benchmarks.row import Row
from benchmarks.table import compared, markdown

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
