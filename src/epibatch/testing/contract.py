"""Checks of the contract: a name, a sentence, and a function that examines one piece; and their results."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from epibatch.core.errors import PieceCheckError
from epibatch.core.piece_declarations import PIPELINE_NAMES
from epibatch.testing.comparing import difference

if TYPE_CHECKING:
    from epibatch.testing.harness import PieceHarness

PASSED, FAILED, NOT_APPLIED, SKIPPED, NOT_RUN = "passed", "failed", "does not apply", "skipped", "not run"
RUNS = ("declarations", "call_signature", "runs", "independent_pieces", "same_seed", "hidden_state")
_MODULES = ("declarations", "calls", "memory", "history", "columns", "state", "transforms")
_checks: dict[str, ContractCheck] = {}


@dataclass(frozen=True)
class Fault:
    """One violation of the contract.

    Args:
        where: The examined object: an attribute, a method, a column.
        expected: The expected value.
        found: The actual value.
        do: The way to fix it.
    """

    where: str
    expected: str
    found: str
    do: str

    def __str__(self) -> str:
        return str(PieceCheckError(self.where, expected=self.expected, found=self.found, do=self.do))


class ContractFault(Exception):
    """Ends a check with a fault: where, expected, found, do."""

    def __init__(self, where: str, expected: str, found: str, do: str) -> None:
        super().__init__(where)
        self.fault = Fault(where, expected, found, do)


class NotApplied(Exception):
    """Ends a check that does not apply to a piece; its text is the reason, as the report prints it."""


def require_equal(
    expected: Any, found: Any, where: str, meaning: str, do: str, *, near: bool = False, prefix: str = ""
) -> None:
    """Raise a fault unless two structures are equal.

    Args:
        expected: The expected structure.
        found: The actual one.
        where: The examined object.
        meaning: What the expected structure is.
        do: The way to fix it.
        near: True if floats may differ by rounding.
        prefix: Text before the difference.

    Raises:
        ContractFault: They differ.
    """
    mismatch = difference(expected, found, near=near)
    if mismatch:
        raise ContractFault(where, meaning, f"{prefix}{mismatch}", do)


Run: TypeAlias = "Callable[[PieceHarness], Iterable[Fault] | None]"
RunT = TypeVar("RunT", bound=Callable[..., Any])


@dataclass(frozen=True)
class ContractCheck:
    """One named check.

    Args:
        name: Its name in `only`, `skip` and reports.
        sentence: The property that it checks.
        run: Yields or raises the faults; an exception in it is a fault too.
        sides: The pipelines that it applies to.
        after: Checks that must pass first: it does not run if one of them failed.
        once: True if the result of one side holds for all sides.
    """

    name: str
    sentence: str
    run: Run
    sides: tuple[str, ...] = PIPELINE_NAMES
    after: tuple[str, ...] = RUNS
    once: bool = False


def contract_check(**facts: Any) -> Callable[[RunT], RunT]:
    """Register a function as a check, under its name; the first sentence of its docstring becomes the check's."""

    def register(run: RunT) -> RunT:
        sentence = " ".join((inspect.getdoc(run) or "").split("\n\n")[0].split())
        _checks[run.__name__] = ContractCheck(run.__name__, sentence, run, **facts)
        return run

    return register


def contract_checks() -> dict[str, ContractCheck]:
    """Return every check by its name, in the order in which they run.

    Examples:
        >>> checks = contract_checks()
        >>> len(checks) >= 25, next(iter(checks)), checks["pickled"].sentence
        (True, 'declarations', 'It can be pickled, state included, and its copy goes on as it does.')
    """
    modules = [import_module(f"epibatch.testing.checks.{name}").__name__ for name in _MODULES]
    ordered = sorted(_checks.values(), key=lambda check: modules.index(check.run.__module__))
    return {check.name: check for check in ordered}


# ---------------------------------------------------------------------------------------------- results


@dataclass(frozen=True)
class CheckResult:
    """One check on one side.

    Args:
        check: Its name.
        side: The pipeline; empty if the result holds for all.
        outcome: "passed", "failed", "does not apply", "skipped" or "not run".
        why: The reason, for outcomes other than the first two.
        faults: The faults, if it failed.
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
        piece: The name of its class.
        results: One for each check and side.

    Examples:
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
        return list(dict.fromkeys(result.check for result in self.results if result.outcome == outcome))

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
        """Return a row for each result: check, side, outcome, why."""
        return [
            {"check": result.check, "side": result.side or "all", "outcome": result.outcome, "why": _why(result)}
            for result in self.results
        ]

    def faults_text(self) -> str:
        """Return every fault in full, each after the name of its check; empty if there is none."""
        texts = [
            f"- {result.check}{f' ({result.side})' if result.side else ''}: {fault}".replace("\n", "\n  ")
            for result in self.results
            for fault in result.faults
        ]
        return "\n".join(texts)

    def table(self, *, every: bool = False) -> str:
        """Return the results as a table.

        Args:
            every: True to show the checks that do not apply too.
        """
        outcomes = [result.outcome for result in self.results]
        counts = [f"{outcomes.count(name)} {name}" for name in dict.fromkeys(outcomes)]
        body = [tuple(row.values()) for row in self.rows() if every or row["outcome"] != NOT_APPLIED]
        rows = [("check", "side", "outcome", "why"), *body]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[3]]).rstrip() for row in rows]
        return "\n".join([f"{self.piece}: {', '.join(counts) or 'no checks'}", *lines])

    def __str__(self) -> str:
        return self.table()


def _why(result: CheckResult) -> str:
    return result.why or "; ".join(f"{fault.where}: {' '.join(fault.found.split())}" for fault in result.faults)
