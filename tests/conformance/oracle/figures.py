"""Put the counts of one or several runs of `make conformance` into docs/internals/conformance.md."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[3]
PAGE = REPOSITORY / "docs/internals/conformance.md"
START, END = "<!-- figures of make conformance -->\n", "<!-- end of figures -->\n"


def text_of(figures: dict[str, Any]) -> str:
    """The figures as Markdown: a sentence, and tables of properties and of listed differences.

    Args:
        figures: what a run wrote: `cases` per node id, `differences` per id, node ids of `failed` tests.
    """
    cases: dict[str, int] = figures["cases"]
    tests: defaultdict[str, list[int]] = defaultdict(list)
    for node, count in cases.items():
        tests[node.partition("[")[0].removeprefix("tests/conformance/")].append(count)
    failed = f"{len(figures['failed'])} tests failed" if figures["failed"] else "0 unexplained mismatches"
    lines = [
        f"The last long run, beside RLlib {version('ray')}: {sum(cases.values()):,} random cases of {len(cases)}",
        f"properties, at least {min(cases.values()):,} of each; {failed}.",
        "",
        "| test | properties | cases |",
        "|---|---|---|",
        *(f"| `{test}` | {len(counts)} | {sum(counts):,} |" for test, counts in sorted(tests.items())),
        "",
        "Mismatches that were listed differences, each in its exact situation:",
        "",
        "| difference | times met |",
        "|---|---|",
        *(f"| {name} | {count:,} |" for name, count in sorted(figures["differences"].items())),
        "",
    ]
    return "\n".join(lines)


def together(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of several runs as those of one; of a property that ran in several the last one counts."""
    cases: dict[str, int] = {}
    differences: defaultdict[str, int] = defaultdict(int)
    failed: dict[str, None] = {}
    for run in runs:
        cases.update(run["cases"])
        failed = {node: None for node in [*failed, *run["failed"]] if node not in run["cases"] or node in run["failed"]}
        for name, count in run["differences"].items():
            differences[name] += count
    return {"cases": cases, "differences": differences, "failed": list(failed)}


def put_into(page: str, figures: dict[str, Any]) -> str:
    """The page with the figures between its two marks."""
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    return before + START + text_of(figures) + END + after


if __name__ == "__main__":
    runs = [json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:]]
    PAGE.write_text(put_into(PAGE.read_text(encoding="utf-8"), together(runs)), encoding="utf-8")
