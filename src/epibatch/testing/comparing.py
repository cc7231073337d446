"""Comparison of nested data, episodes and batches, with the differences as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from epibatch.core.structs import flatten, map_struct
from epibatch.episodes.arrays import same_value

_RTOL, _ATOL = 1e-5, 1e-6


def difference(expected: Any, found: Any, *, near: bool = False) -> str:
    """Return the first difference of two structures, with both values; empty if they are equal.

    Args:
        expected: dicts, lists, tuples, arrays, numbers and strings.
        found: The structure to compare with it.
        near: True if floats may differ by rounding, like sums in another order.

    Examples:
        >>> difference({"rewards": np.array([1.0, 2.0])}, {"rewards": np.array([1.0, 2.5])})
        'rewards: 1 of 2 values differ, first at (1,): 2.0 expected, 2.5 found'
        >>> difference({"a": 1}, {"a": 1})
        ''
    """
    return next(differences(expected, found, ("expected", "found"), rtol=near * _RTOL, atol=near * _ATOL), "")


def differences(
    left: Any, right: Any, names: tuple[str, str], *, rtol: float = 0.0, atol: float = 0.0, path: str = ""
) -> Iterator[str]:
    """Yield the differences of two structures of arrays as sentences; NaN equals NaN.

    Nesting, keys, shapes, types and values are compared; lists of numbers by the arrays made from them.

    Args:
        left: dicts, lists, tuples, arrays, numbers and strings.
        right: The structure to compare with it.
        names: The words for the two, after each value.
        rtol: Relative tolerance of floating-point values; 0 requires bit-identical values.
        atol: Absolute tolerance of floating-point values.
        path: The path of these two in the whole structure.
    """
    where = f"{path}: " if path else ""
    pairs: Any
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        yield from (f"{where}{key!r} only {names[0]}" for key in left if key not in right)
        yield from (f"{where}{key!r} only {names[1]}" for key in right if key not in left)
        pairs = [(key, left[key], right[key]) for key in left if key in right]
    elif _are_sequences(left, right):
        pairs = [(i, *pair) for i, pair in enumerate(zip(left, right))]
    elif isinstance(left, (Mapping, tuple)) or isinstance(right, (Mapping, tuple)):
        yield f"{where}nested as {type(left).__name__} {names[0]}, as {type(right).__name__} {names[1]}"
        return
    else:
        mismatch = _leaf_difference(left, right, names, rtol, atol)
        yield from [where + mismatch] if mismatch else []
        return
    for key, left_item, right_item in pairs:
        inner = f"{path}/{key}" if path else str(key)
        yield from differences(left_item, right_item, names, rtol=rtol, atol=atol, path=inner)


def _are_sequences(left: Any, right: Any) -> bool:
    """True for tuples, and lists of other things than numbers, with one item for each other."""
    kinds = isinstance(left, (tuple, list)) and type(left) is type(right) and len(left) == len(right)
    return kinds and (isinstance(left, tuple) or _are_objects(left) or _are_objects(right))


def _leaf_difference(left: Any, right: Any, names: tuple[str, str], rtol: float, atol: float) -> str:
    if _are_objects(left) or _are_objects(right):
        same = same_value(*(value.tolist() if isinstance(value, np.ndarray) else value for value in (left, right)))
        return "" if same else f"{left!r} {names[0]}, {right!r} {names[1]}"
    left_array, right_array = np.asarray(left), np.asarray(right)
    if left_array.shape != right_array.shape:
        return f"shape {left_array.shape} {names[0]}, {right_array.shape} {names[1]}"
    if left_array.dtype != right_array.dtype:
        return f"{left_array.dtype} {names[0]}, {right_array.dtype} {names[1]}"
    differs = (left_array != right_array) & ~((left_array != left_array) & (right_array != right_array))
    if (rtol or atol) and left_array.dtype.kind in "fc":
        differs &= ~np.isclose(left_array, right_array, rtol, atol, equal_nan=True)
    if not differs.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(differs)[0])
    values = f"first at {at}: {left_array[at]} {names[0]}, {right_array[at]} {names[1]}"
    return f"{int(differs.sum())} of {differs.size} values differ, {values}"


def _are_objects(value: Any) -> bool:
    try:
        return np.asarray(value).dtype.kind not in "biufcmM"
    except ValueError:  # ragged
        return True


def facts_of(episode: Any) -> dict[str, Any]:
    """Return copies of an episode's columns and flags, without custom data; for several agents each agent's."""
    if hasattr(episode, "agent_episodes"):
        return {str(agent): facts_of(agent_episode) for agent, agent_episode in episode.agent_episodes.items()}
    columns = {"observations": episode.observations, "actions": episode.actions, "rewards": episode.rewards}
    columns |= episode.extra_model_outputs
    return {
        **{name: map_struct(np.array, column.data) for name, column in columns.items() if column.len_incl_lookback()},
        "infos": [dict(info) for info in episode.infos.data],
        "flags": [bool(episode.is_terminated), bool(episode.is_truncated), len(episode), episode.t_started],
    }


def rows_of(batch: Any, counts: list[int]) -> list[dict[str, Any]] | None:
    """Return each episode's rows of a batch, column by column; None if they are not contiguous.

    Args:
        batch: Columns of arrays with a row axis first, or lists with one item for each episode.
        counts: Rows of each episode.
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
