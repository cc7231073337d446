"""Results as plain data: what stands in the JSON file, and what tables and pictures are made of."""

from __future__ import annotations

import json
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.row import Measured, Row, Target
from benchmarks.timing import Spread, spread

PACKAGES = ("epibatch", "numpy", "torch", "gymnasium", "ray", "stable-baselines3")
REPOSITORY = Path(__file__).resolve().parents[1]

Result = dict[str, Any]


class ResultsError(ValueError):
    """Files of results that do not go together."""


def result_of(row: Row, measured: Measured) -> Result:
    """A row's figures.

    Args:
        row: What was measured.
        measured: What came out.
    """
    sides = measured.values.items()
    return {
        "name": row.name,
        "what": row.what,
        "unit": measured.unit,
        "steps": measured.steps,
        "note": measured.note,
        "sides": {name: {**_rounded(spread(own)), "rounds": [_short(value) for value in own]} for name, own in sides},
        "targets": [_target(target, measured) for target in row.targets],
        "missed": row.missed,
    }


def again(row: Row, result: Result) -> Result:
    """The same figures, judged by the row's targets of today.

    Args:
        row: As it is now.
        result: As it was saved.
    """
    values = {name: own["rounds"] for name, own in result["sides"].items()}
    return result_of(row, Measured(values, result["unit"], result["steps"], result["note"]))


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def _rounded(found: Spread) -> dict[str, float]:
    return {name: _short(value) for name, value in asdict(found).items()}


def _target(target: Target, measured: Measured) -> dict[str, Any]:
    found = target.compared(measured)
    named = {"text": target.text, "unit": target.unit or measured.unit}
    if found is None:
        return {**named, "measured": None, "met": None}
    return {**named, "measured": _rounded(found), "met": target.met(found.median)}


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

    It is what is kept and published, so it does not say which commit was measured, as the files do: a commit may
    have been left behind by a rebase, or be of no branch, when somebody looks for it.

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
        found["command"] = _joined(whole.get("command", ""), found["command"])
        whole.update(found)
    return {name: value for name, value in whole.items() if name != "commit"} | {"rows": list(rows.values())}


def _joined(earlier: str, own: str) -> str:
    """Both, separated by semicolons, each once."""
    return "; ".join(dict.fromkeys(part for part in [*earlier.split("; "), *own.split("; ")] if part))


# ------------------------------------------------------------------------------------------ the machine


def processor() -> str:
    """The processor's name, as far as the system tells."""
    listing = Path("/proc/cpuinfo")
    if listing.is_file():
        found = re.search(r"^model name\s*:\s*(.+)$", listing.read_text(encoding="utf-8"), re.MULTILINE)
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Version by package, of those that are installed."""
    found = {"Python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """The commit that was measured, with a plus sign if files were changed since; empty outside a clone."""
    answer = subprocess.run(
        ["git", "describe", "--always", "--abbrev=10", "--exclude=*", "--dirty=+"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    return answer.stdout.strip()
