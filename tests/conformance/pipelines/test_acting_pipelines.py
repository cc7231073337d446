"""The default env-to-module and module-to-env pipelines beside RLlib's, behind every piece and at the end."""

from __future__ import annotations

from batches.acting_runs import acting_calls
from batches.beside import hold_acting
from oracle.cases import random_cases


@random_cases(call=acting_calls())
def test_a_vector_step(call):
    hold_acting(call)
