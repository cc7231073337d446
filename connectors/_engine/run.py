"""Runs a checked plan: each piece on what the one before it left, in the layout it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from epibatch.core.column_use import COLUMNS_READ
from epibatch.core.columns import Columns, note_columns
from epibatch.core.errors import PieceOutputError, add_context

from ...episodes._storage.indexing import HistoryWatch
from .agent_call import AgentCall
from .call import Call
from .columns import EpisodeColumn
from .layouts import hand_out, is_plain, to_columns, to_plain
from .modules import is_multi
from .plan import Plan, Step
from .step_watch import StepWatch

__all__ = ["columns_of", "run_plan"]


def run_plan(
    plan: Plan,
    batch: Any,
    call: Call | AgentCall,
    history: HistoryWatch,
    watches: Sequence[StepWatch] = (),
) -> Any:
    """Run all steps.

    Args:
        plan: What to run.
        batch: What to start from.
        call: What the run is about.
        history: Watches what plain pieces do to the episodes.
        watches: Are told how long each step took; without any no clock is read.

    Raises:
        PieceOutputError: a piece returned no dict.
        EpibatchError: whatever a piece raises, with pipeline and piece put in front.
    """
    grouped = call.grouped
    plain, before = grouped or bool(batch), "in the batch that the pipeline was given:"
    alone = not grouped and not is_multi(call.rl_module)
    spent, started = 0.0, perf_counter() if watches else 0.0
    for step in plan.steps:
        if plain and step.columnar:  # an error in it is one of the piece that left it, not of this one
            batch, plain = columns_of(batch, call, before), False
        piece: Any = step.piece
        try:
            if step.direct:
                if alone:
                    batch = piece.run(batch, call)
                else:
                    batch = piece.run_modules(batch, call) if grouped else piece.run_parts(batch, call)
            elif step.columnar:
                batch = _writing_run(step, batch, call)
            else:
                batch, plain = _plain_run(step, batch, call, history), True
                before = f"in {step.where}, the batch it left:"
        except Exception as error:
            add_context(error, f"in {step.where}:")
            if type(error) is KeyError and not step.columnar:
                note_columns(error, to_plain(batch, call), _added_later(plan, step, error))
            raise
        if watches:
            seconds = perf_counter() - started
            spent += seconds
            for watch in watches:
                watch.stepped(step, seconds, batch)
            started = perf_counter()  # what they took is nobody's
    for watch in watches:
        watch.finished(spent)
    return batch


def columns_of(batch: dict[str, Any], call: Call | AgentCall, before: str) -> Any:
    """A batch as columnar pieces take it.

    Args:
        batch: What was there before.
        call: The running call.
        before: Whose batch it is, for messages.
    """
    try:
        return to_columns(batch, call)
    except Exception as error:
        add_context(error, before)
        raise


def _writing_run(step: Step, batch: Any, call: Call | AgentCall) -> Any:
    """Run a columnar piece that may write to episodes: columns that were taken before do not show it, later ones do."""
    for columns in batch.groups.values() if call.grouped else (batch,):
        for column in columns.values():
            if type(column) is EpisodeColumn:
                column.settle()
    piece: Any = step.piece
    run = piece.run_modules if call.grouped else piece.run_parts if is_multi(call.rl_module) else piece.run
    out = run(batch, call)
    call.look_again()
    return out


def _plain_run(step: Step, batch: Any, call: Call | AgentCall, history: HistoryWatch) -> dict[str, Any]:
    if step.sees_bootstraps:
        call.lengthen()
    shown = hand_out(batch, call)
    if COLUMNS_READ in call.shared_data and step.piece.reads is None:  # what it reads cannot be known
        call.shared_data[COLUMNS_READ][None].update(shown, *(own for own in shown.values() if isinstance(own, Mapping)))
    history.writable, history.acting = step.writes_episodes or not call.training, call.training is False
    call.piece = step.piece
    try:
        out = step.piece(
            rl_module=call.rl_module,
            batch=shown,
            episodes=call.plain_episodes(),
            explore=call.explore,
            shared_data=call.shared_data,
            metrics=call.metrics,
            **call.kwargs,
        )
    finally:
        history.writable, history.acting = True, False
        call.piece = None
    if type(out) is not dict and not isinstance(out, Mapping):
        raise PieceOutputError(
            f"{type(step.piece).__name__}.__call__",
            expected="the batch dict, returned",
            found=f"{type(out).__name__}: {out!r}",
            do="end __call__ with `return batch`",
        )
    call.look_again(rewritten=step.piece.rewrites_observations)
    return {name: _unshared(value) for name, value in out.items()}


_GETTERS = {Columns.OBS: "get_observations", Columns.ACTIONS: "get_actions", Columns.REWARDS: "get_rewards"}


def _added_later(plan: Plan, step: Step, error: KeyError) -> str:
    """Advice for a piece that looks up a column before the piece that adds it; empty if no piece does."""
    name = error.args[0] if error.args else None
    for later in plan.steps[plan.steps.index(step) + 1 :]:
        if name in later.piece.writes:
            piece = later.where.split(", ", 1)[1]
            getter = f", or read episode.{_GETTERS[name]}()" if name in _GETTERS else ""
            return (
                f"It is added after this piece, by {piece}. Subclass ColumnTransform with columns = {name!r}, which "
                f"takes the rows from the episodes{getter}; or insert this piece after that one."
            )
    return ""


def _unshared(value: Any) -> Any:
    """Copies of batched arrays that are views: they may show an episode's storage, which tensors must not share."""
    if isinstance(value, np.ndarray):
        return value.copy() if value.base is not None else value
    if isinstance(value, dict) and not is_plain(value):
        return {key: _unshared(own) for key, own in value.items()}
    return value
