"""Tests beside RLlib and rsl_rl: left out where they are not installed; what they counted is printed at the end."""

from __future__ import annotations

import importlib.util
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("ray") is None:
    collect_ignore_glob = ["*"]
elif importlib.util.find_spec("rsl_rl") is None:
    collect_ignore = ["test_ppo_vs_rsl_rl.py", "test_rollouts_vs_rsl_rl.py"]

_total: dict[str, Counter[str]] = {"cases": Counter(), "differences": Counter()}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """RLlib and what it imports warn of their own future; that is no failure here."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore"))


def _counted() -> dict[str, dict[str, int]]:
    from oracle.cases import cases_run, differences_met

    return {"cases": dict(cases_run), "differences": dict(differences_met)}


def _add(counted: dict[str, dict[str, int]]) -> None:
    for kind, counts in counted.items():
        _total[kind].update(counts)


def pytest_sessionfinish(session: pytest.Session) -> None:
    output: Any = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["conformance"] = _counted()
    else:
        _add(_counted())


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker of pytest-xdist has finished: its counts come home."""
    _add(getattr(node, "workeroutput", {}).get("conformance", {}))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    cases, differences = _total["cases"], _total["differences"]
    if not cases:
        return
    least = min(cases.values())
    met = ", ".join(f"{name} {count:,}" for name, count in differences.most_common())
    terminalreporter.section("beside RLlib")
    terminalreporter.line(f"{sum(cases.values()):,} random cases of {len(cases)} properties, {least:,} or more of each")
    terminalreporter.line(f"mismatches that are listed differences: {met or 'none'}")
    report = os.environ.get("EPIBATCH_REPORT")
    if report:
        failed = [found.nodeid for kind in ("failed", "error") for found in terminalreporter.stats.get(kind, [])]
        figures = {**{kind: dict(sorted(counts.items())) for kind, counts in _total.items()}, "failed": failed}
        Path(report).write_text(json.dumps(figures, indent=1), encoding="utf-8")
