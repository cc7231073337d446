"""Every default piece called by itself, on the layout that it takes, beside RLlib's."""

from __future__ import annotations

from batches.acting_differences import ActingSituation
from batches.acting_runs import acting_calls
from batches.learner_differences import LearnerSituation
from batches.learner_runs import learner_calls
from batches.stages import record_mismatches
from oracle.cases import random_cases
from oracle.compare import outcome, settle
from oracle.libraries import EPIBATCH, RLLIB


@random_cases(call=learner_calls(False, alone=True, numpy=True, front=(), columns=(), batched=()))
def test_pieces_of_a_learner_pipeline(call):
    theirs, ours = (outcome(lambda library=library: call.record(library, "alone")) for library in (RLLIB, EPIBATCH))
    settle(theirs, ours, LearnerSituation(call, "alone", ours.value, theirs.value), record_mismatches)


@random_cases(call=acting_calls(users=()))
def test_pieces_of_acting_pipelines(call):
    theirs, ours = (outcome(lambda library=library: call.record(library, "alone")) for library in (RLLIB, EPIBATCH))

    def both(one, other):
        return [found for a, b in zip(one, other) for found in record_mismatches(a, b)]

    settle(theirs, ours, ActingSituation(call, "alone"), both)
