"""The table: on the screen, and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from benchmarks.names import FLOOR, OURS, RLLIB

HEADINGS = ("row", OURS, RLLIB, FLOOR, f"{OURS} / {FLOOR}", f"{RLLIB} / {OURS}", "target", "measured", "met")


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


def cells(result: dict[str, Any]) -> list[list[str]]:
    """The lines of one row: one per target, at least one; what the sides took stands in the first."""
    sides, unit = result["sides"], result["unit"]
    first = [result["name"], *(_side(sides, name, unit) for name in (OURS, RLLIB, FLOOR))]
    for name in (f"{OURS} / {FLOOR}", f"{RLLIB} / {OURS}"):
        ratio = result["ratios"].get(name)
        first.append("-" if ratio is None else f"{digits(ratio['median'])} ({_range(ratio)})")
    targets = [_target(target) for target in result["targets"]] or [["", "", ""]]
    return [(first if i == 0 else [""] * len(first)) + target for i, target in enumerate(targets)]


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


def _range(spread: dict[str, float]) -> str:
    return f"{digits(spread['low'])} to {digits(spread['high'])}"


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


def screen(results: Sequence[dict[str, Any]]) -> Table:
    """The table for the screen."""
    table = Table(*HEADINGS)
    for result in results:
        for line in cells(result):
            table.add_row(*line)
    return table


def markdown(results: Sequence[dict[str, Any]]) -> str:
    """The table in Markdown, with the workloads and without the ratios that no target is about."""
    headings = (*HEADINGS[:1], "workload", *HEADINGS[1:4], *HEADINGS[6:])
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    for result in results:
        for i, line in enumerate(cells(result)):
            parts = [line[0], "" if i else result["what"], *line[1:4], *line[6:]]
            lines.append("| " + " | ".join(parts) + " |")
    return "\n".join(lines)
