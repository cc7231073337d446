"""Checks of chunks, and of the lookback that a piece reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from epibatch.core.errors import EpibatchError
from epibatch.testing.comparing import difference, rows_of
from epibatch.testing.contract import RUNS, Fault, Finding, NotApplied, contract_check
from epibatch.testing.rehearsal import Rehearsal
from epibatch.testing.stage import PLAYED, growing

__all__ = ["chunks", "lookback"]

_MEMORY = NotApplied("what it has seen before may change what it gives")
_NO_ROWS = NotApplied("rows of its batches are not those of one step after the other")


@contract_check(after=(*RUNS, "row_by_row"))
def chunks(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A chunk with the lookback that it asks for has the rows that the whole episode has there."""
    if not rehearsal.acting and (rehearsal.several or rehearsal.draws or rehearsal.has_state()):
        yield _NO_ROWS if rehearsal.several else _MEMORY
        return
    steps = _needed(rehearsal)
    unlike = _cut(rehearsal, steps)
    if isinstance(unlike, NotApplied):
        yield unlike
    elif unlike:
        yield Fault(
            f"chunks with {steps} steps of lookback",
            "the rows of the whole episode",
            unlike,
            "say in the class how many steps before a chunk it reads: lookback = 1, say",
        )


@contract_check()
def lookback(rehearsal: Rehearsal) -> Iterator[Finding]:
    """It reads no more steps before a chunk than it declares, and declares no more than it reads."""
    piece, pipeline = rehearsal.piece, rehearsal.pipeline(rehearsal.make())
    rehearsal.outputs(pipeline)
    read = pipeline.history.depth
    if rehearsal.declared and read > piece.lookback:
        do = f"lookback = {read} in the class"
        yield Fault(f"{rehearsal.name}.lookback", f"{read}, the steps it reads", str(piece.lookback), do)
        return
    if not piece.lookback:
        yield NotApplied("it declares none")
        return
    if any(other.lookback >= piece.lookback for other in pipeline.pieces() if type(other) is not type(piece)):
        yield NotApplied("a default piece reads as many")
        return
    if not rehearsal.acting and (rehearsal.several or rehearsal.draws or rehearsal.has_state()):
        yield _NO_ROWS if rehearsal.several else _MEMORY
        return
    fewer = piece.lookback - 1 - rehearsal.acting  # the first call for a chunk acts on its second observation
    if fewer < 0:
        yield NotApplied("one step is what a chunk that goes on has at least")
        return
    try:
        unlike = _cut(rehearsal, fewer)
    except EpibatchError:
        return  # the piece raises its own error
    if isinstance(unlike, NotApplied):
        yield unlike
    elif not unlike:
        yield Fault(
            f"{rehearsal.name}.lookback",
            "no more steps than it reads: each chunk has to keep them",
            f"{piece.lookback}, and with {fewer} it gives the same",
            f"lookback = {piece.lookback - 1}, or fewer",
        )


def _needed(rehearsal: Rehearsal) -> int:
    """Return the lookback that a runner would keep for the piece."""
    pipeline = rehearsal.pipeline(rehearsal.make())
    if rehearsal.declared or rehearsal.piece.lookback:
        return int(pipeline.lookback_needed)
    rehearsal.outputs(pipeline)
    return int(pipeline.lookback_needed)


def _cut(rehearsal: Rehearsal, steps: int) -> str | NotApplied:
    return _cut_acting(rehearsal, steps) if rehearsal.acting else _cut_training(rehearsal, steps)


def _cut_acting(rehearsal: Rehearsal, steps: int) -> str:
    for at in range(1, PLAYED):
        shown = growing(rehearsal.recording.played(), (at, steps))
        unlike = difference(rehearsal.base(), rehearsal.outputs(rehearsal.pipeline(rehearsal.make()), shown))
        if unlike:
            return f"cut at step {at}, acting step {unlike.lstrip('[').replace(']', '', 1)}"
    return ""


def _cut_training(rehearsal: Rehearsal, steps: int) -> str | NotApplied:
    """Compare each later chunk of each episode with the end of the whole episode."""
    whole = [own for own in rehearsal.recording.episodes() if len(own) > 2 and own.t_started == 0]
    (batch,) = rehearsal.outputs(rehearsal.pipeline(rehearsal.make()), whole)
    rows = rows_of(batch, rehearsal.counts(whole))
    later, owners = [], []
    for i, episode in enumerate(own for own in rehearsal.recording.episodes() if len(own) > 2 and own.t_started == 0):
        for at in range(1, len(episode)):
            later.append(episode.slice(slice(at, None), len_lookback_buffer=steps))
            owners.append((i, at))
    (parts,) = rehearsal.outputs(rehearsal.pipeline(rehearsal.make()), later)
    chunk_rows = rows_of(parts, rehearsal.counts(later))
    if rows is None or chunk_rows is None:
        return _NO_ROWS
    for own, (i, at) in zip(chunk_rows, owners):
        expected: dict[str, Any] = {name: column[at:] for name, column in rows[i].items()}
        unlike = difference(expected, own, near=True)
        if unlike:
            return f"episode {i}, cut at step {at}: {unlike}"
    return ""
