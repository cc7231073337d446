"""Sides in processes of their own: outputs come back, turns are timed there, faults are told."""

from __future__ import annotations

import pytest
from benchmarks.equality import check_all_same
from benchmarks.row import Options
from benchmarks.rows.learner import stateless
from benchmarks.workers import WorkerError, portable, stop_all, team


@pytest.fixture(autouse=True)
def no_processes_stay():
    yield
    stop_all()


@pytest.mark.slow
def test_a_row_in_two_processes():
    options = Options(quick=True, rllib=False)
    with team(stateless, options, ["epibatch", "floor"]) as sides:
        outputs = {name: side.output for name, side in sides.items()}
        check_all_same(outputs)
        assert outputs["epibatch"]["obs"].shape == (4096, 4)
        assert all(side.calls(1.0) == 1 and 0 < side.turn(1) < 60 for side in sides.values())
    with pytest.raises(WorkerError, match="KeyError: 'nobody'"), team(stateless, options, ["nobody"]):
        pass


def test_tensors_become_arrays():
    import torch

    output = portable({"a": {"b": torch.ones(2)}, "c": (torch.zeros(1), 5)})
    assert type(output["a"]["b"]).__name__ == "ndarray"
    assert output["c"][1] == 5 and output["c"][0].tolist() == [0.0]
