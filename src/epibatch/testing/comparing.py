"""Comparison of two results, with the difference as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from epibatch.core.structs import flatten, map_struct

__all__ = ["difference", "facts_of", "rows_of"]

_NEAR = {"rtol": 1e-5, "atol": 1e-6}


def difference(one: Any, other: Any, *, near: bool = False, path: str = "") -> str:
    """Return the first difference of two structures, with both values; empty if they are equal.

    Args:
        one: dicts, lists, tuples, arrays, numbers and strings.
        other: the structure to compare with it.
        near: True if floats may differ by rounding, like sums in another order.
        path: the path of these two in the whole structure.

    Example:
        >>> difference({"rewards": np.array([1.0, 2.0])}, {"rewards": np.array([1.0, 2.5])})
        "['rewards'][1]: 2.0 and 2.5"
        >>> difference({"a": 1}, {"a": 1})
        ''
    """
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if set(one) != set(other):
            return f"{path or 'keys'}: {_keys(one)} and {_keys(other)}"
        return _first(difference(one[key], other[key], near=near, path=f"{path}[{key!r}]") for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        if len(one) != len(other):
            return f"{path or 'items'}: {len(one)} and {len(other)} items"
        pairs = enumerate(zip(one, other))
        return _first(difference(a, b, near=near, path=f"{path}[{i}]") for i, (a, b) in pairs)
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return _arrays(np.asarray(one), np.asarray(other), near, path)
    if type(one) is not type(other) and not _numbers(one, other):
        return f"{path}: {type(one).__name__} {one!r} and {type(other).__name__} {other!r}"
    same = _close(one, other) if near and _numbers(one, other) else _equal(one, other)
    return "" if same else f"{path}: {one!r} and {other!r}"


def _first(texts: Any) -> str:
    return next(filter(None, texts), "")


def _keys(mapping: Mapping[Any, Any]) -> str:
    return ", ".join(sorted(map(str, mapping))) or "none"


def _numbers(*values: Any) -> bool:
    return all(isinstance(value, (bool, int, float, np.number, np.bool_)) for value in values)


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other) or bool(one != one and other != other)
    except (TypeError, ValueError):
        return one is other


def _close(one: Any, other: Any) -> bool:
    return bool(np.isclose(one, other, equal_nan=True, **_NEAR))


def _arrays(one: Any, other: Any, near: bool, path: str) -> str:
    if one.shape != other.shape:
        return f"{path}: shapes {one.shape} and {other.shape}"
    if one.dtype != other.dtype:
        return f"{path}: {one.dtype} and {other.dtype}"
    if one.dtype == object:
        return difference(one.tolist(), other.tolist(), near=near, path=path)
    if near and one.dtype.kind in "fc":
        unlike = ~np.isclose(one, other, equal_nan=True, **_NEAR)
    else:
        unlike = (one != other) & ~((one != one) & (other != other))
    if not np.any(unlike):
        return ""
    at = tuple(int(i[0]) for i in np.nonzero(unlike)) if one.ndim else ()
    place = "".join(f"[{i}]" for i in at)
    return f"{path}{place}: {one[at]} and {other[at]}"


def facts_of(episode: Any) -> dict[str, Any]:
    """Return copies of an episode's columns and flags, without custom data; for several agents each agent's."""
    if hasattr(episode, "agent_episodes"):
        return {str(agent): facts_of(own) for agent, own in episode.agent_episodes.items()}
    columns = {"observations": episode.observations, "actions": episode.actions, "rewards": episode.rewards}
    columns |= episode.extra_model_outputs
    return {
        **{name: _copied(column.data) for name, column in columns.items() if column.len_incl_lookback()},
        "infos": [dict(info) for info in episode.infos.data],
        "flags": [bool(episode.is_terminated), bool(episode.is_truncated), len(episode), episode.t_started],
    }


def _copied(struct: Any) -> Any:
    return map_struct(np.array, struct)


def rows_of(batch: Any, counts: list[int]) -> list[dict[str, Any]] | None:
    """Return each episode's rows of a batch, column by column; None if they are not contiguous.

    Args:
        batch: columns of arrays with a row axis first, or lists with one item for each episode.
        counts: rows of each episode.
    """
    total, ends = sum(counts), np.cumsum(counts)
    parts: list[dict[str, Any]] = [{} for _ in counts]
    for name, column in batch.items():
        if isinstance(column, list):
            if len(column) != len(counts):
                return None
            for part, item in zip(parts, column):
                part[str(name)] = item
            continue
        for number, leaf in enumerate(flatten(column)[0]):
            if not isinstance(leaf, np.ndarray) or leaf.ndim == 0 or len(leaf) != total:
                return None
            for part, rows in zip(parts, np.split(leaf, ends[:-1])):
                part[f"{name}/{number}" if number else str(name)] = rows
    return parts
