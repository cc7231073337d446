"""Slicing an episode: a slow model of it, in which the listed differences from RLlib can be switched on."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracle.columns import each, leaves
from oracle.compare import Mismatch, Outcome, mismatches, outcome
from oracle.differences import IDS, difference
from oracle.twins import IDS as NAMES
from oracle.twins import Operation, content

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
