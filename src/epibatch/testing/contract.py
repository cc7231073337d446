"""What a check of the contract is: a name, a sentence, and a function that looks at one piece."""

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
    """One thing that breaks the contract.

    Args:
        where: what was looked at: an attribute, a method, a column.
        expected: what should have been there.
        found: what was there.
        do: how to mend it.
    """

    where: str
    expected: str
    found: str
    do: str

    def __str__(self) -> str:
        return str(PieceCheckError(self.where, expected=self.expected, found=self.found, do=self.do))


@dataclass(frozen=True)
class NotApplied:
    """Why a check says nothing about a piece.

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
        name: by which `only`, `skip` and reports know it.
        sentence: what it makes sure of.
        look: finds what is wrong; an exception in it is a fault too.
        sides: pipelines whose pieces it is about.
        after: checks without which it would say nothing new: it is not made if one of them failed.
        once: whether one side's answer is that of all sides.
    """

    name: str
    sentence: str
    look: Look
    sides: tuple[str, ...] = PIPELINE_NAMES
    after: tuple[str, ...] = RUNS
    once: bool = False


def contract_check(**facts: Any) -> Callable[[LookT], LookT]:
    """Make a check of a function; its name and the first sentence of its docstring are the check's."""

    def register(look: LookT) -> LookT:
        sentence = " ".join((inspect.getdoc(look) or "").split("\n\n")[0].split())
        _checks[look.__name__] = ContractCheck(look.__name__, sentence, look, **facts)
        return look

    return register


def contract_checks() -> dict[str, ContractCheck]:
    """Every check by its name, in the order in which they are made.

    Example:
        >>> checks = contract_checks()
        >>> len(checks) >= 25, next(iter(checks)), checks["pickled"].sentence
        (True, 'declarations', 'It can be pickled, state included, and its copy goes on as it does.')
    """
    modules = [import_module(f"epibatch.testing.checks.{room}").__name__ for room in _ROOMS]
    ordered = sorted(_checks.values(), key=lambda check: modules.index(check.look.__module__))
    return {check.name: check for check in ordered}


def contract_table() -> str:
    """All checks as a Markdown table: name, sides, and what each makes sure of."""
    rows = ["| check | side | what it makes sure of |", "|---|---|---|"]
    for check in contract_checks().values():
        sides = "all" if check.sides == PIPELINE_NAMES else ", ".join(f"`{side}`" for side in check.sides)
        rows.append(f"| `{check.name}` | {sides} | {check.sentence} |")
    return "\n".join(rows)
