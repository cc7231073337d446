"""Checks of the contract: a name, a sentence, and a function that examines one piece."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from epibatch.core.errors import PieceCheckError
from epibatch.core.piece_declarations import PIPELINE_NAMES

if TYPE_CHECKING:
    from epibatch.testing.rehearsal import Rehearsal

__all__ = [
    "RUNS",
    "ContractCheck",
    "Fault",
    "Finding",
    "NotApplied",
    "contract_check",
    "contract_checks",
    "contract_table",
]

_ROOMS = ("declarations", "calls", "memory", "history", "columns", "spaces", "agents", "state", "copies", "transforms")
RUNS = ("declarations", "call_signature", "runs", "independent_pieces", "same_seed", "hidden_state")
_checks: dict[str, ContractCheck] = {}


@dataclass(frozen=True)
class Fault:
    """One violation of the contract.

    Args:
        where: the examined object: an attribute, a method, a column.
        expected: the expected value.
        found: the actual value.
        do: the way to fix it.
    """

    where: str
    expected: str
    found: str
    do: str

    def __str__(self) -> str:
        return str(PieceCheckError(self.where, expected=self.expected, found=self.found, do=self.do))


@dataclass(frozen=True)
class NotApplied:
    """The reason why a check does not apply to a piece.

    Args:
        why: the reason, as the report prints it.
    """

    why: str


Finding: TypeAlias = "Fault | NotApplied"
Look: TypeAlias = "Callable[[Rehearsal], Iterator[Finding]]"
LookT = TypeVar("LookT", bound=Callable[..., Iterator[Any]])


@dataclass(frozen=True)
class ContractCheck:
    """One named check.

    Args:
        name: its name in `only`, `skip` and reports.
        sentence: the property that it checks.
        look: yields the faults; an exception in it is a fault too.
        sides: the pipelines that it applies to.
        after: checks that must pass first: it does not run if one of them failed.
        once: True if the result of one side holds for all sides.
    """

    name: str
    sentence: str
    look: Look
    sides: tuple[str, ...] = PIPELINE_NAMES
    after: tuple[str, ...] = RUNS
    once: bool = False


def contract_check(**facts: Any) -> Callable[[LookT], LookT]:
    """Register a function as a check, under its name; the first sentence of its docstring becomes the check's."""

    def register(look: LookT) -> LookT:
        sentence = " ".join((inspect.getdoc(look) or "").split("\n\n")[0].split())
        _checks[look.__name__] = ContractCheck(look.__name__, sentence, look, **facts)
        return look

    return register


def contract_checks() -> dict[str, ContractCheck]:
    """Return every check by its name, in the order in which they run.

    Example:
        >>> checks = contract_checks()
        >>> len(checks) >= 25, next(iter(checks)), checks["pickled"].sentence
        (True, 'declarations', 'It can be pickled, state included, and its copy goes on as it does.')
    """
    modules = [import_module(f"epibatch.testing.checks.{room}").__name__ for room in _ROOMS]
    ordered = sorted(_checks.values(), key=lambda check: modules.index(check.look.__module__))
    return {check.name: check for check in ordered}


def contract_table() -> str:
    """Return all checks as a Markdown table: name, sides, and the property that each one checks."""
    rows = ["| check | side | what it makes sure of |", "|---|---|---|"]
    for check in contract_checks().values():
        sides = "all" if check.sides == PIPELINE_NAMES else ", ".join(f"`{side}`" for side in check.sides)
        rows.append(f"| `{check.name}` | {sides} | {check.sentence} |")
    return "\n".join(rows)
