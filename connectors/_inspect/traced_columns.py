"""What columns of a batch look like: names, layouts, shapes, types, bytes."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from epibatch.core.struct_batches import BatchedNdArray

from .._engine.batch_items import single_agent_episode_iterator
from .._engine.columns import Batch, EpisodeColumn
from .._engine.layouts import is_plain

__all__ = ["TracedColumn", "differences", "stored_columns", "traced_columns"]


class TracedColumn(NamedTuple):
    """What one array of a batch looks like.

    Args:
        name: Its column; with `/` between, the parts of a nested one, and in front the module of several: `obs/camera`,
            `walker/obs`.
        layout: "episodes" (rows of each episode by themselves), "arrays", "tensors", "objects" (neither), or "stored":
            what the episodes themselves hold, under the names `episode.observations`, `.actions` and `.rewards`.
        shape: Rows first; None if rows differ in shape.
        dtype: Name of the type; of objects their class, and "mixed" where they differ.
        bytes: Of the rows.
        digest: Checksum of the values in their order, whatever the layout.
    """

    name: str
    layout: str
    shape: tuple[int, ...] | None
    dtype: str
    bytes: int
    digest: int

    def __str__(self) -> str:
        shape = "rows of other shapes" if self.shape is None else f"[{', '.join(map(str, self.shape))}]"
        return f"{self.layout} {self.dtype} {shape}"


def traced_columns(batch: Any) -> dict[str, TracedColumn]:
    """The columns of a batch in any layout, by name.

    Example:
        >>> column, = traced_columns({"obs": {"camera": np.zeros((5, 2), np.uint8)}}).values()
        >>> column.name, str(column), column.bytes
        ('obs/camera', 'arrays uint8 [5, 2]', 10)
    """
    found: dict[str, tuple[str, list[Any]]] = {}
    for name, layout, rows in _leaves(batch):
        found.setdefault(name, (layout, []))[1].extend(rows)
    return {name: _traced(name, layout, rows) for name, (layout, rows) in found.items()}


def stored_columns(episodes: Iterable[Any]) -> dict[str, TracedColumn]:
    """What episodes hold of observations, actions and rewards, by name.

    Example:
        >>> from epibatch.episodes import SingleAgentEpisode
        >>> episode = SingleAgentEpisode(observations=[0.5, 1.5], actions=[0], rewards=[1.0], len_lookback_buffer=0)
        >>> {name: str(column) for name, column in stored_columns([episode]).items()}["episode.observations"]
        'stored float64 [2]'
    """
    found: dict[str, tuple[str, list[Any]]] = {}
    for episode in single_agent_episode_iterator(list(episodes), agents_that_stepped_only=False):
        module_id = "" if episode.agent_id is None else f"{episode.module_id}/"
        for what in ("observations", "actions", "rewards"):
            if len(getattr(episode, what)):
                rows = getattr(episode, f"get_{what}")()
                for name, layout, leaves in _nested(f"{module_id}episode.{what}", rows, "stored"):
                    found.setdefault(name, (layout, []))[1].extend(leaves)
    return {name: _traced(name, layout, rows) for name, (layout, rows) in found.items()}


def differences(before: TracedColumn | None, after: TracedColumn | None) -> tuple[str, ...]:
    """In what a column differs: ("added",), ("removed",), or some of "layout", "shape", "dtype", "values".

    Args:
        before: The column in front of a piece; None if there is none.
        after: Behind it.
    """
    if before is None or after is None:
        return () if before is after else ("added",) if before is None else ("removed",)
    found = tuple(part for part in ("layout", "shape", "dtype") if getattr(before, part) != getattr(after, part))
    retyped = "dtype" in found or "shape" in found
    return found if retyped or before.digest == after.digest else (*found, "values")


def _leaves(batch: Any) -> Iterator[tuple[str, str, list[Any]]]:
    """Name, layout, and arrays of rows (or objects) of each leaf."""
    if isinstance(batch, Batch):
        for group, columns in batch.groups.items():
            module_id = group[0] if isinstance(group, tuple) else group
            for name, column in columns.items():
                yield from _of(str(name) if group is None else f"{module_id}/{name}", column)
        batch = batch.loose
    for name, column in batch.items():
        yield from _of(str(name), column)


def _of(name: str, column: Any) -> Iterator[tuple[str, str, list[Any]]]:
    if isinstance(column, EpisodeColumn):
        parts = column.parts  # not joined for good: that is the work of the piece that will need it
        yield from _nested(name, column.data if parts is None else parts.joined(), "episodes")
    elif is_plain(column):
        yield from _plain(name, column)
    elif isinstance(column, list):  # a module's items
        for item in column:
            yield from _nested(name, item, "episodes", single=True)
    else:
        yield from _nested(name, column, None)


def _plain(name: str, column: Mapping[Any, list[Any]]) -> Iterator[tuple[str, str, list[Any]]]:
    for key, items in column.items():
        own = f"{key[2]}/{name}" if len(key) == 3 else name
        for item in items:
            yield from _nested(own, item, "episodes", single=True)


def _nested(name: str, struct: Any, layout: str | None, single: bool = False) -> Iterator[tuple[str, str, list[Any]]]:
    """The leaves of a structure of rows, or of one row.

    Args:
        name: Of the structure.
        struct: Arrays, tensors, dicts and tuples of them, or objects.
        layout: Of it; None: as its leaves are.
        single: Whether a leaf that is not tagged as many rows is one row.
    """
    if isinstance(struct, (dict, tuple)) and name.rpartition("/")[2] != "infos":
        parts = struct.items() if isinstance(struct, dict) else enumerate(struct)
        for key, part in parts:
            yield from _nested(f"{name}/{key}", part, layout, single)
    elif isinstance(struct, list):
        yield name, layout or "objects", list(struct)
    elif hasattr(struct, "detach"):
        yield name, layout or "tensors", [_array(struct)]
    elif single and not isinstance(struct, BatchedNdArray):
        numeric = isinstance(struct, (np.ndarray, np.generic, int, float, bool))
        yield name, layout or "objects", [np.asarray(struct)[None] if numeric else struct]
    else:
        known = isinstance(struct, np.ndarray) and struct.ndim
        yield name, layout or ("arrays" if known else "objects"), [struct]


def _array(tensor: Any) -> Any:
    """A tensor's numbers as an array; its type is named apart, since NumPy has not all of them."""
    return _Tensor(tensor)


class _Tensor:
    """A tensor with what an array has of what is asked here."""

    def __init__(self, tensor: Any) -> None:
        self.shape = tuple(tensor.shape)
        self.dtype = str(tensor.dtype).removeprefix("torch.")
        self.nbytes = tensor.element_size() * tensor.nelement()
        self._tensor = tensor

    def digest(self, start: int) -> int:
        tensor = self._tensor.detach().cpu().contiguous()
        try:
            return _digest(tensor.numpy(), start)
        except TypeError:  # NumPy has no such type
            return _digest(tensor.float().numpy(), start)


def _traced(name: str, layout: str, rows: Iterable[Any]) -> TracedColumn:
    rows = list(rows)
    arrays = [part for part in rows if isinstance(part, (np.ndarray, _Tensor)) and part.shape]
    if len(arrays) != len(rows) or not rows:
        kinds = {type(part).__name__.lstrip("_") for part in rows}
        digest = 0
        for part in rows:
            digest = _digest_of(part, digest)
        return TracedColumn(name, layout, (len(rows),), kinds.pop() if len(kinds) == 1 else "mixed", 0, digest)
    types = {str(part.dtype) for part in arrays}
    shapes = {part.shape[1:] for part in arrays}
    shape = (sum(part.shape[0] for part in arrays), *shapes.pop()) if len(shapes) == 1 else None
    digest = 0
    for part in arrays:
        digest = part.digest(digest) if isinstance(part, _Tensor) else _digest(part, digest)
    dtype = types.pop() if len(types) == 1 else "mixed"
    return TracedColumn(name, layout, shape, dtype, sum(int(part.nbytes) for part in arrays), digest)


def _digest(array: Any, start: int) -> int:
    array = np.ascontiguousarray(array)
    if array.dtype.hasobject:
        return _digest_of(array.tolist(), start)
    return zlib.crc32(array.reshape(-1).view(np.uint8), start) if array.size else start


def _digest_of(part: Any, start: int, inside: tuple[int, ...] = ()) -> int:
    """The checksum of any object: of all numbers in arrays, at any depth of containers and dataclasses.

    Args:
        part: The object.
        start: The checksum of what stands in front of it.
        inside: The `id` of each object that it lies in.
    """
    if id(part) in inside:
        return start
    kind, inside = type(part), (*inside, id(part))
    start = zlib.crc32(kind.__name__.encode(), start)
    if isinstance(part, _Tensor):
        return part.digest(start)
    if hasattr(part, "detach") and hasattr(part, "element_size"):
        return _Tensor(part).digest(start)
    if isinstance(part, np.ndarray):
        return _digest(part, zlib.crc32(f"{part.dtype} {part.shape}".encode(), start))
    if isinstance(part, Mapping):
        part = [one for item in part.items() for one in item]
    elif isinstance(part, (set, frozenset)):
        part = sorted(_digest_of(one, 0, inside) for one in part)
    elif dataclasses.is_dataclass(part) and not isinstance(part, type):
        part = [getattr(part, own.name) for own in dataclasses.fields(part)]
    elif not isinstance(part, (list, tuple)):
        return zlib.crc32(repr(part).encode(), start)
    for one in part:
        start = _digest_of(one, start, inside)
    return start
