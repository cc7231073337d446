"""Operations on the same episode of both libraries: what they have to give, and where RLlib is listed to differ.

Ours has to do what the slow functions here say, always; RLlib's has to do the same, but for listed differences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from epibatch.core.errors import UnknownNameError
from oracle.compare import Mismatch, Outcome, difference, each, leaves, mismatches, outcome, position, settle, unstack
from oracle.episodes import Chunk, extra_rows, reward_rows, rows, state_rows
from oracle.reads import compare_read
from oracle.twins import IDS, Operation, Twins, array_columns, buffer_of, content, is_nested

ALWAYS = ("observations", "actions", "rewards")
"""Columns that an episode has without any rows too."""


def kind_of(side: Any) -> str:
    """The builtin that an error is, as `Outcome.kind` has it; empty for other values."""
    return Outcome(error=side).kind if isinstance(side, Exception) else ""


# -- parts -------------------------------------------------------------------------------------------


def cut(twins: Twins, k: int) -> None:
    """Cut both, and go on with what came out."""
    before = content(twins.ours)
    go_on(twins, *twins.do("cut", lambda e: e.cut(k), right=cut_off(before, min(k, steps_of(before))), k=k))


def slice_(twins: Twins, wanted: slice, lookback: int | None) -> None:
    """Slice both, and go on with what came out."""
    right = sliced(content(twins.ours), wanted, lookback)
    call = lambda e: e.slice(wanted, len_lookback_buffer=lookback)  # noqa: E731
    go_on(twins, *twins.do("slice", call, right=right, wanted=wanted, lookback=lookback))


def go_on(twins: Twins, theirs: Outcome, ours: Outcome) -> None:
    """Take the episodes that a call gave in the place of those before."""
    if ours.error is not None:
        return
    if twins.alike:
        twins.theirs, twins.ours = theirs.value, ours.value
    else:
        twins.adopt(ours.value)


def steps_of(state: dict[str, Any]) -> int:
    """Steps that an episode holds by its content, those of the lookback included."""
    rows = state["columns"]["rewards"]["rows"]
    return 0 if rows is None else len(rows)


def cut_off(before: dict[str, Any], kept: int) -> dict[str, Any] | None:
    """What the chunk after a cut holds: the last rows as lookback, and no steps."""
    if kept < 0:
        return None
    columns = {}
    for key, column in before["columns"].items():
        more = int(key == "observations")
        rows = each(lambda leaf, n=kept + more: leaf[len(leaf) - n :], column["rows"]) if kept + more else None
        if rows is not None or key in ALWAYS:
            columns[key] = {"rows": rows, "lookback": kept, "length": more}
    return {
        **before,
        **{"t_started": before["t"], "steps": [0] * 3, "return": 0.0, "columns": columns},
        "infos": {"rows": before["infos"]["rows"][-(kept + 1) :], "lookback": kept, "length": 1},
    }


def sliced(before: dict[str, Any], wanted: slice, lookback: int | None) -> dict[str, Any] | None:
    """What a slice holds."""
    if (lookback or 0) < 0:
        return None
    length = before["steps"][0]
    start, stop, step = wanted.indices(length)
    if step < 0:
        start = stop = max(start, 0)
    stop, step = max(start, stop), max(step, 1)

    def chosen(total: int, have: int, more: int) -> tuple[list[int], int]:
        """The rows that are copied, by their positions, and how many of them are lookback."""
        if not total:
            return [], 0
        first = have + start
        keep = min(have if lookback is None else lookback, first)
        return [*range(first - keep, first), *range(first, have + stop, step)] + [have + stop] * more, keep

    columns = {}
    for key, column in before["columns"].items():
        total = 0 if column["rows"] is None else len(leaves(column["rows"])[0])
        at, keep = chosen(total, column["lookback"], int(key == "observations"))
        if at or key in ALWAYS:
            rows = each(lambda leaf, at=at: leaf[at], column["rows"]) if at else None
            columns[key] = {"rows": rows, "lookback": keep, "length": max(len(at) - keep, 0)}
    at, keep = chosen(len(before["infos"]["rows"]), before["infos"]["lookback"], 1)
    steps, rewards = columns["rewards"]["length"], columns["rewards"]["rows"]
    flags = [before[name] and stop == length for name in ("is_terminated", "is_truncated")]
    started = before["t_started"] + start
    return {
        **before,
        **{"t": started + steps, "t_started": started, "steps": [steps] * 3, "columns": columns},
        **{"is_terminated": flags[0], "is_truncated": flags[1], "is_done": any(flags)},
        "is_reset": columns["observations"]["length"] > 0,
        "return": float(np.sum(rewards[columns["rewards"]["lookback"] :])) if steps else 0.0,
        "infos": {"rows": [before["infos"]["rows"][i] for i in at], "lookback": keep, "length": max(len(at) - keep, 0)},
    }


@difference("O18", Operation)
def names_and_late_flags_are_lost(operation: Operation, mismatch: Mismatch) -> bool:
    lost = mismatch.path[:1] in [(name,) for name in (*IDS, "custom_data")]
    flag = str(mismatch.path[:1]).startswith("('is_") and operation.name == "slice"
    late = flag and (operation.arguments["wanted"].stop or 0) > operation.before["steps"][0]
    return operation.name in ("cut", "slice") and (lost or late)


@difference("O60", Operation)
def nested_arrays_lose_their_lookback(operation: Operation, mismatch: Mismatch) -> bool:
    return operation.name in ("cut", "slice") and operation.nested_arrays and not isinstance(mismatch.ours, Exception)


@difference("slice-bounds", Operation)
def unusual_bounds(operation: Operation, mismatch: Mismatch) -> bool:
    """Bounds before the first step or behind the last one, crossing ones, steps, and slices without any."""
    if operation.name != "slice" or isinstance(mismatch.ours, Exception):
        return False
    wanted, length = operation.arguments["wanted"], operation.before["steps"][0]
    beyond = any(not -length <= bound <= length for bound in (wanted.start, wanted.stop) if bound is not None)
    start, stop, step = wanted.indices(length)
    return beyond or step != 1 or start >= stop


@difference("argument-errors", Operation)
def a_negative_lookback(operation: Operation, mismatch: Mismatch) -> bool:
    given = operation.arguments.get("k" if operation.name == "cut" else "lookback")
    return operation.name in ("cut", "slice") and (given or 0) < 0 and kind_of(mismatch.ours) == "ValueError"


@difference("argument-errors", Operation)
def columns_of_unfitting_lengths(operation: Operation, mismatch: Mismatch) -> bool:
    """RLlib counts behind the lookback only, so that it does not see all of them."""
    if operation.name != "make" or operation.arguments["drop"] is None or mismatch.kind != "error":
        return False
    return kind_of(mismatch.theirs) in ("", "AssertionError") and kind_of(mismatch.ours) == "ValueError"


def round_trip(twins: Twins) -> None:
    """Both through their own states."""
    kept = {"outputs": any(not len(buffer) for buffer in twins.theirs.extra_model_outputs.values())}
    before = content(twins.ours)
    theirs, ours = (outcome(lambda e=e: type(e).from_state(e.get_state())) for e in (twins.theirs, twins.ours))
    assert not mismatches(before, content(ours.value))
    operation = Operation("round trip", kept, before, array_columns(twins.theirs))
    settle(Outcome(content(theirs.value)) if theirs.error is None else theirs, Outcome(content(ours.value)), operation)
    twins.ours = ours.value
    if theirs.error is None:
        twins.theirs = theirs.value


@difference("state-no-steps", Operation)
def model_outputs_without_rows(operation: Operation, mismatch: Mismatch) -> bool:
    """RLlib's state of them is none, and cannot be restored."""
    empty = operation.name == "round trip" and operation.arguments["outputs"]
    return empty and kind_of(mismatch.theirs) == "AssertionError"


# -- growing -----------------------------------------------------------------------------------------


ENDS = ("running", "running", "running", "terminated", "truncated", "both")


@dataclass(frozen=True)
class Step:
    """A step that is added.

    Attributes:
        number: which of the rows that the episode's spaces are asked for.
        end: `running`, `terminated`, `truncated` or `both`.
        extras: `right`, or `late` (a key too many) or `missing` (one too few).
    """

    number: int = 0
    end: str = "running"
    extras: str = "right"


def step(twins: Twins, chunk: Chunk, what: Step) -> None:
    """Add a step to both."""
    rng = np.random.default_rng(what.number)
    observation, action = (rows(space, rng, 1)[0] for space in (chunk.observation_space, chunk.action_space))
    reward = reward_rows(chunk.reward, rng, 1)[0]
    outputs = {key: extra_rows(key, rng, 1)[0] for key in chunk.extras}
    if chunk.state:
        outputs["state_out"] = state_rows(rng, 1, chunk.state)[0]
    if what.extras == "late":
        outputs["late"] = 1.0
    elif what.extras == "missing" and outputs:
        outputs.pop(sorted(outputs)[0])
    flags = {"terminated": what.end in ("terminated", "both"), "truncated": what.end in ("truncated", "both")}
    fits = set(twins.ours.extra_model_outputs) == set(outputs) or not twins.ours.rewards.len_incl_lookback()

    def add(episode: Any) -> None:
        info = {"step": what.number}
        episode.add_env_step(observation, action, reward, info, extra_model_outputs=outputs, **flags)

    twins.do("step", add, fits=fits)


@difference("O23", Operation)
def a_step_too_early_or_with_other_outputs(operation: Operation, mismatch: Mismatch) -> bool:
    """RLlib takes it without a word; here it is an error, and the episode stays as it was."""
    if operation.name != "step" or (operation.arguments["fits"] and operation.before["is_reset"]):
        return False
    return operation.refused or kind_of(mismatch.ours) in ("AssertionError", "ValueError")


def reset(twins: Twins, chunk: Chunk) -> None:
    """Add a reset to both."""
    observation = chunk.columns["observations"][0]
    twins.do("reset", lambda e: e.add_env_reset(observation, {"reset": 1}))


# -- joining -----------------------------------------------------------------------------------------


def join(twins: Twins, others: tuple[Any, Any], kind: str) -> None:
    """Concatenate chunks of RLlib and of ours to both.

    Args:
        kind: in which way the chunks are wrong; `right` if they are not.
    """
    pairs = dict(zip((id(twins.theirs), id(twins.ours)), others))
    mixed = array_columns(twins.theirs) != array_columns(others[0])
    right = None if kind in ("not reset", "nesting") else whole_join(content(twins.ours), content(others[1]))
    twins.do("join", lambda e: e.concat_episode(pairs[id(e)]), right=right, kind=kind, mixed=mixed)


@difference("concat-flags", Operation)
def both_flags(operation: Operation, mismatch: Mismatch) -> bool:
    """RLlib takes over one flag of the chunk behind, and leaves the other out where both are set."""
    lost = operation.name == "join" and not operation.refused and mismatch.path[-1:] == ("is_truncated",)
    return lost and mismatch.ours is True and mismatch.theirs is False


@difference("state-errors", Operation)
def observations_nested_differently(operation: Operation, mismatch: Mismatch) -> bool:
    """What does not follow is an AssertionError in RLlib, too, but for its nesting and for missing observations."""
    claimed = {"nesting": ("ValueError", "TypeError"), "not reset": ("IndexError",)}
    wrong = operation.name == "join" and kind_of(mismatch.theirs) in claimed.get(operation.arguments["kind"], ())
    return wrong and kind_of(mismatch.ours) == "AssertionError"


@difference("mixed-concat", Operation)
def arrays_and_lists(operation: Operation, mismatch: Mismatch) -> bool:
    """RLlib joins columns of which one alone is arrays wrongly: nested ones fail, no rows at all count as float64."""
    mixed = operation.name == "join" and operation.arguments["mixed"] and not operation.refused
    return mixed and (kind_of(mismatch.theirs) != "" or not isinstance(mismatch.ours, Exception))


@difference("extra-keys", Operation)
def model_outputs_of_a_chunk_without_steps(operation: Operation, mismatch: Mismatch) -> bool:
    """RLlib joins to a chunk without steps only what has its keys; here it has none, and takes those that come."""
    return operation.name == "join" and not steps_of(operation.before) and not isinstance(mismatch.ours, Exception)


@difference("extra-keys", Operation)
def model_outputs_that_the_first_step_lacks(operation: Operation, mismatch: Mismatch) -> bool:
    """RLlib keeps the key of an output that has no row although there is a step now."""
    if operation.name != "step" or steps_of(operation.before) or operation.ours_after is None:
        return False
    return mismatch.path == ("columns",) and mismatch.kind == "keys" and set(mismatch.ours) < set(mismatch.theirs)


@difference("refused-calls", Operation)
def left_half_done(operation: Operation, mismatch: Mismatch) -> bool:
    """Where ours refuses, it is as it was before; what RLlib's is then may be anything."""
    return operation.refused and operation.ours_after is not None


def whole_join(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """What an episode holds after another chunk was joined to it."""
    lookback = first["columns"]["rewards"]["lookback"]
    steps, columns = first["steps"][0] + second["steps"][0], {}
    for key in {**first["columns"], **second["columns"]}:
        parts = []
        for state, column in ((state, state["columns"].get(key)) for state in (first, second)):
            rows = None if column is None else column["rows"]
            if rows is not None and state is first and key == "observations":
                rows = each(lambda leaf: leaf[:-1], rows)
            elif rows is not None and state is second:
                rows = each(lambda leaf, low=column["lookback"]: leaf[low:], rows)
            if rows is not None and len(leaves(rows)[0]):
                parts.append(rows)
        joined = each(lambda *leaf: np.concatenate(leaf), *parts) if parts else None
        columns[key] = {"rows": joined, "lookback": lookback, "length": steps + (key == "observations")}
    rewards = columns["rewards"]["rows"]
    infos = first["infos"]["rows"][:-1] + second["infos"]["rows"][second["infos"]["lookback"] :]
    return {
        **first,
        **{name: second[name] for name in ("t", "is_terminated", "is_truncated", "is_done")},
        "custom_data": {**first["custom_data"], **second["custom_data"]},
        "steps": [steps] * 3,
        "return": float(np.sum(rewards[lookback:])) if steps else 0.0,
        "infos": {"rows": infos, "lookback": lookback, "length": steps + 1},
        "columns": columns,
    }


# -- reading ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """How a column is asked for rows; which column is a number, as the chunk has yet to be drawn."""

    column: int
    indices: Any
    neg_index_as_lookback: bool = False
    fill: Any = None
    one_hot: bool = False
    directly: bool = False

    def read(self, theirs: Any, ours: Any) -> None:
        """Read both episodes by their getters, or by their buffers'."""
        names = ["observations", "infos", "actions", "rewards", *ours.extra_model_outputs]
        name = names[self.column % len(names)]
        one_hot = self.one_hot and (self.directly or name in ("observations", "actions")) and name != "infos"
        options: dict[str, Any] = {"neg_index_as_lookback": self.neg_index_as_lookback, "fill": self.fill}
        keywords = {**options, "one_hot_discrete": True} if one_hot else options

        def call(side: int) -> Any:
            episode = (theirs, ours)[side]
            if self.directly:
                return buffer_of(episode, name).get(self.indices, **keywords)
            if name in names[:4]:
                return getattr(episode, f"get_{name}")(self.indices, **keywords)
            return episode.get_extra_model_outputs(name, self.indices, **keywords)

        both = buffer_of(theirs, name), buffer_of(ours, name)
        compare_read(*both, self.indices, call, objects=name == "infos", one_hot=one_hot, **options)


# -- setting -----------------------------------------------------------------------------------------


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


def write(twins: Twins, what: Write) -> None:
    """Write to a column of both, or to a model output that neither has."""
    names = [*ALWAYS, *twins.ours.extra_model_outputs, UNKNOWN]
    name = names[what.column % len(names)]
    if name == UNKNOWN:
        arguments = {"key": UNKNOWN, "new_data": [], "at_indices": what.indices}
        twins.do("set unknown", lambda e: e.set_extra_model_outputs(**arguments))
        return
    buffer = getattr(twins.ours, name, None) or twins.ours.extra_model_outputs.get(name)
    if buffer is None or not buffer.len_incl_lookback():
        return
    before = each(np.copy, buffer.data)
    at = outcome(lambda: addressed(what, buffer.lookback, buffer.len_incl_lookback()))
    single = not (what.indices is None or isinstance(what.indices, (slice, list, tuple, np.ndarray)))
    count = 1 if single else max((0 if at.error else len(at.value)) + what.more, 0)
    order = np.random.default_rng(what.seed).integers(0, len(leaves(before)[0]), count)
    typed = each(lambda leaf: leaf[order].astype(what.dtype or leaf.dtype), before)
    given = (unstack(typed)[0] if single else typed if what.stacked else unstack(typed)) if count else []
    options = {"at_indices": what.indices, "neg_index_as_lookback": what.neg_index_as_lookback}
    call = f"set_{name}" if name in ALWAYS else "set_extra_model_outputs"
    options.update({} if name in ALWAYS else {"key": name})
    stacked = what.stacked and not single and count
    twins.do(
        "set",
        lambda e: getattr(e, call)(new_data=each(np.copy, given) if stacked else given, **options),
        right=written(content(twins.ours), name, at, typed, single),
        column=name,
        what=what,
        single=single,
        count=count,
        space=name in ("observations", "actions") and getattr(twins.ours, name).space is not None,
    )


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


def written(before: dict[str, Any], name: str, at: Outcome, given: Any, single: bool) -> Outcome:
    """What the episode holds after the write, by the rules for lists; or the error."""
    if at.error is not None:
        return at
    if not single and len(leaves(given)[0]) != len(at.value):
        return Outcome(error=IndexError("another number of rows"))
    newest = name == "observations"  # it is held as it came until the next one

    def put(leaf: Any, rows: Any) -> Any:
        out = leaf.astype(rows.dtype if newest and len(leaf) == 1 else np.result_type(leaf, rows))
        for i, row in zip(at.value, rows):
            out[i] = row
        return out

    column = before["columns"][name]
    rows = each(put, column["rows"], given) if at.value else column["rows"]
    total = before["return"] if name != "rewards" else float(np.sum(rows[column["lookback"] :]))
    columns = {**before["columns"], name: {**column, "rows": rows}}
    return Outcome({**before, "columns": columns, "return": total})


@difference("argument-errors", Operation)
def an_output_that_is_not_there(operation: Operation, mismatch: Mismatch) -> bool:
    """RLlib asserts that the key of the output exists; ours is named with the keys there are."""
    named = isinstance(mismatch.theirs, AssertionError) and isinstance(mismatch.ours, UnknownNameError)
    return operation.name == "set unknown" and mismatch.kind == "error" and named


@difference("O20", Operation)
def numpy_integers_and_open_slices_backwards(operation: Operation, mismatch: Mismatch) -> bool:
    if operation.name != "set":
        return False
    indices = operation.arguments["what"].indices
    if isinstance(indices, slice):
        return (indices.step or 1) < 0 and None in (indices.start, indices.stop)
    return not isinstance(indices, (int, list)) and indices is not None


@difference("set-arrays", Operation)
def setters_of_arrays(operation: Operation, mismatch: Mismatch) -> bool:
    """RLlib takes lists into lists and arrays into arrays, casts to their type, and asks the space about parts."""
    if operation.name != "set":
        return False
    arguments, what = operation.arguments, operation.arguments["what"]
    arrays = operation.arrays[arguments["column"]]
    nested = is_nested(operation.before["columns"][arguments["column"]]["rows"])
    other_form = not arguments["single"] and what.stacked != arrays
    listed = isinstance(what.indices, list) and (what.more != 0 or (nested and what.stacked) or not what.indices)
    return listed or other_form or (arrays and (what.dtype is not None or (nested and arguments["space"])))


@difference("O59", Operation)
def no_rows_at_all(operation: Operation, mismatch: Mismatch) -> bool:
    """RLlib looks at the first of the rows it is given even where there are none."""
    return operation.name == "set" and not operation.arguments["count"]


@difference("column-types", Operation)
def rows_of_another_type(operation: Operation, mismatch: Mismatch) -> bool:
    """A list has the type of the rows that are in it now, a column one that also holds those it had."""
    listed = operation.name == "set" and not operation.arrays[operation.arguments["column"]]
    return listed and mismatch.kind == "dtype" and np.array_equal(mismatch.theirs, mismatch.ours)
