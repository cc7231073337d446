"""What listed differences give where learner pieces are called by themselves, without a pipeline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from batches.learner_differences import LearnerSituation
from batches.snapshots import Flat, same_flat
from batches.stages import Record, record_mismatches
from oracle.compare import Mismatch, outcome
from oracle.differences import difference, explanation_of
from oracle.libraries import EPIBATCH, RLLIB


@difference("no-steps", LearnerSituation)
def chunks_without_steps_have_no_rows(situation: LearnerSituation, mismatch: Mismatch) -> bool:
    """RLlib's pieces fail, or have a row for some columns of a chunk without steps; ours go by the other chunks."""
    if situation.way != "alone" or situation.ours is None or all(chunk.length for chunk in situation.call.chunks):
        return False
    if not situation.verdicts:
        situation.verdicts.append(as_without_them(situation, situation.ours))
    return situation.verdicts[0]


def as_without_them(situation: LearnerSituation, ours: Record) -> bool:
    """Whether ours gives what it does without the chunks that have no steps, and that is as it should be."""
    call = situation.call
    kept = [i for i, chunk in enumerate(call.chunks) if chunk.length]
    if not kept:
        return all(is_empty(leaf) for leaf in ours.final.values())
    fewer = replace(call, chunks=tuple(call.chunks[i] for i in kept))
    theirs, without = (outcome(lambda library=library: fewer.record(library, "alone")) for library in (RLLIB, EPIBATCH))
    if theirs.kind or without.kind:
        return False
    found = LearnerSituation(fewer, "alone", without.value, theirs.value)
    if any(explanation_of(found, own) is None for own in record_mismatches(theirs.value, without.value)):
        return False
    names = {f"chunk {i}": f"chunk {kept.index(i)}" if i in kept else "" for i in range(len(call.chunks))}
    stages = [(ours.stages[name], flat) for name, flat in without.value.stages.items()]
    return all(same_flat(renamed(flat, names), other) for flat, other in [*stages, (ours.final, without.value.final)])


def is_empty(leaf: Any) -> bool:
    """Whether a leaf of a snapshot has no rows."""
    return leaf.startswith("empty ") if isinstance(leaf, str) else not len(leaf)


def renamed(flat: Flat, names: dict[str, str]) -> Flat:
    """A snapshot with other names for chunks, and without those that have none and hold nothing."""
    out: Flat = {}
    for path, leaf in flat.items():
        if not any(names.get(part) == "" and is_empty(leaf) for part in path):
            out[tuple(names.get(part, part) for part in path)] = leaf
    return out
