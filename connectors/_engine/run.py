"""Runs a checked plan: each piece on what the one before it left, in the layout it takes."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from operator import is_
from time import perf_counter
from typing import Any

import numpy as np

from epibatch.core.columns import COLUMNS_READ, Columns, add_column_hint
from epibatch.core.errors import PieceOutputError, add_context

from ...episodes.indexing import HistoryWatch
from ..step_watches import StepWatch
from .call import PipelineCall
from .chunks import ChunkGroup
from .columns import Batch, EpisodeColumn
from .layouts import is_plain, show, to_columns, to_plain
from .plan import Plan, Step


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
    total, start = 0.0, perf_counter() if watches else 0.0
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
                if type(error) is KeyError:
                    candidates = next(iter(columns.groups.values()), {}) if plain is None else plain
                    add_column_hint(error, candidates, _added_later(plan, step, error))
                raise
        if watches:
            seconds = perf_counter() - start
            total += seconds
            for watch in watches:
                watch.stepped(step, seconds, plain if columns is None else call.name_module(columns))
            start = perf_counter()  # the time they took is no piece's
    for watch in watches:
        watch.finished(total)
    if columns is not None:
        plain = to_plain(columns, call)
    call.groups = {}  # they refer to the call: else only Python's garbage collector would free them
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
    if not call.episodes:
        steps = [step for step in steps if not getattr(step.piece, "needs_episodes", False)]
    try:
        if len(columns) == 1:  # as in most calls
            ((key, group_columns),) = columns.items()
            group = call.groups[key]
            for step in steps:
                group_columns = step.piece.run(group_columns, group)
            columns[key] = group_columns
            return
        for step in steps:
            for key, group_columns in columns.items():
                group = call.groups[key]
                columns[key] = step.piece.run(group_columns, group)
    except Exception as error:
        if key is not None or (call.multi and group.batched):
            add_context(error, f"for module {group.module_id!r}:")
        add_context(error, f"in {step.where}:")
        if type(error) is KeyError:
            add_column_hint(error, group_columns, _added_later(plan, step, error))
        raise


def _run_whole(step: Step, batch: Batch, call: PipelineCall) -> Batch:
    """Run a columnar piece on all groups; if it writes to episodes, columns that were taken before do not show it."""
    piece: Any = step.piece
    if step.trusted:
        result: Batch = piece.run_all(batch, call)
        return result
    if step.writes_episodes:
        for columns in batch.groups.values():
            for column in columns.values():
                if type(column) is EpisodeColumn:
                    column.data  # noqa: B018  # copied now, before the piece may write to the episodes
    out: Batch = piece.run_all(batch, call)
    for key, columns in out.groups.items():
        if not isinstance(columns, Mapping) or tuple in map(type, columns):
            raise no_batch(piece, "run", columns)
        for name, column in columns.items():
            if type(column) is EpisodeColumn and column.parts is None:
                _check_rows(piece, name, column, call.groups[key])
    if step.writes_episodes:
        call.invalidate()
    return out


def _check_rows(piece: Any, name: str, column: EpisodeColumn, group: ChunkGroup) -> None:
    """Refuse a column of other rows than it says, or than its group has; bootstrap rows may be missing still."""
    expected, found = group.expected_rows, len(column)
    counts = np.ones_like(expected) if column.counts is None else column.counts
    checkable = not group.call.by_hand and not column.holds_objects
    fits = not checkable or any(np.array_equal(counts, rows) for rows in (expected, group.lengths))
    if not fits or found != counts.sum():
        raise PieceOutputError(
            f"{type(piece).__name__}.run, column {name!r}",
            expected=f"{int(expected.sum())} rows, {expected.tolist()} of its chunks",
            found=f"{found} rows, {counts.tolist()} as its counts say",
            do="return as many rows for each chunk as `group.counts` has, or one for each chunk while acting",
        )


def _run_plain(step: Step, batch: Any, call: PipelineCall, history: HistoryWatch) -> dict[str, Any]:
    if step.sees_bootstraps:
        call.add_bootstrap_step()
    if COLUMNS_READ in call.shared_data and step.piece.reads is None:  # what it reads cannot be known
        call.shared_data[COLUMNS_READ][None].update(batch, *(col for col in batch.values() if isinstance(col, Mapping)))
    history.acting = not (call.training or call.by_hand)
    history.writable = step.writes_episodes or call.by_hand or history.acting
    call.piece, originals = step.piece, call.plain_episodes()
    episodes = originals if not batch and originals is call.episodes else list(originals)
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
    if (type(out) is not dict and not isinstance(out, Mapping)) or tuple in map(type, out):  # a column has such keys
        raise no_batch(step.piece, "__call__", out)
    if len(episodes) != len(originals) or not all(map(is_, episodes, originals)):
        raise PieceOutputError(
            f"{type(step.piece).__name__}.__call__, its list of episodes",
            expected="the episodes that it was given, in their order",
            found=f"{len(episodes)} episodes after the call, {len(originals)} before, or in another order",
            do="leave episodes out before the pipeline is called, or in the first piece of a learner pipeline for one "
            "agent, before there are columns",
        )
    call.invalidate(rewritten=step.piece.rewrites_observations)
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
    for later_step in plan.steps[plan.steps.index(step) + 1 :]:
        if name in later_step.piece.writes:
            piece = later_step.where.split(", ", 1)[1]
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
        out = copy.copy(value)  # of the same class
        out.update({key: _unshared(part) for key, part in value.items()})
        return out
    return value
