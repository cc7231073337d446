"""Advantages of flat arrays, and minibatches, each by itself."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from benchmarks.columns import TERMINATED, lengths
from benchmarks.equality import check_all_same
from benchmarks.floors import kernels as floor
from benchmarks.names import FLOOR, OURS
from benchmarks.row import Options, Row, Workload, at_most, below, timed
from benchmarks.timing import Side

GAE = {"gamma": 0.99, "lambda_": 0.95}
MINIBATCHES, EPOCHS = 4, 5
WIDTHS = {  # 277 floats a row
    "obs": 48,
    "reference": 26,
    "critic_obs": 48,
    "critic_reference": 26,
    "actions": 19,
    "action_means": 19,
    "action_deviations": 19,
    "teacher_actions": 19,
    "curiosity_obs": 48,
    "rewards": 0,
    "vf_preds": 0,
    "advantages": 0,
    "value_targets": 0,
    "action_logp": 0,
}
FLAGS = ("reference_mask", "critic_reference_mask")


def segments(options: Options) -> dict[str, Any]:
    """32,768 steps in 160 segments, one after the other."""
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
    ways = {f"{FLOOR}: blocks": floor.advantages_in_blocks, f"{FLOOR}: filter": floor.advantages_by_filter}
    sides = {name: partial(Side, lambda _, way=way: {"advantages": way(given, **GAE)}) for name, way in ways.items()}
    return Workload({OURS: partial(advantages_side, given), **sides}, check_advantages, len(given["rewards"]))


def advantages_side(given: Mapping[str, Any]) -> Side:
    """epibatch's two kernels, and the type that a batch has."""
    from epibatch.core.advantages import generalized_advantages, td_errors

    columns = [given[name] for name in ("rewards", "values", "terminateds", "counts")]

    def run(_: Any) -> dict[str, Any]:
        errors = td_errors(*columns, GAE["gamma"], given["bootstraps"])
        return {"advantages": generalized_advantages(errors, given["counts"], **GAE).astype(np.float32)}

    return Side(run)


def check_advantages(outputs: Mapping[str, Any]) -> None:
    """The block-wise floor sums in float32."""
    check_all_same(outputs, close={"advantages": 1e-4})


def rollout(options: Options) -> dict[str, Any]:
    """4,096 environments, 24 steps: 98,304 rows."""
    import torch

    rows, generator = (256 if options.quick else 4096) * 24, torch.Generator().manual_seed(0)
    batch = {
        name: torch.randn(*((rows, width) if width else (rows,)), generator=generator) for name, width in WIDTHS.items()
    }
    return {**batch, **{name: torch.rand(rows, generator=generator) > 0.5 for name in FLAGS}}


def minibatches(options: Options) -> Workload:
    """Five epochs of four minibatches."""
    rows = (256 if options.quick else 4096) * 24
    sides = {OURS: partial(minibatches_side, options), FLOOR: partial(plain_minibatches_side, options)}
    return Workload(sides, check_all_same, rows * EPOCHS)


def minibatches_side(options: Options) -> Side:
    """epibatch's `Minibatches`, shuffled once."""
    import torch

    from epibatch.learner import Minibatches

    batch = rollout(options)
    size = len(batch["obs"]) // MINIBATCHES

    def run(_: Any) -> list[Any]:
        generator = torch.Generator().manual_seed(1)
        return list(Minibatches(batch, size=size, epochs=EPOCHS, shuffle="once", generator=generator))

    return Side(run, single=True, show=shown)


def plain_minibatches_side(options: Options) -> Side:
    """Shuffled once, and sliced."""
    batch = rollout(options)
    size = len(batch["obs"]) // MINIBATCHES
    return Side(lambda _: list(floor.minibatches(batch, size, EPOCHS, seed=1)), single=True, show=shown)


def shown(minibatches: list[dict[str, Any]]) -> dict[str, Any]:
    """How many there are, and what is in them: the first epoch's rows, and a sum over each."""
    first = {name: np.concatenate([own[name].numpy() for own in minibatches[:MINIBATCHES]]) for name in minibatches[0]}
    sums = [[float(column.sum()) for column in own.values()] for own in minibatches]
    return {"count": len(minibatches), "sums": np.array(sums), **first}


ROW_MAP = [
    Row("GAE", "advantages of 32,768 steps in 160 segments", timed(advantages), (below(0.5e-3, "<= 0.5 ms"),)),
    Row(
        "minibatches",
        "PPO minibatches: 98,304 rows of 277 floats, 5 epochs of 4",
        timed(minibatches),
        (at_most(1.2),),
    ),
]
