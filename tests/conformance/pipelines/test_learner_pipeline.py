"""The default learner pipelines beside RLlib's, behind every piece and at the end."""

from __future__ import annotations

from batches.beside import hold_learner
from batches.learner_runs import WAYS, learner_calls
from oracle.cases import random_cases


@random_cases(call=learner_calls(False))
def test_train_batches(call):
    hold_learner(call, (*WAYS, "two pipelines"))


@random_cases(call=learner_calls(True))
def test_train_batches_with_bootstrap_rows_and_advantages(call):
    hold_learner(call)
