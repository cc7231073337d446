"""A batch as lines of text: names, order, kinds, types, shapes and a hash of each column's bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np
import torch

COMPUTED = frozenset(
    {
        "advantages",
        "value_targets",
        "returns_to_go",
        "episode_return",
        "actions_for_env",
    }
)
"""Columns that are computed in floating point: their values are stored, not their hashes."""


class Description:
    """Lines and values that say what a batch is.

    Args:
        computed: Names of further columns whose floats are compared with a tolerance.
        episodes: Those whose names are random; lines have their positions instead.

    Attributes:
        lines: One per leaf, in the order of the batch: path, kind, type, shape, and a hash or `~` for stored values.
        values: The stored values, one array per such leaf.
    """

    def __init__(self, computed: Collection[str] = (), episodes: Iterable[Any] = ()) -> None:
        self._computed = COMPUTED | set(computed)
        self._names: dict[str, str] = {}
        for i, episode in enumerate(episodes):
            self._names.setdefault(repr(episode.id_), repr(i))
        self.lines: list[str] = []
        self.values: list[np.ndarray[Any, Any]] = []

    def add(self, name: str, batch: Any) -> None:
        """Describe a batch, or any struct of dicts, lists, tuples and leaves."""
        for path, (kind, arrays) in merged(leaves(batch)):
            first, count = arrays[0], f"*{len(arrays)}" if len(arrays) > 1 else ""
            shape = "x".join(map(str, first.shape)) or "-"
            line = f"{name}{self._named(path)} {kind}{count} {first.dtype} {shape}"
            rows = np.stack(arrays)
            if first.dtype.kind == "f" and any(part.strip("/'") in self._computed for part in path):
                self.lines.append(f"{line} ~")
                self.values.append(rows.astype(np.float64).ravel())
            else:
                self.lines.append(f"{line} {digest(rows)}")

    def _named(self, path: tuple[str, ...]) -> str:
        text = "".join(path)
        for name, position in self._names.items():
            text = text.replace(name, position)
        return text

    def add_episodes(self, episodes: Any) -> None:
        """Describe, in one line, what single-agent episodes hold after a call."""
        self.lines.append(f"episodes {digest_of_episodes(episodes)}")

    def add_steps(self, batches: list[Any]) -> None:
        """Describe the batches of several steps, columns that are alike in one line, and the order of all keys."""
        self.add("", batches)
        order = [" ".join(path) for batch in batches for path, _ in leaves(batch)]
        self.lines.append(f"order {digest(np.array(order))}")


def digest_of_episodes(episodes: Any) -> str:
    """Hash the observations, actions and rewards of single-agent episodes."""
    inner = Description()
    for episode in episodes:
        inner.add("obs", episode.get_observations())
        if len(episode):
            inner.add("actions", episode.get_actions())
            inner.add("rewards", episode.get_rewards())
    return digest(np.array(inner.lines))


def digest(array: np.ndarray[Any, Any]) -> str:
    """Hash an array's bytes; objects by their representation."""
    if array.dtype.kind in "OU":
        data = repr(array.tolist()).encode()
    else:
        data = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"))).tobytes()
    return hashlib.sha256(data).hexdigest()[:10]


def leaves(struct: Any) -> Iterator[tuple[tuple[str, ...], tuple[str, np.ndarray[Any, Any]]]]:
    """Yield path, kind and array of each leaf of a struct, in its order; empty containers count as leaves."""
    if isinstance(struct, dict):
        parts = [(f"/{key}" if isinstance(key, str) else f"/{key!r}", inner) for key, inner in struct.items()]
    elif isinstance(struct, (list, tuple)):
        marks = "[]" if isinstance(struct, list) else "()"
        parts = [(f"{marks[0]}{i}{marks[1]}", inner) for i, inner in enumerate(struct)]
    else:
        yield (), leaf(struct)
        return
    if not parts:
        yield (), (type(struct).__name__, np.empty(0, np.bool_))
    for part, inner in parts:
        for path, value in leaves(inner):
            yield (part, *path), value


def leaf(value: Any) -> tuple[str, np.ndarray[Any, Any]]:
    """Return a leaf's kind and array: tensor, array, or scalar (of NumPy or Python, which count as equal)."""
    if isinstance(value, torch.Tensor):
        return "tensor", value.detach().cpu().numpy()
    array = np.asarray(value)
    return ("array" if isinstance(value, np.ndarray) and array.ndim else "scalar"), array


def merged(
    found: Iterator[tuple[tuple[str, ...], tuple[str, np.ndarray[Any, Any]]]],
) -> Iterator[tuple[tuple[str, ...], tuple[str, list[np.ndarray[Any, Any]]]]]:
    """Join the items of lists that are alike in kind, type and shape to one entry with all their arrays."""
    joined: dict[Any, tuple[str, list[np.ndarray[Any, Any]]]] = {}
    for path, (kind, array) in found:
        key = tuple("[]" if part.startswith("[") else part for part in path)
        joined.setdefault((key, kind, array.dtype, array.shape), (kind, []))[1].append(array)
    for (path, *_), entry in joined.items():
        yield path, entry
