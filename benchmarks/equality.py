"""Checks that two sides made the same tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from benchmarks.names import OURS


class DifferentValuesError(ValueError):
    """Two sides of a row do not give the same: their times cannot be compared."""


def flat(columns: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested columns as arrays, under slash-joined names."""
    leaves: dict[str, Any] = {}
    for name, value in columns.items():
        if isinstance(value, Mapping):
            leaves.update(flat(value, f"{prefix}{name}/"))
        else:
            leaves[prefix + name] = np.asarray(value)
    return leaves


def check_same(
    ours: Mapping[str, Any],
    other: Mapping[str, Any],
    *,
    whose: str,
    but: Collection[str] = (),
    close: Mapping[str, float] | None = None,
    rows: Any = None,
) -> None:
    """Compare columns: names, shapes, types and values.

    Args:
        ours: epibatch's columns, nested as they may be.
        other: The other side's.
        whose: Name of the other side, for the message.
        but: Columns that are compared by other means.
        close: Column to the largest difference that is allowed; all other columns are equal bit for bit.
        rows: Compare the values of these rows only.

    Raises:
        DifferentValuesError: they differ.
    """
    mine, theirs = flat(ours), flat(other)
    faults = [f"only one side has {name}" for name in sorted(mine.keys() ^ theirs.keys()) if name not in but]
    for name in (name for name in mine if name in theirs and name not in but):
        faults += _faults(name, mine[name], theirs[name], (close or {}).get(name, 0.0), rows)
    if faults:
        raise DifferentValuesError(f"epibatch and {whose}: " + "; ".join(faults))


def check_all_same(outputs: Mapping[str, Any], **how: Any) -> None:
    """Compare every side with epibatch, by `check_same`.

    Args:
        outputs: Of each side, by name.
        **how: For `check_same`.

    Raises:
        DifferentValuesError: one differs.
    """
    for name, output in outputs.items():
        if name != OURS:
            check_same(outputs[OURS], output, whose=name, **how)


def _faults(name: str, mine: Any, theirs: Any, tolerance: float, rows: Any) -> Iterable[str]:
    if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
        yield f"{name} is {mine.dtype} {list(mine.shape)}, and {theirs.dtype} {list(theirs.shape)}"
        return
    if rows is not None:
        mine, theirs = mine[rows], theirs[rows]
    if tolerance:
        worst = float(np.abs(mine.astype(np.float64) - theirs).max(initial=0.0))
        if not worst <= tolerance:
            yield f"{name} differs by up to {worst:.3g}"
    elif not np.array_equal(mine, theirs):
        yield f"{name} has {int((mine != theirs).sum())} other values"
