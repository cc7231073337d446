"""The section on speed in README.md: made of a file of results, never typed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.machine import REPOSITORY
from benchmarks.names import OURS
from benchmarks.results import again
from benchmarks.row import Row
from benchmarks.table import compared, markdown

README = REPOSITORY / "README.md"
RESULTS = REPOSITORY / "benchmarks" / "results.json"
BEGIN = "<!-- speed: made by `make bench-readme` of benchmarks/results.json -->"
END = "<!-- end of speed -->"


class MarkersError(ValueError):
    """The page does not have both markers, once each."""


def section(found: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """What stands between the markers.

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


def put(page: str, text: str) -> str:
    """A page with this between its markers.

    Raises:
        MarkersError: they are not there.
    """
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise MarkersError(f"expected {BEGIN} and then {END}, once each")
    return page[: page.index(BEGIN) + len(BEGIN)] + f"\n\n{text}\n\n" + page[page.index(END) :]


def taken(page: str) -> str:
    """What stands between a page's markers."""
    return page.partition(BEGIN)[2].partition(END)[0].strip()
