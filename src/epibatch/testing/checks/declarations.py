"""Checks of a piece's declarations and constructor, without running it."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from typing import Any

from epibatch.core.errors import EpibatchError
from epibatch.core.piece_declarations import check_declarations
from epibatch.core.registry import build_piece, piece_to_dict, registered_name
from epibatch.testing.contract import ContractFault, Fault, NotApplied, contract_check
from epibatch.testing.harness import PieceHarness, rebuilt

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]{4,}")
_SIDES = ("as_learner_connector", "multi_agent")
_STRANGER = "keyword_that_no_piece_has"


@contract_check(after=())
def declarations(harness: PieceHarness) -> None:
    """Its class attributes say what they can say, and it is made for the pipeline it is checked in."""
    piece, side = harness.piece, harness.side
    try:
        check_declarations(piece, harness.name)
    except EpibatchError as error:
        raise _fault(error) from error
    if piece.pipelines and side not in piece.pipelines:
        raise ContractFault(
            f"{harness.name}.pipelines",
            f"{side}, where it is checked",
            repr(piece.pipelines),
            f"name {side} there too, or check it in {' and '.join(piece.pipelines)}",
        )


def _fault(error: EpibatchError) -> ContractFault:
    return ContractFault(*(str(text) for text in (error.where, error.expected, error.found, error.do)))


@contract_check(after=(), once=True)
def call_signature(harness: PieceHarness) -> None:
    """Its `__call__` takes whatever keywords a pipeline passes on."""
    kinds = [parameter.kind for parameter in inspect.signature(harness.piece.__call__).parameters.values()]
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        where = f"{harness.name}.__call__"
        raise ContractFault(where, "any further keyword", "none is taken", "end its parameters with **kwargs")


@contract_check(after=(), once=True)
def unknown_keywords(harness: PieceHarness) -> None:
    """Its constructor refuses a keyword that it does not know."""
    try:
        rebuilt(harness.piece, **{_STRANGER: 1})
    except (TypeError, ValueError):
        return
    raise ContractFault(
        f"{harness.name}(...)",
        "an error that names a misspelt keyword",
        "it is ignored without an error",
        "leave **kwargs out of __init__; a piece that is ported as it stands may skip this check",
    )


@contract_check(after=(), once=True)
def arguments(harness: PieceHarness) -> Iterator[Fault]:
    """Its constructor keeps the numbers and switches that it is given."""
    tried = 0
    for name, value in _numbers_of(harness.piece).items():
        for other in _others(value):
            try:
                changed = rebuilt(harness.piece, **{name: other})
                same = rebuilt(harness.piece, **{name: value})
            except (TypeError, ValueError):
                continue  # one that it does not take
            tried += 1
            if _kept(changed) == _kept(same):
                yield Fault(
                    f"{harness.name}({name}={other!r})",
                    f"another piece than {harness.name}({name}={value!r}) makes",
                    "one with the same attributes: the argument is lost",
                    f"write self.{name} = {name} in __init__, or leave the parameter out",
                )
            break
    if not tried:
        raise NotApplied("it takes no numbers or switches")


def _numbers_of(piece: Any) -> dict[str, Any]:
    """Return the arguments of a piece that are numbers or switches, defaults included."""
    parameters = inspect.signature(type(piece).__init__).parameters
    kwargs = piece.get_ctor_args_and_kwargs()[1]
    values = {name: kwargs.get(name, parameter.default) for name, parameter in parameters.items()}
    return {name: value for name, value in values.items() if type(value) in (bool, int, float) and name not in _SIDES}


def _others(value: Any) -> tuple[Any, ...]:
    if isinstance(value, bool):
        return (not value,)
    return (value + 1, value - 1) if isinstance(value, int) else (value / 2 or 0.5, value + 1)


def _kept(piece: Any) -> dict[str, str]:
    """Return the attributes of a piece, except for the stored arguments, which every piece has."""
    return {name: repr(value) for name, value in vars(piece).items() if name != "_ctor"}


@contract_check(after=(), once=True)
def representation(harness: PieceHarness) -> Iterator[Fault]:
    """Its repr names the class and every argument it was made with, and no memory address."""
    text, again = repr(harness.piece), repr(harness.make())
    where = f"repr({harness.name})"
    if _ADDRESS.search(text):
        yield Fault(where, "no memory address", text, "give what it holds a repr of its own, or keep it out")
    elif text != again:
        yield Fault(where, "the same for a piece with the same arguments", f"{text} and {again}", "show arguments only")
    elif harness.name not in text:
        yield Fault(where, f"the class, {harness.name}", text, "begin it with the name of the class")
    missing = [key for key in harness.piece.get_ctor_args_and_kwargs()[1] if key not in text]
    if missing:
        yield Fault(where, f"its argument {missing[0]}", text, "show every argument it was made with")


@contract_check(after=("declarations",), once=True)
def data_form(harness: PieceHarness) -> None:
    """It can be written as data, for YAML and checkpoints, and is built from that as it was."""
    cls = type(harness.piece)
    if cls.__module__ == "__main__" and registered_name(cls) is None:
        raise NotApplied("the class is defined in the running script, which no file can name")
    try:
        spec = piece_to_dict(harness.piece)
    except EpibatchError as error:
        raise _fault(error) from error
    again = piece_to_dict(build_piece(json.loads(json.dumps(spec)), allow_imports=True))
    if again != spec:
        do = "let its constructor, and get_ctor_args_and_kwargs, give what it was given"
        raise ContractFault(f"{harness.name} built from data", repr(spec), repr(again), do)
