"""Runs a checked plan: each piece on what the one before it left, in the layout it takes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np

from epibatch.core.errors import EpibatchError, PieceOutputError, add_context, explain
from epibatch.core.piece_names import snake_case

from ..episodes.indexing import HistoryWatch
from .call import Call
from .layouts import is_plain, to_columns, to_plain
from .plan import Plan, Step

__all__ = ["run_plan", "timed"]


class _LeftBatchError(Exception):
    """Carries an error past the piece that met it to the one that made it."""

    def __init__(self, cause: EpibatchError) -> None:
        super().__init__()
        self.cause = cause


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
        try:
            if step.columnar:
                if plain:
                    batch, plain = _columns(batch, call, before), False
                batch = _columnar_run(step, batch, call)
            else:
                batch, plain = _plain_run(step, batch, call, history), True
                before = f"in {step.where}, the batch it left:"
        except _LeftBatchError as error:
            raise error.cause from None
        except Exception as error:
            add_context(error, f"in {step.where}:")
            raise
    return batch


def _columns(batch: dict[str, Any], call: Call, before: str) -> dict[str, Any]:
    """The batch as columns; an error in it is one of the piece that left it."""
    try:
        return to_columns(batch, call)
    except EpibatchError as error:
        add_context(error, before)
        raise _LeftBatchError(error) from None


def _columnar_run(step: Step, batch: dict[str, Any], call: Call) -> dict[str, Any]:
    out: dict[str, Any]
    if call.metrics is None:
        out = step.piece.run(batch, call)  # type: ignore[attr-defined]
    else:
        with timed(call.metrics, call.kwargs, "timers", "connectors", snake_case(type(step.piece).__name__)):
            out = step.piece.run(batch, call)  # type: ignore[attr-defined]
    return out


def _plain_run(step: Step, batch: dict[str, Any], call: Call, history: HistoryWatch) -> dict[str, Any]:
    history.writable = step.writes_episodes or not call.training
    if step.sees_bootstraps:
        call.lengthen()
    with timed(call.metrics, call.kwargs, "timers", "connectors", snake_case(type(step.piece).__name__)):
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
    history.writable = True
    call.look_again()
    return {name: _unshared(value) for name, value in out.items()}


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
