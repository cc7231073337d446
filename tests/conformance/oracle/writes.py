"""Writing to a column of both libraries' episodes: what is drawn, a slow model of it, and the listed differences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from epibatch.core.errors import UnknownNameError
from oracle.compare import Mismatch, Outcome, each, leaves, mismatches, outcome, position, stack, unstack
from oracle.differences import difference
from oracle.twins import Operation, Twins, is_nested


@dataclass(frozen=True)
class Write:
    """A write to a column.

    Attributes:
        column: a number, as the columns have yet to be drawn.
        more: rows given beyond those that the indices address.
        dtype: of the rows; None for the column's own.
        stacked: whether rows are given as arrays rather than as a list.
    """

    column: int
    indices: Any
    neg_index_as_lookback: bool = False
    more: int = 0
    dtype: str | None = None
    stacked: bool = False
    seed: int = 0


UNKNOWN = "no output"
"""Key of a model output that no chunk has."""


@difference("argument-errors", Operation)
def an_output_that_is_not_there(operation: Operation, mismatch: Mismatch) -> bool:
    """RLlib asserts that the key of the output exists; ours is named with the keys there are."""
    named = isinstance(mismatch.theirs, AssertionError) and isinstance(mismatch.ours, UnknownNameError)
    return operation.name == "set unknown" and mismatch.kind == "error" and named


def write(twins: Twins, what: Write) -> None:
    """Write to a column of both, or to a model output that neither has."""
    names = ["observations", "actions", "rewards", *twins.ours.extra_model_outputs, UNKNOWN]
    name = names[what.column % len(names)]
    if name == UNKNOWN:
        twins.do(
            "set unknown",
            lambda e: e.set_extra_model_outputs(key=UNKNOWN, new_data=[], at_indices=what.indices),
        )
        return
    buffer = getattr(twins.ours, name, None) or twins.ours.extra_model_outputs.get(name)
    if buffer is None or not buffer.len_incl_lookback():
        return
    before = each(np.copy, buffer.data)
    total, lookback = buffer.len_incl_lookback(), buffer.lookback
    at = outcome(lambda: addressed(what, lookback, total))
    single = not (what.indices is None or isinstance(what.indices, (slice, list, tuple, np.ndarray)))
    count = 1 if single else max((0 if at.error else len(at.value)) + what.more, 0)
    given = new_rows(before, what, count)
    given = given[0] if single else (stack(given) if what.stacked and given else given)
    options = {"at_indices": what.indices, "neg_index_as_lookback": what.neg_index_as_lookback}
    if name not in ("observations", "actions", "rewards"):
        call, options = "set_extra_model_outputs", {**options, "key": name}
    else:
        call = f"set_{name}"
    space = None if name not in ("observations", "actions") else getattr(twins.ours, name).space
    twins.do(
        "set",
        lambda e: getattr(e, call)(new_data=each(np.copy, given) if what.stacked and not single else given, **options),
        column=name,
        what=what,
        at=at,
        given=given,
        single=single,
        count=count,
        space=space,
    )


def new_rows(before: Any, what: Write, count: int) -> list[Any]:
    """Rows like those of a column, but turned around and of the type asked for."""
    order = np.random.default_rng(what.seed).integers(0, len(leaves(before)[0]), count)
    typed = each(lambda leaf: leaf[order].astype(what.dtype or leaf.dtype), before)
    return unstack(typed) if count else []


def addressed(what: Write, lookback: int, total: int) -> list[int]:
    """The positions that are written to.

    Raises:
        IndexError: one of them does not exist.
    """
    indices, backwards = what.indices, what.neg_index_as_lookback
    if indices is None:
        return list(range(lookback, total))
    if isinstance(indices, slice):
        step = indices.step or 1
        first, last = (lookback, total) if step > 0 else (total - 1, lookback - 1)
        start = first if indices.start is None else position(indices.start, lookback, total, backwards)
        stop = last if indices.stop is None else position(indices.stop, lookback, total, backwards)
        low, high = (max(start, 0), min(stop, total)) if step > 0 else (min(start, total - 1), max(stop, -1))
        return list(range(low, high, step))
    several = indices if isinstance(indices, (list, tuple, np.ndarray)) else [indices]
    at = [position(int(i), lookback, total, backwards) for i in several]
    if any(not 0 <= i < total for i in at):
        raise IndexError(indices)
    return at


def written(operation: Operation) -> Outcome:
    """The column after the write, stacked, by the rules for lists; or the error."""
    arguments = operation.arguments
    at, given = arguments["at"], arguments["given"]
    if at.error is not None:
        return at
    if not arguments["single"] and arguments["count"] != len(at.value):
        return Outcome(error=IndexError("another number of rows"))
    before = operation.before["columns"][arguments["column"]]["rows"]
    if not at.value:
        return Outcome(before)
    new = stack([given] if arguments["single"] else unstack(given) if arguments["what"].stacked else given)
    newest = arguments["column"] == "observations"  # it is held as it came until the next one

    def put(leaf: Any, rows: Any) -> Any:
        out = leaf.astype(rows.dtype if newest and len(leaf) == 1 else np.result_type(leaf, rows))
        for i, row in zip(at.value, rows):
            out[i] = row
        return out

    return Outcome(each(put, before, new))


def ours_is_right(operation: Operation, mismatch: Mismatch) -> bool:
    """Whether ours did what the rules for lists say and nothing else, or refused and changed nothing."""
    right = written(operation)
    if operation.ours_after is None:
        ours = mismatch.ours
        return Outcome(error=ours).kind == right.kind if isinstance(ours, Exception) else not right.kind
    before, name = operation.before, operation.arguments["column"]
    expected = before
    if not right.kind:
        columns = {**before["columns"], name: {**before["columns"][name], "rows": right.value}}
        rewards = columns["rewards"]
        total = before["return"] if name != "rewards" else float(np.sum(rewards["rows"][rewards["lookback"] :]))
        expected = {**before, "columns": columns, "return": total}
    return not mismatches(expected, operation.ours_after)


@difference("O20", Operation)
def numpy_integers_and_open_slices_backwards(operation: Operation, mismatch: Mismatch) -> bool:
    if operation.name != "set" or not ours_is_right(operation, mismatch):
        return False
    indices = operation.arguments["what"].indices
    if isinstance(indices, slice):
        return (indices.step or 1) < 0 and None in (indices.start, indices.stop)
    return not isinstance(indices, (int, list)) and indices is not None


@difference("set-arrays", Operation)
def setters_of_arrays(operation: Operation, mismatch: Mismatch) -> bool:
    """RLlib takes lists into lists and arrays into arrays, casts to their type, and asks the space about parts."""
    if operation.name != "set" or not ours_is_right(operation, mismatch):
        return False
    arguments, what = operation.arguments, operation.arguments["what"]
    arrays = operation.arrays[arguments["column"]]
    nested = is_nested(operation.before["columns"][arguments["column"]]["rows"])
    other_form = not arguments["single"] and what.stacked != arrays
    listed = isinstance(what.indices, list) and (what.more != 0 or (nested and what.stacked) or not what.indices)
    if listed or other_form:
        return True
    return arrays and (what.dtype is not None or (nested and arguments["space"] is not None))


@difference("O59", Operation)
def no_rows_at_all(operation: Operation, mismatch: Mismatch) -> bool:
    """RLlib looks at the first of the rows it is given even where there are none."""
    if operation.name != "set" or operation.arguments["count"] or not ours_is_right(operation, mismatch):
        return False
    return operation.arrays[operation.arguments["column"]]


@difference("column-types", Operation)
def rows_of_another_type(operation: Operation, mismatch: Mismatch) -> bool:
    """A list has the type of the rows that are in it now, a column one that also holds those it had."""
    if operation.name != "set" or mismatch.kind != "dtype" or operation.arrays[operation.arguments["column"]]:
        return False
    return ours_is_right(operation, mismatch) and np.array_equal(mismatch.theirs, mismatch.ours)
