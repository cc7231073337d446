"""Calls of pipelines held beside RLlib's, in every way that our pieces run."""

from __future__ import annotations

from batches import acting_runs, learner_runs
from batches.acting_differences import ActingSituation, both_pipelines
from batches.learner_differences import LearnerSituation, as_without_them
from batches.stages import record_mismatches
from oracle.compare import outcome, settle
from oracle.differences import listed
from oracle.libraries import EPIBATCH, RLLIB


def hold_learner(call: learner_runs.LearnerCall, ways: tuple[str, ...] = learner_runs.WAYS) -> list[bool]:
    """Run a call in RLlib and in ways of ours; what differs must be listed. Whether each way was equal."""
    theirs = outcome(lambda: call.record(RLLIB, "alone" if "alone" in ways else "plain"))
    equal: list[bool] = []
    for way in ways:
        ours = outcome(lambda way=way: call.record(EPIBATCH, way))
        if way == "alone" and not all(chunk.length for chunk in call.chunks):
            assert listed("no-steps") and as_without_them(call, ours), f"no-steps is not listed for {call}"
            equal.append(False)
            continue
        situation = LearnerSituation(call, way, ours.value, theirs.value)
        equal.append(settle(theirs, ours, situation, record_mismatches))
    return equal


def hold_acting(call: acting_runs.ActingCall, ways: tuple[str, ...] = acting_runs.WAYS) -> list[bool]:
    """The same for a vector step."""
    theirs = outcome(lambda: call.record(RLLIB, "alone" if "alone" in ways else "plain"))
    equal = []
    for way in ways:
        ours = outcome(lambda way=way: call.record(EPIBATCH, way))
        equal.append(settle(theirs, ours, ActingSituation(call, way, theirs.value), both_pipelines))
    return equal
