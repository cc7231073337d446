"""Checks of chunks, and of the lookback that a piece reads."""

from __future__ import annotations

from epibatch.core.errors import EpibatchError
from epibatch.testing.comparing import difference, rows_of
from epibatch.testing.contract import RUNS, ContractFault, NotApplied, contract_check
from epibatch.testing.harness import PieceHarness
from epibatch.testing.recorded_episodes import ACTING_STEPS, growing_episodes

_NO_ROWS = "rows of its batches are not those of one step after the other"


@contract_check(after=(*RUNS, "row_by_row"))
def chunks(harness: PieceHarness) -> None:
    """A chunk with the lookback that it asks for has the rows that the whole episode has there."""
    _require_rows_by_step(harness)
    pipeline = harness.pipeline()
    if not harness.declared and not harness.piece.lookback:
        harness.outputs(pipeline)
    steps = int(pipeline.lookback_needed)
    mismatch = _difference_of_chunks(harness, steps)
    if mismatch:
        raise ContractFault(
            f"chunks with {steps} steps of lookback",
            "the rows of the whole episode",
            mismatch,
            "say in the class how many steps before a chunk it reads: lookback = 1, say",
        )


@contract_check()
def lookback(harness: PieceHarness) -> None:
    """It reads no more steps before a chunk than it declares, and declares no more than it reads."""
    piece, pipeline = harness.piece, harness.pipeline()
    harness.outputs(pipeline)
    read, where = pipeline.history.depth, f"{harness.name}.lookback"
    if harness.declared and read > piece.lookback:
        do = f"lookback = {read} in the class"
        raise ContractFault(where, f"{read}, the steps it reads", str(piece.lookback), do)
    if not piece.lookback:
        raise NotApplied("it declares none")
    if any(other.lookback >= piece.lookback for other in pipeline.pieces() if type(other) is not type(piece)):
        raise NotApplied("a default piece reads as many")
    _require_rows_by_step(harness)
    fewer = piece.lookback - 1 - harness.acting  # the first call for a chunk acts on its second observation
    if fewer < 0:
        raise NotApplied("one step is what a chunk that goes on has at least")
    longest = ACTING_STEPS if harness.acting else max(map(len, harness.recording.episodes()))
    if fewer >= longest - 1:  # a chunk has all steps before it then
        raise NotApplied("the episodes of the checks are not longer than what it reads")
    try:
        mismatch = _difference_of_chunks(harness, fewer)
    except EpibatchError:
        return  # the piece raises its own error
    if not mismatch:
        raise ContractFault(
            where,
            "no more steps than it reads: each chunk has to keep them",
            f"{piece.lookback}, and with {fewer} it gives the same",
            f"lookback = {piece.lookback - 1}, or fewer",
        )


def _require_rows_by_step(harness: PieceHarness) -> None:
    if not harness.acting and (harness.multi_agent or harness.draws or harness.has_state()):
        raise NotApplied(_NO_ROWS if harness.multi_agent else "what it has seen before may change what it gives")


def _difference_of_chunks(harness: PieceHarness, steps: int) -> str:
    """Return the first difference of a chunk's rows to those of the whole episode; empty if there is none.

    Args:
        harness: The piece.
        steps: The chunks' lookback.
    """
    if harness.acting:
        for at in range(1, ACTING_STEPS):
            growing = growing_episodes(harness.recording.for_acting(), (at, steps))
            mismatch = difference(harness.base(), harness.outputs(episodes=growing))
            if mismatch:
                return f"cut at step {at}, acting step {mismatch}"
        return ""
    episodes, again = (
        [chunk for chunk in harness.recording.episodes() if len(chunk) > 2 and chunk.t_started == 0] for _ in range(2)
    )
    cuts = [(i, at) for i, episode in enumerate(again) for at in range(1, len(episode))]
    later = [again[i].slice(slice(at, None), len_lookback_buffer=steps) for i, at in cuts]
    (batch,), (parts,) = harness.outputs(episodes=episodes), harness.outputs(episodes=later)
    rows, chunk_rows = rows_of(batch, harness.counts(episodes)), rows_of(parts, harness.counts(later))
    if rows is None or chunk_rows is None:
        raise NotApplied(_NO_ROWS)
    for columns, (i, at) in zip(chunk_rows, cuts):
        mismatch = difference({name: column[at:] for name, column in rows[i].items()}, columns, near=True)
        if mismatch:
            return f"episode {i}, cut at step {at}: {mismatch}"
    return ""
