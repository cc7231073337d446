"""Copies of a piece: pickled, and cloned."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

from epibatch.core.struct_batches import convert_to_numpy
from epibatch.testing.comparing import difference
from epibatch.testing.contract import Fault, Finding, contract_check
from epibatch.testing.rehearsal import Rehearsal

__all__ = ["pickled"]


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
