"""Checks of a piece's state and of its copies: saving, restoring, merging, freezing, resetting, pickling, cloning."""

from __future__ import annotations

import copy
import pickle
import tempfile
from pathlib import Path
from typing import Any

from epibatch.core.checkpoints import load_state, save_state
from epibatch.core.structs import convert_to_numpy
from epibatch.testing.comparing import difference
from epibatch.testing.contract import RUNS, ContractFault, NotApplied, contract_check, require_equal
from epibatch.testing.harness import PieceHarness
from epibatch.testing.recorded_episodes import growing_episodes

_DRAWS = "it draws random numbers"


def _require_state(harness: PieceHarness, *, no_draws: bool = False) -> None:
    if no_draws and harness.draws:
        raise NotApplied(_DRAWS)
    if not harness.has_state():
        raise NotApplied("it has no state")


def _state(piece: Any) -> Any:
    return convert_to_numpy(piece.get_state())


def _saved(state: Any) -> Any:
    """Return a state after a round trip through a checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        return load_state(save_state(Path(folder) / "piece", state))


@contract_check()
def state_round_trip(harness: PieceHarness) -> None:
    """Its state goes through a checkpoint, and a piece that was given it has it."""
    _require_state(harness)
    state, twin = _state(harness.after_first_call()[0]), harness.make()
    harness.pipeline(twin)
    twin.set_state(_saved(state))
    do = "let set_state take over all that get_state gives"
    require_equal(state, _state(twin), f"{harness.name}.get_state() after set_state(state)", "that state", do)


@contract_check(after=(*RUNS, "state_round_trip"))
def resume(harness: PieceHarness) -> None:
    """A new piece that takes over its state in the middle of a run goes on as it does."""
    pipeline = harness.pipeline()
    if harness.acting:
        straight, resumed = harness.outputs(pipeline), []
        pipeline = harness.pipeline()
        for step, episodes in enumerate(harness.first()):
            pipeline = _restored(harness, pipeline) if step == 2 else pipeline
            resumed.append(harness.call(pipeline, episodes))
    else:
        harness.outputs(pipeline)
        resumed = harness.outputs(_restored(harness, pipeline), harness.later())
        straight = harness.outputs(pipeline, harness.later())
    require_equal(
        straight,
        resumed,
        "going on from a checkpoint",
        "what the piece gives that was not interrupted",
        "let get_state and set_state carry all that the next call depends on",
    )


def _restored(harness: PieceHarness, pipeline: Any) -> Any:
    twin = harness.pipeline()
    twin.set_state(_saved(pipeline.get_state()))
    return twin


@contract_check()
def state_snapshot(harness: PieceHarness) -> None:
    """`get_state` gives a copy, which later calls leave alone, and `set_state` takes one."""
    _require_state(harness)
    piece, pipeline = harness.after_first_call()
    state = piece.get_state()
    before = convert_to_numpy(copy.deepcopy(state))
    twin = harness.make()
    others = harness.pipeline(twin)
    twin.set_state(state)
    for method, later, do in (
        ("set_state", others, "let set_state copy the arrays and dicts it is given"),
        ("get_state", pipeline, "let get_state give copies of arrays and dicts"),
    ):
        harness.outputs(later, harness.later())
        where = f"a state of {method}, after further calls"
        require_equal(before, convert_to_numpy(state), where, "as it was", do)


@contract_check(after=(*RUNS, "state_round_trip", "resume"))
def merge_states(harness: PieceHarness) -> None:
    """The merged states of copies know what one piece knows that saw it all, however often they are merged."""
    _require_state(harness, no_draws=True)
    if not harness.overrides("merge_states"):
        raise NotApplied("it keeps ConnectorV2.merge_states, so that each copy goes by what it saw itself")
    left, right, pooled = (harness.make() for _ in range(3))
    first, second, both = map(harness.pipeline, (left, right, pooled))
    for pipeline, episodes in (
        (first, harness.first()),
        (second, harness.later()),
        (both, harness.first()),
        (both, harness.later()),
    ):
        harness.outputs(pipeline, episodes)
    for times in ("once", "twice, with nothing new in between"):
        merged = left.merge_states([left.get_state(), right.get_state()])
        for piece in (left, right):
            piece.set_state(copy.deepcopy(merged))
        require_equal(
            _outputs_with(harness, pooled.get_state()),
            _outputs_with(harness, merged),
            f"copies merged {times}",
            "what one piece gives that saw it all",
            "keep apart what was known at the last merge and what came since, as SharedMoments does",
            near=True,
        )


def _outputs_with(harness: PieceHarness, state: Any) -> list[Any]:
    """Return the outputs of a piece with this state for some episodes."""
    piece = harness.make()
    pipeline = harness.pipeline(piece)
    piece.set_state(copy.deepcopy(state))
    episodes = growing_episodes(harness.recording.for_acting()[:2]) if harness.acting else None
    return harness.outputs(pipeline, episodes)


@contract_check()
def reset_state(harness: PieceHarness) -> None:
    """`reset_state` forgets all that was learned."""
    _require_state(harness, no_draws=True)
    piece, pipeline = harness.after_first_call()
    new = harness.make()
    new_pipeline = harness.pipeline(new)
    piece.reset_state()
    new.reset_state()
    where, do = f"{harness.name} after reset_state()", "let reset_state set everything that a call changes"
    require_equal(_state(new), _state(piece), where, "what a new piece has", do)
    require_equal(harness.outputs(new_pipeline), harness.outputs(pipeline), where, "what a new piece has", do)


@contract_check()
def freeze(harness: PieceHarness) -> None:
    """Once frozen it learns no more, and goes on applying what it knows."""
    overridden = harness.overrides("freeze")
    if not overridden and (harness.draws or not harness.has_state()):
        raise NotApplied(_DRAWS if harness.draws else "it keeps ConnectorV2.freeze: it has no statistics")
    piece, pipeline = harness.after_first_call()
    piece.freeze()
    before = copy.deepcopy(_state(piece))
    first, second = (harness.outputs(pipeline, harness.later()) for _ in range(2))
    do = "let calls after freeze() change nothing that it remembers"
    if not overridden:
        do = "learn nothing while `self.frozen` is True, which ConnectorV2.freeze sets; or override freeze"
    where, meaning = f"{harness.name} after freeze()", "the same state after further calls"
    require_equal(before, _state(piece), where, meaning, do)
    require_equal(first, second, where, meaning, do)


# ---------------------------------------------------------------------------------------------- copies


@contract_check()
def pickled(harness: PieceHarness) -> None:
    """It can be pickled, state included, and its copy goes on as it does."""
    piece, pipeline = harness.after_first_call()
    do = "hold data and functions of modules only; no lambdas, open files or classes made in functions"
    try:
        twin = pickle.loads(pickle.dumps(piece))
    except Exception as error:
        found = f"{type(error).__name__}: {error}".splitlines()[0]
        where = f"pickle.dumps({harness.name})"
        raise ContractFault(where, "a piece that other processes can be sent", found, do) from error
    mismatch = _difference_of_copy(harness, (piece, pipeline), twin)
    if mismatch:
        do = "leave nothing out of what is pickled"
        raise ContractFault("a pickled copy", "what the piece itself gives", mismatch, do)


@contract_check(after=(*RUNS, "state_round_trip", "resume"))
def cloned(harness: PieceHarness) -> None:
    """`clone()` gives a piece that goes on as it does and is apart from it, or shares its state if asked to."""
    piece, pipeline = harness.after_first_call()
    mismatch = _difference_of_copy(harness, (piece, pipeline), piece.clone())
    if mismatch:
        meaning = "what the piece itself gives, while neither knows of the other"
        do = "let the constructor's arguments and get_state carry everything"
        raise ContractFault(f"{harness.name}.clone()", meaning, mismatch, do)
    shared = piece.clone(share_state=True)
    harness.outputs(harness.pipeline(shared))
    where, do = (
        f"{harness.name}.clone(share_state=True)",
        "return self.share() if share_state, as ConnectorV2.clone does",
    )
    require_equal(_state(piece), _state(shared), where, "one state for both", do)


def _difference_of_copy(harness: PieceHarness, original: tuple[Any, Any], twin: Any) -> str:
    """Return the first difference of a copy's state and further outputs, the copy's first; empty if there is none."""
    piece, pipeline = original
    mismatch = difference(_state(piece), _state(twin))
    if mismatch or harness.draws:
        return mismatch
    outputs = harness.outputs(harness.pipeline(twin), harness.later())
    return difference(harness.outputs(pipeline, harness.later()), outputs)
