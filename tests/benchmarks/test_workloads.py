"""All sides of every row that takes turns give the same values; a side that does not is found out."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.equality import DifferentValuesError
from benchmarks.names import OURS
from benchmarks.row import Options, Timed
from benchmarks.rows import acting, agents, all_rows, kernels, learner, storage
from benchmarks.workers import as_arrays

OPTIONS = Options(quick=True, rllib=False)
ROW_MAP = {row.name: row for family in (learner, acting, kernels, storage, agents) for row in family.ROW_MAP}
SHARED = {name for name, row in ROW_MAP.items() if len(row.measure.build(OPTIONS).sides) > 1}


def outputs_of(name):
    workload = ROW_MAP[name].measure.build(OPTIONS)
    return workload, {side: as_arrays(make().once()) for side, make in workload.sides.items()}


@pytest.mark.parametrize("name", sorted(ROW_MAP))
def test_sides_give_the_same(name):
    workload, outputs = outputs_of(name)
    assert OURS in outputs
    workload.check(outputs)


@pytest.mark.parametrize("name", sorted(SHARED))
def test_one_value_that_differs_is_found(name):
    workload, outputs = outputs_of(name)
    spoil(outputs[OURS])
    with pytest.raises(DifferentValuesError):
        workload.check(outputs)


def spoil(output):
    """Change one number: the first of the first column with several."""
    for name, column in output.items():
        if isinstance(column, dict):
            return spoil(column)
        changed = np.array(column)
        if changed.size > 1:
            changed.flat[0] = not changed.flat[0] if changed.dtype == bool else changed.flat[0] + 1
            output[name] = changed
            return None
    raise AssertionError("nothing to spoil")


def test_learner_rows_have_the_steps_they_say():
    for name, steps in (("L1", 32_768), ("L2", 32_768), ("L5", 32_768), ("L6", 32_768), ("L4", 32 * 200 * 8)):
        assert ROW_MAP[name].measure.build(Options(rllib=False)).steps == steps
        assert f"{steps:,}" in ROW_MAP[name].what or name in ("L6", "L4")


def test_all_families_are_in_the_table():
    assert ROW_MAP.keys() <= {row.name for row in all_rows()}
    assert all(isinstance(row.measure, Timed) for row in ROW_MAP.values())
