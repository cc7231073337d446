"""Every default piece called by itself, on the layout that it takes, beside RLlib's."""

from __future__ import annotations

from batches.acting_runs import acting_calls
from batches.beside import hold_acting, hold_learner
from batches.learner_runs import learner_calls
from oracle.cases import random_cases


@random_cases(call=learner_calls(False, front=(), columns=(), batched=()))
def test_pieces_of_a_learner_pipeline(call):
    hold_learner(call, ("alone",))


@random_cases(call=acting_calls(users=()))
def test_pieces_of_acting_pipelines(call):
    hold_acting(call, ("alone",))
