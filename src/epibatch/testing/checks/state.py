"""Checks of a piece's state: saving, restoring, merging, freezing and resetting it."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from epibatch.core.checkpoints import load_state, save_state
from epibatch.core.structs import convert_to_numpy
from epibatch.testing.comparing import difference
from epibatch.testing.contract import RUNS, Fault, Finding, NotApplied, contract_check
from epibatch.testing.rehearsal import Rehearsal
from epibatch.testing.stage import growing

__all__ = [
    "freeze",
    "merge_states",
    "reset_state",
    "resume",
    "state_round_trip",
    "state_snapshot",
]

_STATELESS = NotApplied("it has no state")
_DRAWS = NotApplied("it draws random numbers")


def _ran(rehearsal: Rehearsal) -> tuple[Any, Any]:
    """Return a new piece that has processed the first recorded call, and its pipeline."""
    piece = rehearsal.make()
    pipeline = rehearsal.pipeline(piece)
    rehearsal.outputs(pipeline)
    return piece, pipeline


def _saved(state: Any) -> Any:
    """Return a state after a round trip through a checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        return load_state(save_state(Path(folder) / "piece", state))


@contract_check()
def state_round_trip(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Its state goes through a checkpoint, and a piece that was given it has it."""
    if not rehearsal.has_state():
        yield _STATELESS
        return
    state = convert_to_numpy(_ran(rehearsal)[0].get_state())
    twin = rehearsal.make()
    rehearsal.pipeline(twin)
    twin.set_state(_saved(state))
    unlike = difference(state, convert_to_numpy(twin.get_state()))
    if unlike:
        do = "let set_state take over all that get_state gives"
        yield Fault(f"{rehearsal.name}.get_state() after set_state(state)", "that state", unlike, do)


@contract_check(after=(*RUNS, "state_round_trip"))
def resume(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A new piece that takes over its state in the middle of a run goes on as it does."""
    state_of = rehearsal.pipeline(rehearsal.make())
    straight: list[Any] = []
    resumed: list[Any] = []
    if rehearsal.acting:
        for out, switch in ((straight, False), (resumed, True)):
            pipeline = rehearsal.pipeline(rehearsal.make())
            for step, episodes in enumerate(growing(rehearsal.recording.played())):
                pipeline = _restored(rehearsal, pipeline) if switch and step == 2 else pipeline
                out.append(rehearsal.call(pipeline, episodes))
    else:
        rehearsal.outputs(state_of)
        twin = _restored(rehearsal, state_of)
        resumed = rehearsal.outputs(twin, rehearsal.later())
        straight = rehearsal.outputs(state_of, rehearsal.later())
    unlike = difference(straight, resumed)
    if unlike:
        yield Fault(
            "going on from a checkpoint",
            "what the piece gives that was not interrupted",
            unlike,
            "let get_state and set_state carry all that the next call depends on",
        )


def _restored(rehearsal: Rehearsal, pipeline: Any) -> Any:
    twin = rehearsal.pipeline(rehearsal.make())
    twin.set_state(_saved(pipeline.get_state()))
    return twin


@contract_check()
def state_snapshot(rehearsal: Rehearsal) -> Iterator[Finding]:
    """`get_state` gives a copy, which later calls leave alone, and `set_state` takes one."""
    if not rehearsal.has_state():
        yield _STATELESS
        return
    piece, pipeline = _ran(rehearsal)
    state = piece.get_state()
    before = copy.deepcopy(state)
    twin = rehearsal.make()
    others = rehearsal.pipeline(twin)
    twin.set_state(state)
    where, do = "set_state", "let set_state copy the arrays and dicts it is given"
    rehearsal.outputs(others, rehearsal.later())
    unlike = difference(convert_to_numpy(before), convert_to_numpy(state))
    if not unlike:
        where, do = "get_state", "let get_state give copies of arrays and dicts"
        rehearsal.outputs(pipeline, rehearsal.later())
        unlike = difference(convert_to_numpy(before), convert_to_numpy(state))
    if unlike:
        yield Fault(f"a state of {where}, after further calls", "as it was", unlike, do)


@contract_check(after=(*RUNS, "state_round_trip", "resume"))
def merge_states(rehearsal: Rehearsal) -> Iterator[Finding]:
    """The merged states of copies know what one piece knows that saw it all, however often they are merged."""
    if rehearsal.draws or not rehearsal.has_state():
        yield _DRAWS if rehearsal.draws else _STATELESS
        return
    if not rehearsal.overrides("merge_states"):
        yield NotApplied("it keeps ConnectorV2.merge_states, so that each copy goes by what it saw itself")
        return
    one, other, pooled = (rehearsal.make() for _ in range(3))
    lines = [rehearsal.pipeline(piece) for piece in (one, other, pooled)]
    rehearsal.outputs(lines[0])
    rehearsal.outputs(lines[1], rehearsal.later())
    rehearsal.outputs(lines[2])
    rehearsal.outputs(lines[2], rehearsal.later())
    for times in ("once", "twice, with nothing new in between"):
        merged = one.merge_states([one.get_state(), other.get_state()])
        for piece in (one, other):
            piece.set_state(copy.deepcopy(merged))
        unlike = difference(_known(rehearsal, pooled.get_state()), _known(rehearsal, merged), near=True)
        if unlike:
            do = "keep apart what was known at the last merge and what came since, as SharedMoments does"
            yield Fault(f"copies merged {times}", "what one piece gives that saw it all", unlike, do)
            return


def _known(rehearsal: Rehearsal, state: Any) -> list[Any]:
    """Return the outputs of a piece with this state for some episodes."""
    piece = rehearsal.make()
    pipeline = rehearsal.pipeline(piece)
    piece.set_state(copy.deepcopy(state))
    return rehearsal.outputs(pipeline, growing(rehearsal.recording.played()[:2]) if rehearsal.acting else None)


@contract_check()
def reset_state(rehearsal: Rehearsal) -> Iterator[Finding]:
    """`reset_state` forgets all that was learned."""
    if rehearsal.draws or not rehearsal.has_state():
        yield _DRAWS if rehearsal.draws else _STATELESS
        return
    piece, pipeline = _ran(rehearsal)
    fresh = rehearsal.make()
    beside = rehearsal.pipeline(fresh)
    piece.reset_state()
    fresh.reset_state()
    unlike = difference(convert_to_numpy(fresh.get_state()), convert_to_numpy(piece.get_state()))
    unlike = unlike or difference(rehearsal.outputs(beside), rehearsal.outputs(pipeline))
    if unlike:
        do = "let reset_state set everything that a call changes"
        yield Fault(f"{rehearsal.name} after reset_state()", "what a new piece has", unlike, do)


@contract_check()
def freeze(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Once frozen it learns no more, and goes on applying what it knows."""
    overridden = rehearsal.overrides("freeze")
    if not overridden and (rehearsal.draws or not rehearsal.has_state()):
        yield _DRAWS if rehearsal.draws else NotApplied("it keeps ConnectorV2.freeze: it has no statistics")
        return
    piece, pipeline = _ran(rehearsal)
    piece.freeze()
    before = copy.deepcopy(convert_to_numpy(piece.get_state()))
    first, second = (rehearsal.outputs(pipeline, rehearsal.later()) for _ in range(2))
    unlike = difference(before, convert_to_numpy(piece.get_state()))
    unlike = unlike or difference(first, second)
    if unlike:
        do = "let calls after freeze() change nothing that it remembers"
        if not overridden:
            do = "learn nothing while `self.frozen` is True, which ConnectorV2.freeze sets; or override freeze"
        yield Fault(f"{rehearsal.name} after freeze()", "the same state after further calls", unlike, do)
