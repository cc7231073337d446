"""Results as plain data: what stands in the JSON file, and what tables and pictures are made of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.machine import commit, processor, versions
from benchmarks.row import FLOOR, OURS, RLLIB, Measured, Row
from benchmarks.timing import ratios, spread

Result = dict[str, Any]


class ResultsError(ValueError):
    """Files of results that do not go together."""


def result_of(row: Row, measured: Measured) -> Result:
    """A row's figures.

    Args:
        row: What was measured.
        measured: What came out.
    """
    return {
        "name": row.name,
        "what": row.what,
        "unit": measured.unit,
        "steps": measured.steps,
        "note": measured.note,
        "sides": {name: {**asdict(spread(own)), "rounds": list(own)} for name, own in measured.values.items()},
        "ratios": _ratios(measured),
        "targets": [_target(target, measured) for target in row.targets],
        "missed": row.missed,
    }


def _ratios(measured: Measured) -> dict[str, Any]:
    """How epibatch compares, the median over the rounds and its quartiles."""
    own, found = measured.side(OURS), {}
    for other, name in ((FLOOR, f"{OURS} / {FLOOR}"), (RLLIB, f"{RLLIB} / {OURS}")):
        against = measured.side(other)
        if own is not None and against is not None:
            pairs = ratios(own, against) if other == FLOOR else ratios(against, own)
            found[name] = asdict(spread(pairs))
    return found


def _target(target: Any, measured: Measured) -> dict[str, Any]:
    value = target.value(measured)
    return {"text": target.text, "measured": value, "met": None if value is None else target.met(value)}


def report(results: Sequence[Result], command: str, **rest: Any) -> dict[str, Any]:
    """Everything that one run found.

    Args:
        results: Of the rows.
        command: What it was started with.
        **rest: What else belongs to it.
    """
    return {
        "command": command,
        "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": {"processor": processor(), "cores used": 1, "threads": 1},
        "versions": versions(),
        "commit": commit(),
        "rows": list(results),
        **rest,
    }


def save(found: Mapping[str, Any], path: Path) -> None:
    """Write a report."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def load(paths: Sequence[Path]) -> dict[str, Any]:
    """One report of several files: rows of later ones replace those of earlier ones.

    Raises:
        ResultsError: the files are of different machines or versions of other packages.
    """
    whole: dict[str, Any] = {}
    rows: dict[str, Result] = {}
    for path in paths:
        found = json.loads(path.read_text(encoding="utf-8"))
        for key in ("machine", "versions"):
            if whole and whole[key] != found[key]:
                raise ResultsError(f"{path} is of another {key} than {paths[0]}: {found[key]}, not {whole[key]}")
        rows.update({row["name"]: row for row in found["rows"]})
        whole.update(found)
    return {**whole, "rows": list(rows.values())}
