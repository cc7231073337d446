"""The default learner pipelines beside RLlib's, behind every piece and at the end."""

from __future__ import annotations

from batches.learner_differences import LearnerSituation
from batches.learner_runs import WAYS, LearnerCall, learner_calls
from batches.stages import Record, record_mismatches
from oracle.cases import random_cases
from oracle.compare import outcome, settle
from oracle.libraries import EPIBATCH, RLLIB


def hold_beside_rllib(call: LearnerCall) -> list[bool]:
    """Run a call in RLlib and in every way of ours; what differs must be listed. Whether each way was equal."""
    theirs = outcome(lambda: call.record(RLLIB))
    equal: list[bool] = []
    memory: list[Record] = []
    for way in WAYS:
        ours = outcome(lambda way=way: call.record(EPIBATCH, way))
        situation = LearnerSituation(call, way, ours.value, theirs.value, memory)
        equal.append(settle(theirs, ours, situation, record_mismatches))
    return equal


@random_cases(call=learner_calls(False))
def test_train_batches(call):
    hold_beside_rllib(call)


@random_cases(call=learner_calls(True))
def test_train_batches_with_bootstrap_rows_and_advantages(call):
    hold_beside_rllib(call)
