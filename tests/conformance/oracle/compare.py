"""Two results of the same call: where they differ, in which way, and whether that is listed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from oracle.differences import explanation_of


@dataclass(frozen=True)
class Outcome:
    """What a call gave: a value, or the error it raised."""

    value: Any = None
    error: Exception | None = None

    @property
    def kind(self) -> str:
        """The first builtin of those that RLlib raises which the error is; empty if there is none."""
        kinds = (IndexError, KeyError, AssertionError, NotImplementedError, ValueError, TypeError, AttributeError)
        if self.error is None:
            return ""
        return next((kind.__name__ for kind in kinds if isinstance(self.error, kind)), type(self.error).__name__)


def outcome(call: Callable[[], Any]) -> Outcome:
    """Run a call; an error is an outcome too."""
    try:
        return Outcome(call())
    except Exception as error:
        return Outcome(error=error)


@dataclass(frozen=True)
class Mismatch:
    """One place where two results differ.

    Attributes:
        path: where in the structure, as the keys and positions on the way to it.
        kind: `error`, `keys`, `layout`, `length`, `type`, `dtype`, `shape` or `value`.
        theirs: what RLlib has there.
        ours: what epibatch has there.
    """

    path: tuple[Any, ...]
    kind: str
    theirs: Any
    ours: Any

    def __str__(self) -> str:
        where = "".join(f"[{part!r}]" for part in self.path) or "(all of it)"
        return f"{self.kind} at {where}\n  RLlib:    {_short(self.theirs)}\n  epibatch: {_short(self.ours)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 800 else f"{text[:800]}..."


def mismatches(theirs: Any, ours: Any, path: tuple[Any, ...] = ()) -> list[Mismatch]:
    """Every place where two structures differ; values must be equal, zeros have their signs, NaN equals NaN."""
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        if set(theirs) != set(ours):
            return [Mismatch(path, "keys", sorted(map(str, theirs)), sorted(map(str, ours)))]
        return [found for key in theirs for found in mismatches(theirs[key], ours[key], (*path, key))]
    for sequence in (list, tuple):
        if isinstance(theirs, sequence) and isinstance(ours, sequence):
            if len(theirs) != len(ours):
                return [Mismatch(path, "length", len(theirs), len(ours))]
            pairs = enumerate(zip(theirs, ours))
            return [found for i, (a, b) in pairs for found in mismatches(a, b, (*path, i))]
    if isinstance(theirs, (Mapping, list, tuple)) or isinstance(ours, (Mapping, list, tuple)):
        return [Mismatch(path, "layout", theirs, ours)]
    return _leaf_mismatch(theirs, ours, path)


def _leaf_mismatch(theirs: Any, ours: Any, path: tuple[Any, ...]) -> list[Mismatch]:
    if isinstance(theirs, torch.Tensor) != isinstance(ours, torch.Tensor):
        return [Mismatch(path, "type", theirs, ours)]
    if not isinstance(theirs, (np.ndarray, np.generic, torch.Tensor, int, float)):
        same = type(theirs) is type(ours) and theirs == ours
        return [] if same else [Mismatch(path, "value", theirs, ours)]
    a, b = (np.asarray(x) for x in (theirs, ours))
    for kind, x, y in (("shape", a.shape, b.shape), ("dtype", a.dtype, b.dtype)):
        if x != y:
            return [Mismatch(path, kind, theirs, ours)]
    floats = a.dtype.kind == "f"
    same = np.array_equal(a, b, equal_nan=floats)
    if same and floats:
        zeros = a == 0
        same = np.array_equal(np.signbit(a[zeros]), np.signbit(b[zeros]))
    return [] if same else [Mismatch(path, "value", theirs, ours)]


def settle(theirs: Outcome, ours: Outcome, situation: Any, compare: Callable[..., list[Mismatch]] = mismatches) -> bool:
    """Hold two outcomes of one call beside each other; what differs must be listed.

    Args:
        theirs: RLlib's outcome.
        ours: epibatch's.
        situation: what was called on what; the listed differences look at it to see if it is theirs.
        compare: finds the mismatches of two values.

    Returns:
        Whether they are equal; False if all that differs is listed.

    Raises:
        AssertionError: a mismatch is not listed; the text says which and where.
    """
    if theirs.kind or ours.kind:
        found = (
            []
            if theirs.kind == ours.kind
            else [Mismatch((), "error", theirs.error or theirs.value, ours.error or ours.value)]
        )
    else:
        found = compare(theirs.value, ours.value)
    unexplained = [mismatch for mismatch in found if explanation_of(situation, mismatch) is None]
    if unexplained:
        lines = "\n".join(map(str, unexplained[:5]))
        raise AssertionError(f"{len(unexplained)} mismatches are not listed, in {situation}:\n{lines}")
    return not found
