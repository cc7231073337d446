"""Advantages of flat arrays, by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from benchmarks.checks import check_all_same
from benchmarks.floors.learner import discounted_sums, one_step_errors
from benchmarks.row import FLOOR, OURS, Options, Row, Timed, Workload, below
from benchmarks.timing import Side
from benchmarks.workloads import TERMINATED, lengths

GAE = {"gamma": 0.99, "lambda_": 0.95}


def segments(options: Options) -> dict[str, Any]:
    """Return 32,768 steps in 160 segments, one after the other."""
    steps, count = (4096, 20) if options.quick else (32_768, 160)
    rng, counts = np.random.default_rng(0), np.array(lengths(steps, count))
    terminateds = np.zeros(steps, np.bool_)
    terminateds[(np.cumsum(counts) - 1)[np.arange(count) % 3 == TERMINATED]] = True
    numbers = {name: rng.standard_normal(steps).astype(np.float32) for name in ("rewards", "values")}
    bootstraps = rng.standard_normal(count).astype(np.float32)
    return {**numbers, "terminateds": terminateds, "counts": counts, "bootstraps": bootstraps}


def advantages(options: Options) -> Workload:
    """GAE."""
    given = segments(options)
    sides = {OURS: partial(advantages_side, given), FLOOR: partial(advantages_floor_side, given)}
    return Workload(sides, partial(check_all_same, close={"advantages": 1e-4}))  # the floor sums in float32


def advantages_side(given: Mapping[str, Any]) -> Side:
    """Return epibatch's two kernels, and the type that a batch has."""
    from epibatch.core.advantages import generalized_advantages, td_errors

    columns = [given[name] for name in ("rewards", "values", "terminateds", "counts")]

    def run(_: Any) -> dict[str, Any]:
        errors = td_errors(*columns, GAE["gamma"], given["bootstraps"])
        return {"advantages": generalized_advantages(errors, given["counts"], **GAE).astype(np.float32)}

    return Side(run)


def advantages_floor_side(given: Mapping[str, Any]) -> Side:
    """Return the floor; see `discounted_sums`."""
    gamma, factor = GAE["gamma"], GAE["gamma"] * GAE["lambda_"]
    columns = [given[name] for name in ("rewards", "values", "terminateds")]

    def run(_: Any) -> dict[str, Any]:
        errors = one_step_errors(*columns, gamma, np.cumsum(given["counts"]) - 1, given["bootstraps"])
        return {"advantages": discounted_sums(errors, given["counts"].tolist(), factor)}

    return Side(run)


ROWS = [Row("GAE", "advantages of 32,768 steps in 160 segments", Timed(advantages), (below(0.5e-3, "<= 0.5 ms"),))]
