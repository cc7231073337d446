"""The results of a piece's checks, as an object and as a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from epibatch.testing.contract import Fault

__all__ = ["CheckReport", "CheckResult"]

PASSED, FAILED, NOT_APPLIED, SKIPPED, NOT_RUN = "passed", "failed", "does not apply", "skipped", "not run"


@dataclass(frozen=True)
class CheckResult:
    """One check on one side.

    Args:
        check: its name.
        side: the pipeline; empty if the result holds for all.
        outcome: "passed", "failed", "does not apply", "skipped" or "not run".
        why: the reason, for outcomes other than the first two.
        faults: the faults, if it failed.
    """

    check: str
    side: str
    outcome: str
    why: str = ""
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True)
class CheckReport:
    """All checks of one piece.

    Args:
        piece: the name of its class.
        results: one for each check and side.

    Example:
        >>> print(CheckReport("Clip", (CheckResult("runs", "learner", "passed"),)))
        Clip: 1 passed
        check  side     outcome  why
        runs   learner  passed
    """

    piece: str
    results: tuple[CheckResult, ...]

    def __iter__(self) -> Iterator[CheckResult]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def names(self, outcome: str) -> list[str]:
        """Return the names of the checks with an outcome on some side, each once."""
        return list(dict.fromkeys(one.check for one in self.results if one.outcome == outcome))

    @property
    def passed(self) -> list[str]:
        """Names of the checks that passed on some side."""
        return self.names(PASSED)

    @property
    def failed(self) -> list[str]:
        """Names of the checks that failed on some side."""
        return self.names(FAILED)

    @property
    def ok(self) -> bool:
        """True if no check failed."""
        return not self.failed

    def rows(self) -> list[dict[str, str]]:
        """Return the table's rows: check, side, outcome, why."""
        return [
            {"check": one.check, "side": one.side or "all", "outcome": one.outcome, "why": _why(one)}
            for one in self.results
        ]

    def faults_text(self) -> str:
        """Return every fault in full, each after the name of its check; empty if there is none."""
        texts = [
            f"- {one.check}{f' ({one.side})' if one.side else ''}: {fault}".replace("\n", "\n  ")
            for one in self.results
            for fault in one.faults
        ]
        return "\n".join(texts)

    def __str__(self) -> str:
        outcomes = [one.outcome for one in self.results]
        counts = [f"{outcomes.count(name)} {name}" for name in dict.fromkeys(outcomes)]
        rows = [("check", "side", "outcome", "why"), *(tuple(row.values()) for row in self.rows())]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[3]]).rstrip() for row in rows]
        return "\n".join([f"{self.piece}: {', '.join(counts) or 'no checks'}", *lines])


def _why(result: CheckResult) -> str:
    return result.why or "; ".join(f"{fault.where}: {' '.join(fault.found.split())}" for fault in result.faults)
