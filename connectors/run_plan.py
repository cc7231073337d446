"""Runs a checked plan: each piece on what the one before it left, in the layout it takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from epibatch.core.errors import PieceOutputError, add_context, explain
from epibatch.core.piece_names import snake_case

from ..episodes.indexing import HistoryWatch
from .call import Call
from .layouts import is_plain, to_columns, to_plain
from .plan import Plan, Step

__all__ = ["run_plan", "timed"]


def run_plan(plan: Plan, batch: dict[str, Any], call: Call, history: HistoryWatch) -> dict[str, Any]:
    """Run all steps.

    Args:
        plan: What to run.
        batch: What to start from.
        call: What the run is about.
        history: Watches what plain pieces do to the episodes.

    Raises:
        PieceOutputError: a piece returned no dict.
        EpibatchError: whatever a piece raises, with pipeline and piece put in front.
    """
    plain, before = bool(batch), "in the batch that the pipeline was given:"
    for step in plan.steps:
        if step.columnar and plain:  # an error in it is one of the piece that left it, not of this one
            batch, plain = _columns(batch, call, before), False
        try:
            if step.columnar:
                batch = _columnar_run(step, batch, call)
            else:
                batch, plain = _plain_run(step, batch, call, history), True
                before = f"in {step.where}, the batch it left:"
        except Exception as error:
            add_context(error, f"in {step.where}:")
            raise
    return batch


def _columns(batch: dict[str, Any], call: Call, before: str) -> dict[str, Any]:
    try:
        return to_columns(batch, call)
    except Exception as error:
        add_context(error, before)
        raise


def _columnar_run(step: Step, batch: dict[str, Any], call: Call) -> dict[str, Any]:
    out: dict[str, Any]
    if call.metrics is None:
        out = step.piece.run(batch, call)  # type: ignore[attr-defined]
    else:
        with timed(call.metrics, call.kwargs, "timers", "connectors", snake_case(type(step.piece).__name__)):
            out = step.piece.run(batch, call)  # type: ignore[attr-defined]
    return out


def _plain_run(step: Step, batch: dict[str, Any], call: Call, history: HistoryWatch) -> dict[str, Any]:
    if step.sees_bootstraps:
        call.lengthen()
    with (
        _writable(history, step.writes_episodes or not call.training),
        timed(call.metrics, call.kwargs, "timers", "connectors", snake_case(type(step.piece).__name__)),
    ):
        out = step.piece(
            rl_module=call.rl_module,
            batch=to_plain(batch, call),
            episodes=call.plain_episodes(),
            explore=call.explore,
            shared_data=call.shared_data,
            metrics=call.metrics,
            **call.kwargs,
        )
    if type(out) is not dict and not isinstance(out, Mapping):
        raise PieceOutputError(
            explain(
                f"{type(step.piece).__name__}.__call__",
                expected="the batch dict, returned",
                found=f"{type(out).__name__}: {out!r}",
                do="end __call__ with `return batch`",
            )
        )
    call.look_again()
    return {name: _unshared(value) for name, value in out.items()}


@contextmanager
def _writable(history: HistoryWatch, writable: bool) -> Iterator[None]:
    history.writable = writable
    try:
        yield
    finally:
        history.writable = True


def _unshared(value: Any) -> Any:
    """Copies of batched arrays that are views: they may show an episode's storage, which tensors must not share."""
    if isinstance(value, np.ndarray):
        return value.copy() if value.base is not None else value
    if isinstance(value, dict) and not is_plain(value):
        return {key: _unshared(own) for key, own in value.items()}
    return value


def timed(metrics: Any, kwargs: dict[str, Any], *key: str) -> Any:
    """A context that logs its seconds under the caller's metrics prefix; nothing without a logger."""
    if metrics is None:
        return nullcontext()
    prefix = kwargs.get("metrics_prefix_key") or ()
    return metrics.log_time((*prefix, *key))
