"""The default env-to-module and module-to-env pipelines beside RLlib's, behind every piece and at the end."""

from __future__ import annotations

from batches.acting_differences import ActingSituation
from batches.acting_runs import WAYS, ActingCall, acting_calls
from batches.stages import Record, record_mismatches
from oracle.cases import random_cases
from oracle.compare import Mismatch, outcome, settle
from oracle.libraries import EPIBATCH, RLLIB


def both_ways(theirs: tuple[Record, Record], ours: tuple[Record, Record]) -> list[Mismatch]:
    return [found for a, b in zip(theirs, ours) for found in record_mismatches(a, b)]


def hold_beside_rllib(call: ActingCall) -> list[bool]:
    """Run a call in RLlib and in every way of ours; what differs must be listed. Whether each way was equal."""
    theirs = outcome(lambda: call.record(RLLIB))
    equal = []
    for way in WAYS:
        ours = outcome(lambda way=way: call.record(EPIBATCH, way))
        equal.append(settle(theirs, ours, ActingSituation(call, way), both_ways))
    return equal


@random_cases(call=acting_calls())
def test_a_vector_step(call):
    hold_beside_rllib(call)
