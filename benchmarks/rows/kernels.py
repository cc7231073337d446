"""Advantages of flat arrays, and minibatches, each by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from benchmarks.checks import check_all_same
from benchmarks.floors.learner import discounted_sums, one_step_errors
from benchmarks.row import FLOOR, OURS, Options, Row, Timed, Workload, at_most, below
from benchmarks.timing import Side
from benchmarks.workloads import TERMINATED, lengths

GAE = {"gamma": 0.99, "lambda_": 0.95}
MINIBATCHES, EPOCHS = 4, 5
WIDTHS = (48, 26, 48, 26, 19, 19, 19, 19, 48, 0, 0, 0, 0, 0)  # 277 floats a row
FLAGS = 2


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


def rollout(options: Options) -> dict[str, Any]:
    """Return 4,096 environments, 24 steps: 98,304 rows."""
    import torch

    rows, generator = (256 if options.quick else 4096) * 24, torch.Generator().manual_seed(0)
    shapes = [(rows, width) if width else (rows,) for width in WIDTHS]
    columns = [torch.randn(*shape, generator=generator) for shape in shapes]
    columns += [torch.rand(rows, generator=generator) > 0.5 for _ in range(FLAGS)]
    return {f"column{i}": column for i, column in enumerate(columns)}


def minibatches(options: Options) -> Workload:
    """Five epochs of four minibatches, shuffled once."""
    sides = {OURS: partial(minibatches_side, options, by_epibatch), FLOOR: partial(minibatches_side, options, plain)}
    return Workload(sides, check_all_same)


Cut = Callable[[Mapping[str, Any], int, Any], Iterable[Any]]


def minibatches_side(options: Options, cut: Cut) -> Side:
    """Return the side that cuts minibatches of a batch."""
    import torch

    batch = rollout(options)
    size = len(batch["column0"]) // MINIBATCHES
    return Side(lambda _: list(cut(batch, size, torch.Generator().manual_seed(1))), single=True, show=shown)


def by_epibatch(batch: Mapping[str, Any], size: int, generator: Any) -> Iterable[Any]:
    """Cut them by `Minibatches`."""
    from epibatch.learner import Minibatches

    return Minibatches(batch, size=size, epochs=EPOCHS, shuffle="once", generator=generator)


def plain(batch: Mapping[str, Any], size: int, generator: Any) -> Iterable[Any]:
    """Shuffle every column once, then slice it, the same in every epoch."""
    import torch

    rows = len(batch["column0"])
    order = torch.randperm(rows, generator=generator).numpy()
    shuffled = {name: torch.from_numpy(column.numpy().take(order, axis=0)) for name, column in batch.items()}
    for _ in range(EPOCHS):
        for start in range(0, rows, size):
            yield {name: column[start : start + size] for name, column in shuffled.items()}


def shown(minibatches: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how many there are, and what is in them: the first epoch's rows, and a sum over each."""
    first = {name: np.concatenate([own[name].numpy() for own in minibatches[:MINIBATCHES]]) for name in minibatches[0]}
    sums = [[float(column.sum()) for column in own.values()] for own in minibatches]
    return {"count": len(minibatches), "sums": np.array(sums), **first}


ROWS = [
    Row("GAE", "advantages of 32,768 steps in 160 segments", Timed(advantages), (below(0.5e-3, "<= 0.5 ms"),)),
    Row(
        "minibatches",
        "PPO minibatches: 98,304 rows of 277 floats, 5 epochs of 4",
        Timed(minibatches),
        (at_most(1.2),),
    ),
]
