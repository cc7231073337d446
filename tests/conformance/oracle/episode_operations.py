"""Operations on the same episode of both libraries, and which listed differences explain what differs then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from oracle.compare import Mismatch, Outcome, each, leaves, mismatches, outcome, settle
from oracle.differences import IDS, difference
from oracle.episodes import Chunk, extra_rows, reward_rows, state_rows
from oracle.spaces import rows
from oracle.twins import IDS as NAMES
from oracle.twins import Operation, Twins, array_columns, content, is_nested


def cut(twins: Twins, k: int) -> None:
    """Cut both, and go on with what came out."""
    theirs, ours = twins.do("cut", lambda e: e.cut(k), k=k)
    go_on(twins, theirs, ours)


def slice_(twins: Twins, wanted: slice, lookback: int | None) -> None:
    """Slice both, and go on with what came out."""
    call = lambda e: e.slice(wanted, len_lookback_buffer=lookback)  # noqa: E731
    theirs, ours = twins.do("slice", call, wanted=wanted, lookback=lookback)
    go_on(twins, theirs, ours)


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


@difference("O18", Operation)
def a_cut_loses_its_names(operation: Operation, mismatch: Mismatch) -> bool:
    if operation.name != "cut" or mismatch.path[:1] not in [(name,) for name in NAMES]:
        return False
    return mismatch.theirs is None and mismatch.ours == operation.before[mismatch.path[0]]


@difference("O60", Operation)
def a_cut_of_nested_arrays_fails(operation: Operation, mismatch: Mismatch) -> bool:
    if operation.name != "cut" or mismatch.kind != "error" or Outcome(error=mismatch.theirs).kind != "AssertionError":
        return False
    kept = min(operation.arguments["k"], steps_of(operation.before))
    columns = operation.before["columns"].items()
    narrow = [key for key, column in columns if is_nested(column["rows"]) and len(column["rows"]) < kept]
    if isinstance(mismatch.ours, Exception) or mismatches(cut_off(operation.before, kept), content(mismatch.ours)):
        return False
    return any(operation.arrays[key] for key in narrow)


def cut_off(before: dict[str, Any], kept: int) -> dict[str, Any]:
    """What the chunk after a cut holds: the last rows as lookback, and no steps."""
    columns = {}
    for key, column in before["columns"].items():
        more = int(key == "observations")
        rows = each(lambda leaf, n=kept + more: leaf[len(leaf) - n :], column["rows"]) if kept + more else None
        if rows is not None or key in ("observations", "actions", "rewards"):
            columns[key] = {"rows": rows, "lookback": kept, "length": more}
    infos = before["infos"]["rows"][-(kept + 1) :]
    return {
        **before,
        **{"t_started": before["t"], "steps": [0] * 3, "return": 0.0, "columns": columns},
        "infos": {"rows": infos, "lookback": kept, "length": 1},
    }


@difference("argument-errors", Operation)
def a_negative_lookback(operation: Operation, mismatch: Mismatch) -> bool:
    theirs, ours = (Outcome(error=side).kind for side in (mismatch.theirs, mismatch.ours))
    if operation.name == "cut" and operation.arguments["k"] < 0:
        return (theirs, ours) == ("AssertionError", "ValueError")
    return operation.name == "slice" and (operation.arguments["lookback"] or 0) < 0 and ours == "ValueError"


@difference("argument-errors", Operation)
def columns_of_unfitting_lengths(operation: Operation, mismatch: Mismatch) -> bool:
    """RLlib counts behind the lookback only, so that it does not see all of them."""
    if operation.name != "make" or operation.arguments["drop"] is None or mismatch.kind != "error":
        return False
    seen = not isinstance(mismatch.theirs, Exception) or Outcome(error=mismatch.theirs).kind == "AssertionError"
    return seen and Outcome(error=mismatch.ours).kind == "ValueError"


def round_trip(twins: Twins) -> None:
    """Both through their own states."""
    kept = {"outputs": any(not len(buffer) for buffer in twins.theirs.extra_model_outputs.values())}
    operation = Operation("round trip", kept, content(twins.ours), array_columns(twins.theirs))
    theirs, ours = (outcome(lambda e=e: type(e).from_state(e.get_state())) for e in (twins.theirs, twins.ours))
    if theirs.error is None and ours.error is None:
        settle(Outcome(content(theirs.value)), Outcome(content(ours.value)), operation)
    else:
        settle(theirs, ours, operation)
    twins.ours = ours.value
    if theirs.error is None:
        twins.theirs = theirs.value


@difference("state-no-steps", Operation)
def model_outputs_without_rows(operation: Operation, mismatch: Mismatch) -> bool:
    """RLlib's state of them is none, and cannot be restored."""
    if operation.name != "round trip" or not operation.arguments["outputs"]:
        return False
    if Outcome(error=mismatch.theirs).kind != "AssertionError" or isinstance(mismatch.ours, Exception):
        return False
    return not mismatches(operation.before, content(mismatch.ours))


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
    keys = set(twins.ours.extra_model_outputs)
    fits = keys == set(outputs) or not twins.ours.rewards.len_incl_lookback()

    def add(episode: Any) -> None:
        info = {"step": what.number}
        episode.add_env_step(observation, action, reward, info, extra_model_outputs=outputs, **flags)

    twins.do("step", add, fits=fits)


@difference("O23", Operation)
def a_step_too_early_or_with_other_outputs(operation: Operation, mismatch: Mismatch) -> bool:
    """RLlib takes it without a word; here it is an error, and the episode stays as it was."""
    before, after = operation.before, operation.ours_after
    wrong = operation.name == "step" and (not operation.arguments["fits"] or not before["is_reset"])
    if not wrong or before["is_done"]:
        return False
    if after is not None:
        return not mismatches(before, after)
    return mismatch.theirs is None and Outcome(error=mismatch.ours).kind in ("AssertionError", "ValueError")


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
    call = lambda e: e.concat_episode(pairs[id(e)])  # noqa: E731
    twins.do("join", call, kind=kind, mixed=mixed, other=content(others[1]))


@difference("state-errors", Operation)
def observations_nested_differently(operation: Operation, mismatch: Mismatch) -> bool:
    """What does not follow is an AssertionError in RLlib, too, but for its nesting and for missing observations."""
    if operation.name != "join" or operation.ours_after is not None:
        return False
    theirs, ours = (Outcome(error=side).kind for side in (mismatch.theirs, mismatch.ours))
    claimed = {"nesting": ("ValueError", "TypeError"), "not reset": ("IndexError",)}
    return theirs in claimed.get(operation.arguments["kind"], ()) and ours == "AssertionError"


@difference("mixed-concat", Operation)
def arrays_and_lists(operation: Operation, mismatch: Mismatch) -> bool:
    """RLlib joins columns of which one alone is arrays wrongly: nested ones fail, no rows at all count as float64."""
    if operation.name != "join" or not operation.arguments["mixed"]:
        return False
    joined = joined_columns(operation.before, operation.arguments["other"])
    nested = any(map(is_nested, joined.values()))
    several_axes = any(leaf.ndim > 1 for rows in joined.values() if rows is not None for leaf in leaves(rows))
    if operation.ours_after is None:
        failed = Outcome(error=mismatch.theirs).kind in ("AssertionError", "TypeError", "ValueError")
        refused = operation.arguments["kind"] == "extras" and Outcome(error=mismatch.ours).kind == "AssertionError"
        return (mismatch.ours is None or refused) and failed and (nested or several_axes)
    if mismatches(whole_join(operation), operation.ours_after):
        return False
    widened = mismatch.kind == "dtype" and mismatch.theirs.dtype == np.float64
    return nested or several_axes or (widened and np.array_equal(mismatch.theirs, mismatch.ours))


@difference("extra-keys", Operation)
def model_outputs_of_a_chunk_without_steps(operation: Operation, mismatch: Mismatch) -> bool:
    """RLlib joins to a chunk without steps only what has its keys; here it has none, and takes those that come."""
    if operation.name != "join" or steps_of(operation.before):
        return False
    if operation.ours_after is None:
        return mismatch.ours is None and Outcome(error=mismatch.theirs).kind == "AssertionError"
    return not mismatches(whole_join(operation), operation.ours_after)


@difference("extra-keys", Operation)
def model_outputs_that_the_first_step_lacks(operation: Operation, mismatch: Mismatch) -> bool:
    """RLlib keeps the key of an output that has no row although there is a step now."""
    if operation.name != "step" or steps_of(operation.before) or operation.ours_after is None:
        return False
    return mismatch.path == ("columns",) and mismatch.kind == "keys" and set(mismatch.ours) < set(mismatch.theirs)


@difference("refused-calls", Operation)
def left_half_done(operation: Operation, mismatch: Mismatch) -> bool:
    """Where ours refuses, it is as it was before; what RLlib's is then may be anything."""
    return (
        operation.refused
        and operation.ours_after is not None
        and not mismatches(operation.before, operation.ours_after)
    )


def whole_join(operation: Operation) -> dict[str, Any]:
    """What an episode holds after another chunk was joined to it."""
    first, second = operation.before, operation.arguments["other"]
    lookback = first["columns"]["rewards"]["lookback"]
    rows = joined_columns(first, second)
    steps = first["steps"][0] + second["steps"][0]
    lengths = {key: steps + (key == "observations") for key in rows}
    infos = first["infos"]["rows"][:-1] + second["infos"]["rows"][second["infos"]["lookback"] :]
    return {
        **first,
        **{name: second[name] for name in ("t", "is_terminated", "is_done")},
        "is_truncated": second["is_truncated"] and not second["is_terminated"],
        "custom_data": {**first["custom_data"], **second["custom_data"]},
        "steps": [steps] * 3,
        "return": float(np.sum(rows["rewards"][lookback:])) if steps else 0.0,
        "infos": {"rows": infos, "lookback": lookback, "length": steps + 1},
        "columns": {
            key: {"rows": column, "lookback": lookback, "length": lengths[key]} for key, column in rows.items()
        },
    }


def joined_columns(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Rows of each column of two chunks, the second one's after its lookback."""
    joined = {}
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
        joined[key] = each(lambda *leaf: np.concatenate(leaf), *parts) if parts else None
    return joined


SWITCHES = ("O18", "O60", "slice-bounds")


def sliced(operation: Operation, on: frozenset[str]) -> Outcome:
    """What the slice holds if these differences are switched on, in the form of `twins.content`."""
    return outcome(lambda: _Slice(operation, on).content())


class _Slice:
    def __init__(self, operation: Operation, on: frozenset[str]) -> None:
        self.operation, self.on = operation, on
        self.before = operation.before
        self.lookback = operation.arguments["lookback"]
        self.length = self.before["steps"][0]
        wanted = operation.arguments["wanted"]
        if "slice-bounds" in on:
            bounds = ((wanted.start, 0), (wanted.stop, self.length))
            ends = [default if at is None else at + self.length * (at < 0) for at, default in bounds]
            self.start, self.stop, self.step = *ends, wanted.step or 1
        else:
            self.start, self.stop, self.step = wanted.indices(self.length)
            if self.step < 0:
                self.start = self.stop = max(self.start, 0)
            self.stop = max(self.start, self.stop)
            self.step = max(self.step, 1)

    def content(self) -> dict[str, Any]:
        before, keeps = self.before, "O18" not in self.on
        infos = before["infos"]
        at, kept = self._positions("infos", len(infos["rows"]), infos["lookback"], 1)
        infos = [infos["rows"][i] for i in at]
        columns = {key: self._column(key, column) for key, column in before["columns"].items()}
        steps = columns["rewards"]["length"]
        if "slice-bounds" in self.on and len(infos) <= kept:  # RLlib takes infos without rows for none given
            infos = [{}] * columns["observations"]["length"]
            kept = min(steps, len(infos))
        self._check(columns, max(len(infos) - kept, 0))
        ended = self.stop == self.length or (keeps and self.stop > self.length)
        flags = [before[name] and ended for name in ("is_terminated", "is_truncated")]
        rewards = columns["rewards"]["rows"]
        started = before["t_started"] + self.start
        return {
            **before,
            **{name: before[name] if keeps else None for name in NAMES},
            **{"t": started + steps, "t_started": started, "custom_data": before["custom_data"] if keeps else {}},
            **{"is_terminated": flags[0], "is_truncated": flags[1], "is_done": any(flags)},
            **{"is_reset": columns["observations"]["length"] > 0, "steps": [steps] * 3},
            "return": float(np.sum(rewards[columns["rewards"]["lookback"] :])) if steps else 0.0,
            "infos": {"rows": infos, "lookback": kept, "length": max(len(infos) - kept, 0)},
            "columns": {
                key: column
                for key, column in columns.items()
                if column["rows"] is not None or key in ("observations", "actions", "rewards")
            },
        }

    def _column(self, key: str, column: dict[str, Any]) -> dict[str, Any]:
        rows = column["rows"]
        total = 0 if rows is None else len(leaves(rows)[0])
        at, kept = self._positions(key, total, column["lookback"], key == "observations")
        length = max(len(at) - kept, 0)
        return {"rows": each(lambda leaf: leaf[at], rows) if at else None, "lookback": kept, "length": length}

    def _positions(self, key: str, total: int, have: int, more: int) -> tuple[list[int], int]:
        """The rows that are copied, by their positions, and how many of them are lookback."""
        keep = have if self.lookback is None else self.lookback
        if not total and "slice-bounds" in self.on:
            if self.start >= 0 > self.stop:
                raise AssertionError("a slice of an empty column")
            return [], min(keep, self.start if self.start >= 0 else keep, self._entries(key) or 0)
        if not total:
            return [], 0
        if "slice-bounds" not in self.on:
            first = have + self.start
            keep = min(keep, first)
            at = [*range(first - keep, first), *range(first, have + self.stop, self.step)]
            return at + [have + self.stop] * more, keep
        if self.start >= 0:
            keep = min(keep, have + self.start)
        low, high = have + self.start - keep, have + self.stop + more
        backwards = self.step < 0
        ends = (min(low, total - 1), max(high, -1)) if backwards else (max(low, 0), min(high, total))
        at = list(range(*ends, self.step))
        entries = self._entries(key)
        return at, min(keep, len(at) if entries is None else entries)

    def _entries(self, key: str) -> int | None:
        """What RLlib takes for the number of rows of nested arrays."""
        return self.operation.entries.get(key) if "O60" in self.on else None

    def _check(self, columns: dict[str, Any], infos: int) -> None:
        """RLlib's own check of lengths: what does not fit is an AssertionError."""
        observations = columns["observations"]["length"]
        steps = max(observations - 1, 0)
        others = [column["length"] for key, column in columns.items() if key != "observations"]
        if infos != observations or any(length != steps for length in others):
            raise AssertionError("lengths")


def _explanation(identity: str) -> None:
    @difference(identity, Operation)
    def explains(operation: Operation, mismatch: Mismatch) -> bool:
        if operation.name != "slice" or operation.ours_after is not None or (operation.arguments["lookback"] or 0) < 0:
            return False
        on = IDS.intersection(SWITCHES)
        theirs, ours = sliced(operation, on), sliced(operation, frozenset())
        others, alone = sliced(operation, on - {identity}), sliced(operation, frozenset({identity}))
        if _same_at(mismatch, theirs, others) and _same_at(mismatch, ours, alone):
            return False
        return _is(theirs, mismatch, mismatch.theirs) and _is(ours, mismatch, mismatch.ours)


def _at(claimed: Outcome, mismatch: Mismatch) -> Any:
    """What the model has at the place of a mismatch."""
    value = claimed.value
    for part in mismatch.path:
        value = value[part]
    return value


def _same_at(mismatch: Mismatch, a: Outcome, b: Outcome) -> bool:
    if a.kind or b.kind or mismatch.kind == "error":
        return a.kind == b.kind
    return not mismatches(_at(a, mismatch), _at(b, mismatch))


def _is(claimed: Outcome, mismatch: Mismatch, side: Any) -> bool:
    """Whether the model has at the place of a mismatch what this side has."""
    if isinstance(side, Exception):
        return claimed.kind == Outcome(error=side).kind
    if claimed.kind:
        return False
    if mismatch.kind == "error":  # the other side raised, so that this one is the slice itself
        return not mismatches(claimed.value, content(side))
    value = _at(claimed, mismatch)
    if mismatch.kind == "keys":
        return sorted(map(str, value)) == side
    if mismatch.kind == "length":
        return len(value) == side
    return not mismatches(value, side)


for _identity in SWITCHES:
    _explanation(_identity)
