"""Learner rows: the episodes of an iteration into one train batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from benchmarks.columns import Episode, episodes
from benchmarks.equality import check_same
from benchmarks.floors import learner as floor
from benchmarks.libraries import (
    ACTIONS,
    MAX_SEQ_LEN,
    MODULE,
    box,
    config,
    library,
    library_names,
    rebuilt,
    single_agent_episode,
    spec,
)
from benchmarks.row import FLOOR, OURS, Options, Row, Workload, at_most, timed, times_faster
from benchmarks.timing import Side

Change = Callable[[SimpleNamespace, Any], None]


def batch_of(options: Options, **kinds: Any) -> list[Episode]:
    """32,768 steps in 160 episodes."""
    steps, count = (4096, 20) if options.quick else (32_768, 160)
    return episodes(steps, count, **kinds)


def library_side(name: str, columns: Sequence[Episode], kind: str = "float32", change: Change | None = None) -> Side:
    """A library's default learner pipeline on these episodes, made anew for every call.

    Args:
        name: Of the library.
        columns: The episodes' data.
        kind: Of the observations.
        change: Adds pieces to the pipeline.
    """
    import torch

    lib = library(name)
    space = box(columns[0].obs.shape[1:], kind)
    pipeline = config(lib, space).build_learner_connector(space, ACTIONS, device=torch.device("cpu"))
    if change is not None:
        change(lib, pipeline)
    state = columns[0].state["h"].shape[1] if columns[0].state else 0
    module = lib.MultiRLModule(rl_module_specs={MODULE: spec(lib, space, state)})
    fresh = rebuilt([single_agent_episode(lib, i, own, space) for i, own in enumerate(columns)])

    def run(given: Any) -> Any:
        return pipeline(rl_module=module, batch={}, episodes=given, shared_data={})[MODULE]

    return Side(run, fresh)


def workload(options: Options, columns: Sequence[Episode], plain: Callable[..., Any], **how: Any) -> Workload:
    """Both libraries, and the floor on the columns themselves.

    Args:
        options: How to measure.
        columns: The episodes' data.
        plain: Makes the floor's batch of them.
        **how: For `library_side`.
    """
    sides = {name: partial(library_side, name, columns, **how) for name in library_names(options)}
    sides[FLOOR] = partial(Side, lambda _: plain(columns), single=True)
    return Workload(sides, check_equal, sum(map(len, columns)))


def check_equal(outputs: Mapping[str, Any]) -> None:
    """Every column of every side is the same, bit for bit."""
    for name, output in outputs.items():
        if name != OURS:
            check_same(outputs[OURS], output, whose=name)


def stateless(options: Options) -> Workload:
    """L1."""
    return workload(options, batch_of(options), floor.stateless)


def recurrent(options: Options) -> Workload:
    """L2."""
    columns = batch_of(options, shape=(64,), state=64)
    return workload(options, columns, partial(floor.recurrent, width=MAX_SEQ_LEN))


ROWS = [
    Row(
        "L1",
        "learner, stateless, 32,768 steps in 160 episodes",
        timed(stateless),
        (at_most(2), times_faster(13)),
    ),
    Row(
        "L2",
        "learner, LSTM 64, sequences of 20, 32,768 steps",
        timed(recurrent),
        (at_most(2), times_faster(25)),
    ),
]
