"""Two results of the same call: where they differ, whether that is listed; and rows of columns in plain Python.

The page of differences from RLlib says which mismatches are listed. An explanation belongs to a row of
`docs/differences-from-rllib.md` by the row's id; without that row it does not exist.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from oracle.cases import differences_met

PAGE = Path(__file__).resolve().parents[3] / "docs" / "differences-from-rllib.md"
LISTED = frozenset(re.findall(r"^\| (?:`([\w-]+)`|(O\d+)) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
IDS = frozenset(slug or fault for slug, fault in LISTED)

Explanation = Callable[[Any, Any], bool]
_explanations: list[tuple[str, type, Explanation]] = []


def difference(identity: str, situation: type) -> Callable[[Explanation], Explanation]:
    """Register what a row of the page excuses.

    The function gets a situation and a `Mismatch` and says whether this is the row's situation and whether both
    sides give exactly what the row says they give.

    Args:
        identity: the row's id, such as `O19` or `greedy-logp`.
        situation: the class of situations it is about.
    """

    def register(explanation: Explanation) -> Explanation:
        _explanations.append((identity, situation, explanation))
        return explanation

    return register


def explanation_of(situation: Any, mismatch: Any) -> str | None:
    """The id of the listed difference that a mismatch is, or None."""
    for identity, kind, explains in _explanations:
        if identity in IDS and isinstance(situation, kind) and explains(situation, mismatch):
            differences_met[identity] += 1
            return identity
    return None


def listed(identity: str) -> bool:
    """Whether the page has the row; if so, it is counted as met."""
    if identity in IDS:
        differences_met[identity] += 1
        return True
    return False


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
    if all(isinstance(x, np.ndarray) and x.dtype == object and x.ndim for x in (theirs, ours)):
        theirs, ours = list(theirs), list(ours)
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


def each(function: Callable[..., Any], first: Any, *others: Any) -> Any:
    """Apply a function to the leaves of structures of dicts and tuples that are nested alike."""
    if isinstance(first, dict):
        if any(not isinstance(other, dict) or other.keys() != first.keys() for other in others):
            raise ValueError("nested differently")
        return {key: each(function, first[key], *(other[key] for other in others)) for key in first}
    if isinstance(first, tuple):
        if any(not isinstance(other, tuple) or len(other) != len(first) for other in others):
            raise ValueError("nested differently")
        return tuple(each(function, *parts) for parts in zip(first, *others))
    if any(isinstance(other, (dict, tuple)) for other in others):
        raise ValueError("nested differently")
    return function(first, *others)


def leaves(struct: Any) -> list[Any]:
    """The leaves of a structure, dict entries by sorted key."""
    if isinstance(struct, dict):
        return [leaf for key in sorted(struct) for leaf in leaves(struct[key])]
    if isinstance(struct, tuple):
        return [leaf for part in struct for leaf in leaves(part)]
    return [struct]


def space_struct(space: Any) -> Any:
    """The spaces of a nested space's leaves, as dicts and tuples."""
    if isinstance(space, gym.spaces.Dict):
        return {key: space_struct(inner) for key, inner in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(map(space_struct, space.spaces))
    return space


def stack(rows: Sequence[Any]) -> Any:
    """At least one row as one structure of arrays, time first; rows of several types get the type that holds all."""
    return each(lambda *leaf: np.stack([np.asarray(value) for value in leaf]), *rows)


def unstack(columns: Any) -> list[Any]:
    """The rows of stacked arrays."""
    count = len(leaves(columns)[0])
    return [each(lambda leaf, i=i: leaf[i], columns) for i in range(count)]


def position(index: int, lookback: int, total: int, neg_index_as_lookback: bool) -> int:
    """Where an index points, counted from the first row of the lookback; it may point outside."""
    if index < 0 and not neg_index_as_lookback:
        return total + index
    return lookback + index


def first_of(compare: Callable[[Any, Any], list[Mismatch]] = mismatches) -> Callable[[Any, Any], list[Mismatch]]:
    """Compare two whole values: at most one mismatch, of the kind of the first one, with both as they are."""

    def whole(theirs: Any, ours: Any) -> list[Mismatch]:
        objects = isinstance(theirs, np.ndarray) and theirs.dtype == object
        found = [Mismatch((), "dtype", theirs, ours)] if objects else compare(theirs, ours)
        return [Mismatch((), found[0].kind, theirs, ours)] if found else []

    return whole
