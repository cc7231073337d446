"""Runs a checked plan: each piece on what the one before it left, in the layout it takes."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from operator import is_
from time import perf_counter
from typing import Any

import numpy as np

from epibatch.core.columns import COLUMNS_READ, Columns, note_columns
from epibatch.core.errors import PieceOutputError, add_context

from ...episodes._storage.indexing import HistoryWatch
from .call import PipelineCall
from .columns import Batch, EpisodeColumn
from .layouts import is_plain, show, to_columns, to_plain
from .plan import Plan, Step
from .step_watch import StepWatch

__all__ = ["columns_of", "no_batch", "run_plan"]


def run_plan(
    plan: Plan,
    batch: Mapping[Any, Any],
    call: PipelineCall,
    history: HistoryWatch,
    watches: Sequence[StepWatch] = (),
) -> Any:
    """Run all steps.

    Args:
        plan: What to run.
        batch: What to start from, as a plain batch.
        call: What the run is about.
        history: Watches what plain pieces do to the episodes.
        watches: Are told how long each step took; without any no clock is read.

    Returns:
        The plain batch.

    Raises:
        PieceOutputError: a piece returned no dict.
        EpibatchError: whatever a piece raises, with pipeline and piece named first.
    """
    plain: Any = batch  # one of these two is None
    columns: Any = None
    if not batch and not call.mapped:
        plain, columns = None, Batch({key: {} for key in call.groups})
    before = "in the batch that the pipeline was given:"
    spent, started = 0.0, perf_counter() if watches else 0.0
    for steps in [(step,) for step in plan.steps] if watches else plan.stretches:
        step = steps[0]
        if columns is None and step.columnar:  # an error in it is one of the piece that left it, not of this one
            columns, plain = columns_of(plain, call, before), None
        if step.by_group:
            _run_by_group(steps, columns.groups, call, plan)
        else:
            try:
                if step.columnar:
                    columns = _run_whole(step, columns, call)
                else:
                    plain = plain if columns is None else show(columns, call)
                    columns, before = None, f"in {step.where}, the batch it left:"
                    plain = _run_plain(step, plain, call, history)
            except Exception as error:
                add_context(error, f"in {step.where}:")
                if type(error) is KeyError and plain is not None:
                    note_columns(error, plain, _added_later(plan, step, error))
                raise
        if watches:
            seconds = perf_counter() - started
            spent += seconds
            for watch in watches:
                watch.stepped(step, seconds, plain if columns is None else call.as_shown(columns))
            started = perf_counter()  # the time they took is no piece's
    for watch in watches:
        watch.finished(spent)
    if columns is not None:
        plain = to_plain(columns, call)
    call.close()
    return plain


def columns_of(plain: Mapping[Any, Any], call: PipelineCall, before: str) -> Batch:
    """Return the batch as columnar pieces take it; an error names the piece that made the batch."""
    try:
        return to_columns(plain, call)
    except Exception as error:
        add_context(error, before)
        raise


def _run_by_group(steps: Sequence[Step], columns: dict[Any, dict[str, Any]], call: PipelineCall, plan: Plan) -> None:
    """Run columnar pieces one after the other, each on one group after the other.

    Args:
        steps: The pieces.
        columns: Those of each group, which are replaced.
        call: The running call.
        plan: The plan that the pieces are of.
    """
    step: Any
    try:
        if len(columns) == 1:  # as in most calls
            ((key, own),) = columns.items()
            group = call.groups[key]
            for step in steps:
                own = step.piece.run(own, group)
                if own is None:
                    raise no_batch(step.piece, "run", own)
            columns[key] = own
            return
        for step in steps:
            for key, own in columns.items():
                group = call.groups[key]
                columns[key] = out = step.piece.run(own, group)
                if out is None:
                    raise no_batch(step.piece, "run", out)
    except Exception as error:
        if call.several or call.mapped or (call.multi and group.batched):
            add_context(error, f"for module {group.module_id!r}:")
        add_context(error, f"in {step.where}:")
        if type(error) is KeyError:
            note_columns(error, own, _added_later(plan, step, error))
        raise


def _run_whole(step: Step, batch: Batch, call: PipelineCall) -> Batch:
    """Run a columnar piece on all groups; if it writes to episodes, columns that were taken before do not show it."""
    piece: Any = step.piece
    if not step.writes_episodes:
        whole: Batch = piece.run_all(batch, call)
        return whole
    for columns in batch.groups.values():
        for column in columns.values():
            if type(column) is EpisodeColumn:
                column.settle()
    out: Batch = piece.run_all(batch, call)
    call.look_again()
    return out


def _run_plain(step: Step, batch: Any, call: PipelineCall, history: HistoryWatch) -> dict[str, Any]:
    if step.sees_bootstraps:
        call.lengthen()
    if COLUMNS_READ in call.shared_data and step.piece.reads is None:  # what it reads cannot be known
        call.shared_data[COLUMNS_READ][None].update(batch, *(own for own in batch.values() if isinstance(own, Mapping)))
    history.writable, history.acting = step.writes_episodes or not call.training, call.training is False
    call.piece, given = step.piece, call.plain_episodes()
    episodes = given if not batch and given is call.episodes else list(given)
    try:
        out = step.piece(
            rl_module=call.rl_module,
            batch=batch,
            episodes=episodes,
            explore=call.explore,
            shared_data=call.shared_data,
            metrics=call.metrics,
            **call.kwargs,
        )
    finally:
        history.writable, history.acting = True, False
        call.piece = None
    if type(out) is not dict and not isinstance(out, Mapping):
        raise no_batch(step.piece, "__call__", out)
    if len(episodes) != len(given) or not all(map(is_, episodes, given)):
        raise PieceOutputError(
            f"{type(step.piece).__name__}.__call__, its list of episodes",
            expected="the episodes that it was given, in their order",
            found=f"{len(episodes)} episodes after the call, {len(given)} before, or in another order",
            do="leave episodes out before the pipeline is called, or in the first piece of a learner pipeline for one "
            "agent, before there are columns",
        )
    call.look_again(rewritten=step.piece.rewrites_observations)
    return {name: _unshared(value) for name, value in out.items()}


def no_batch(piece: Any, method: str, out: Any) -> PieceOutputError:
    """Return the error of a piece whose `__call__` or `run` returned something else than a batch."""
    return PieceOutputError(
        f"{type(piece).__name__}.{method}",
        expected="the batch dict, returned",
        found=f"{type(out).__name__}: {out!r}",
        do=f"end {method} with `return {'columns' if method == 'run' else 'batch'}`",
    )


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
        own = copy.copy(value)  # of the same class
        own.update({key: _unshared(part) for key, part in value.items()})
        return own
    return value
