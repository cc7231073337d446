"""Copies of a piece: pickled, and cloned."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

from epibatch.core.structs import convert_to_numpy
from epibatch.testing.comparing import difference
from epibatch.testing.contract import RUNS, Fault, Finding, contract_check
from epibatch.testing.rehearsal import Rehearsal

__all__ = ["cloned", "pickled"]


@contract_check()
def pickled(rehearsal: Rehearsal) -> Iterator[Finding]:
    """It can be pickled, state included, and its copy goes on as it does."""
    piece = rehearsal.make()
    pipeline = rehearsal.pipeline(piece)
    rehearsal.outputs(pipeline)
    do = "hold data and functions of modules only; no lambdas, open files or classes made in functions"
    try:
        twin = pickle.loads(pickle.dumps(piece))
    except Exception as error:
        found = f"{type(error).__name__}: {error}".splitlines()[0]
        yield Fault(f"pickle.dumps({rehearsal.name})", "a piece that other processes can be sent", found, do)
        return
    unlike = difference(convert_to_numpy(piece.get_state()), convert_to_numpy(twin.get_state()))
    if not unlike and not rehearsal.draws:
        one, other = (rehearsal.outputs(own, rehearsal.later()) for own in (pipeline, rehearsal.pipeline(twin)))
        unlike = difference(one, other)
    if unlike:
        yield Fault("a pickled copy", "what the piece itself gives", unlike, "leave nothing out of what is pickled")


@contract_check(after=(*RUNS, "state_round_trip", "resume"))
def cloned(rehearsal: Rehearsal) -> Iterator[Finding]:
    """`clone()` gives a piece that goes on as it does and is apart from it, or shares its state if asked to."""
    piece = rehearsal.make()
    pipeline = rehearsal.pipeline(piece)
    rehearsal.outputs(pipeline)
    twin = piece.clone()
    unlike = difference(convert_to_numpy(piece.get_state()), convert_to_numpy(twin.get_state()))
    if not unlike and not rehearsal.draws:
        others = rehearsal.pipeline(twin)
        first = rehearsal.outputs(others, rehearsal.later())
        unlike = difference(rehearsal.outputs(pipeline, rehearsal.later()), first)
    if unlike:
        do = "let the constructor's arguments and get_state carry everything"
        yield Fault(
            f"{rehearsal.name}.clone()", "what the piece itself gives, while neither knows of the other", unlike, do
        )
        return
    shared = piece.clone(share_state=True)
    rehearsal.outputs(rehearsal.pipeline(shared))
    unlike = difference(convert_to_numpy(piece.get_state()), convert_to_numpy(shared.get_state()))
    if unlike:
        do = "return self.share() if share_state, as ConnectorV2.clone does"
        yield Fault(f"{rehearsal.name}.clone(share_state=True)", "one state for both", unlike, do)
