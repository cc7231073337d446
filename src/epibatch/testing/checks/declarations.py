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
from epibatch.testing.contract import Fault, Finding, NotApplied, contract_check
from epibatch.testing.rehearsal import Rehearsal, made_again

__all__ = ["arguments", "call_signature", "data_form", "declarations", "representation", "unknown_keywords"]

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]{4,}")
_SIDES = ("as_learner_connector", "multi_agent")
_STRANGER = "keyword_that_no_piece_has"


@contract_check(after=())
def declarations(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Its class attributes say what they can say, and it is made for the pipeline it is checked in."""
    piece, side = rehearsal.piece, rehearsal.side
    try:
        check_declarations(piece, rehearsal.name)
    except EpibatchError as error:
        where, *lines = str(error).splitlines()
        expected, found, do = (line.partition(":")[2].strip() for line in lines)
        yield Fault(where, expected, found, do)
        return
    if piece.pipelines and side not in piece.pipelines:
        yield Fault(
            f"{rehearsal.name}.pipelines",
            f"{side}, where it is checked",
            repr(piece.pipelines),
            f"name {side} there too, or check it in {' and '.join(piece.pipelines)}",
        )


@contract_check(after=(), once=True)
def call_signature(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Its `__call__` takes whatever keywords a pipeline passes on."""
    kinds = [parameter.kind for parameter in inspect.signature(rehearsal.piece.__call__).parameters.values()]
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        where = f"{rehearsal.name}.__call__"
        yield Fault(where, "any further keyword", "none is taken", "end its parameters with **kwargs")


@contract_check(after=(), once=True)
def unknown_keywords(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Its constructor refuses a keyword that it does not know."""
    try:
        made_again(rehearsal.piece, **{_STRANGER: 1})
    except (TypeError, ValueError):
        return
    yield Fault(
        f"{rehearsal.name}(...)",
        "an error that names a misspelt keyword",
        "it is ignored without an error",
        "leave **kwargs out of __init__; a piece that is ported as it stands may skip this check",
    )


@contract_check(after=(), once=True)
def arguments(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Its constructor keeps the numbers and switches that it is given."""
    tried = 0
    for name, value in _numbers_of(rehearsal.piece).items():
        for other in _others(value):
            try:
                changed = made_again(rehearsal.piece, **{name: other})
                same = made_again(rehearsal.piece, **{name: value})
            except (TypeError, ValueError):
                continue  # one that it does not take
            tried += 1
            if _kept(changed) == _kept(same):
                yield Fault(
                    f"{rehearsal.name}({name}={other!r})",
                    f"another piece than {rehearsal.name}({name}={value!r}) makes",
                    "one with the same attributes: the argument is lost",
                    f"write self.{name} = {name} in __init__, or leave the parameter out",
                )
            break
    if not tried:
        yield NotApplied("it takes no numbers or switches")


def _numbers_of(piece: Any) -> dict[str, Any]:
    """Return the arguments of a piece that are numbers or switches, defaults included."""
    parameters = inspect.signature(type(piece).__init__).parameters
    given = piece.get_ctor_args_and_kwargs()[1]
    known = {name: given.get(name, own.default) for name, own in parameters.items()}
    return {name: own for name, own in known.items() if type(own) in (bool, int, float) and name not in _SIDES}


def _others(value: Any) -> tuple[Any, ...]:
    if isinstance(value, bool):
        return (not value,)
    return (value + 1, value - 1) if isinstance(value, int) else (value / 2 or 0.5, value + 1)


def _kept(piece: Any) -> dict[str, str]:
    """Return the attributes of a piece, except for the stored arguments, which every piece has."""
    return {name: repr(own) for name, own in vars(piece).items() if name != "_ctor"}


@contract_check(after=(), once=True)
def representation(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Its repr names the class and every argument it was made with, and no memory address."""
    shown, again = repr(rehearsal.piece), repr(rehearsal.make())
    where = f"repr({rehearsal.name})"
    if _ADDRESS.search(shown):
        yield Fault(where, "no memory address", shown, "give what it holds a repr of its own, or keep it out")
    elif shown != again:
        yield Fault(
            where, "the same for a piece with the same arguments", f"{shown} and {again}", "show arguments only"
        )
    elif rehearsal.name not in shown:
        yield Fault(where, f"the class, {rehearsal.name}", shown, "begin it with the name of the class")
    missing = [key for key in rehearsal.piece.get_ctor_args_and_kwargs()[1] if key not in shown]
    if missing:
        yield Fault(where, f"its argument {missing[0]}", shown, "show every argument it was made with")


@contract_check(after=("declarations",), once=True)
def data_form(rehearsal: Rehearsal) -> Iterator[Finding]:
    """It can be written as data, for YAML and checkpoints, and is built from that as it was."""
    cls = type(rehearsal.piece)
    if cls.__module__ == "__main__" and registered_name(cls) is None:
        yield NotApplied("the class is defined in the running script, which no file can name")
        return
    try:
        spec = piece_to_dict(rehearsal.piece)
    except EpibatchError as error:
        where, *lines = str(error).splitlines()
        expected, found, do = (line.partition(":")[2].strip() for line in lines)
        yield Fault(where, expected, found, do)
        return
    again = piece_to_dict(build_piece(json.loads(json.dumps(spec)), allow_imports=True))
    if again != spec:
        do = "let its constructor, and get_ctor_args_and_kwargs, give what it was given"
        yield Fault(f"{rehearsal.name} built from data", repr(spec), repr(again), do)
