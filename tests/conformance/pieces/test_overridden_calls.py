"""Subclasses of built-in pieces that override `__call__`, in pipelines beside RLlib's."""

from __future__ import annotations

from batches.acting_runs import acting_calls
from batches.beside import hold_acting, hold_learner
from batches.learner_runs import learner_calls
from oracle.cases import random_cases


@random_cases(call=learner_calls(False))
def test_overridden_pieces_of_a_learner_pipeline(call):
    hold_learner(call, ("overriding",))


@random_cases(call=learner_calls(True))
def test_overridden_pieces_with_bootstrap_rows_and_advantages(call):
    hold_learner(call, ("overriding",))


@random_cases(call=acting_calls())
def test_overridden_pieces_of_acting_pipelines(call):
    hold_acting(call, ("overriding",))


@random_cases(call=learner_calls(False))
def test_two_learner_pipelines_one_after_the_other(call):
    hold_learner(call, ("two pipelines",))
