"""What listed differences give where learner pieces are called by themselves, without a pipeline."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from batches.learner_differences import LearnerSituation
from batches.learner_runs import LearnerCall
from batches.snapshots import Flat, same_flat
from batches.stages import record_mismatches
from oracle.compare import Mismatch, Outcome, outcome, settle
from oracle.differences import difference
from oracle.libraries import EPIBATCH, RLLIB


@difference("no-steps", LearnerSituation)
def chunks_without_steps_have_no_rows(situation: LearnerSituation, mismatch: Mismatch) -> bool:
    """RLlib's pieces fail, or have a row for some columns of a chunk without steps; ours go by the other chunks."""
    if situation.way != "alone" or all(chunk.length for chunk in situation.call.chunks):
        return False
    if not situation.verdicts:
        error = mismatch.ours if isinstance(mismatch.ours, Exception) else None
        situation.verdicts.append(as_without_them(situation.call, Outcome(situation.ours, error)))
    return situation.verdicts[0]


def as_without_them(call: LearnerCall, ours: Outcome) -> bool:
    """Whether ours gives what it does without the chunks that have no steps, and that is as it should be."""
    kept = [i for i, chunk in enumerate(call.chunks) if chunk.length]
    if not kept:
        return not ours.kind and all(is_empty(leaf) for leaf in ours.value.final.values())
    fewer = replace(call, chunks=tuple(call.chunks[i] for i in kept))
    theirs, without = (outcome(lambda library=library: fewer.record(library, "alone")) for library in (RLLIB, EPIBATCH))
    found = LearnerSituation(fewer, "alone", without.value, theirs.value)
    if outcome(lambda: settle(theirs, without, found, record_mismatches)).kind:
        return False
    if ours.error or without.error:
        return told(ours.error, range(len(call.chunks))) == told(without.error, kept)
    names = {f"chunk {i}": f"chunk {kept.index(i)}" if i in kept else "" for i in range(len(call.chunks))}
    stages = [(ours.value.stages[name], flat) for name, flat in without.value.stages.items()]
    ends = [*stages, (ours.value.final, without.value.final)]
    return all(same_flat(renamed(flat, names), other) for flat, other in ends)


def told(error: Exception | None, places: Sequence[int]) -> tuple[type, str]:
    """What an error is and says, with the place of a chunk in another call for its name and place."""
    chunk = re.compile(r"episode '[^']*' \(chunk (\d+) of \d+\)")
    return type(error), chunk.sub(lambda found: f"chunk {places[int(found[1])]}", str(error))


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
