"""One column of many episodes, chunk by chunk, until somebody joins it into the arrays that are wanted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from epibatch.core.padding import PaddedLayout, pad
from epibatch.core.structs import Form, map_struct, unflatten

from ..infinite_lookback_buffer import InfiniteLookbackBuffer
from ..single_agent_episode import SingleAgentEpisode
from .arrays import Leaf
from .column_rows import LazyRows

__all__ = ["ColumnParts", "LazyRows", "lengths_of", "spans_of"]

_PLAIN_BUFFER = {InfiniteLookbackBuffer}


def lengths_of(episodes: Sequence[Any]) -> list[int]:
    """Steps of each chunk.

    Example:
        >>> columns = {"observations": [0, 1, 2], "actions": [0, 0], "rewards": [0.0, 0.0]}
        >>> lengths_of([SingleAgentEpisode(**columns, len_lookback_buffer=1)])
        [1]
    """
    if set(map(type, episodes)) != {SingleAgentEpisode}:
        return [len(episode) for episode in episodes]
    rewards = [episode.rewards for episode in episodes]
    if set(map(type, rewards)) != _PLAIN_BUFFER:
        return list(map(len, rewards))
    return [len(own) if own._flat is None else own._stop - own.lookback for own in rewards]


def spans_of(buffers: Sequence[Any], firsts: Sequence[int], stops: Sequence[int]) -> list[Leaf] | None:
    """Rows of some buffers, from a first one to a last one each, counted from the chunks' starts; views.

    Returns:
        None unless all buffers hold one array of their own.

    Example:
        >>> spans_of([InfiniteLookbackBuffer([1.0, 2.0, 3.0], lookback=1)], [-1], [1])
        [array([1., 2.])]
    """
    if set(map(type, buffers)) != _PLAIN_BUFFER:
        return None
    try:
        return [
            own._flat[own.lookback + first : min(own.lookback + stop, own._stop)]
            for own, first, stop in zip(buffers, firsts, stops)
        ]
    except TypeError:  # one has none
        return None


class ColumnParts(LazyRows):
    """The rows of a column, one array per chunk and leaf: views of the episodes' storage.

    Whoever keeps them joins them before anybody writes to the episodes.

    Args:
        form: Nesting of the column.
        leaves: For each leaf the chunks' arrays.
        counts: Rows of each array.
    """

    __slots__ = ("_bootstrap", "_last", "counts", "form", "leaves")

    def __init__(self, form: Form, leaves: list[list[Leaf]], counts: list[int]) -> None:
        self.form = form
        self.leaves = leaves
        self.counts = counts
        self._bootstrap = False
        self._last: Any = None

    @classmethod
    def of(cls, buffers: Sequence[Any], counts: list[int], first: int = 0) -> ColumnParts | None:
        """Rows after the lookback of some buffers.

        Args:
            buffers: One per chunk, at least one.
            counts: How many rows of each.
            first: Where they begin, counted from the lookback's end.

        Returns:
            None unless all rows lie in numeric arrays that their buffers own, in one nesting and shape.
        """
        if set(map(type, buffers)) != _PLAIN_BUFFER:
            return None
        if buffers[0]._flat is None:
            return cls._of_nested(buffers, counts, first)
        shape, parts = buffers[0]._shape, []
        for buffer, count in zip(buffers, counts):
            leaf, low, stop = buffer._flat, buffer.lookback + first, buffer._stop
            if leaf is None or buffer._shape != shape or low + count > stop:
                return None
            parts.append(leaf[low : low + count] if low or count != len(leaf) else leaf)
        return cls(None, [parts], counts)

    @classmethod
    def _of_nested(cls, buffers: Sequence[Any], counts: list[int], first: int) -> ColumnParts | None:
        form, example = buffers[0]._form, buffers[0]._leaves
        if form is None or example is None:
            return None
        shapes = [leaf.shape[1:] for leaf in example]
        leaves: list[list[Leaf]] = [[] for _ in shapes]
        for buffer, count in zip(buffers, counts):
            own, low = buffer._leaves, buffer.lookback + first
            if buffer._source is not None or own is None or buffer._form != form or low + count > buffer._stop:
                return None
            for leaf, shape, parts in zip(own, shapes, leaves):
                if leaf.shape[1:] != shape or leaf.dtype.kind not in "biufc":
                    return None
                parts.append(leaf[low : low + count])
        return cls(form, leaves, counts)

    def padded(self, layout: PaddedLayout) -> Any:
        """The arrays of shape [B, T, ...] in a padded layout, zeros where no row is."""
        if layout.scattered:
            return map_struct(lambda leaf: pad(leaf, layout), self.joined())
        rows = self.joined(layout.gaps)
        return map_struct(lambda leaf: leaf.reshape(layout.num_sequences, layout.max_seq_len, *leaf.shape[1:]), rows)

    def with_bootstraps(self, last: Any = None) -> ColumnParts:
        """The same with one row more per chunk.

        Args:
            last: Its value; default: the chunk's last row again.
        """
        self._bootstrap, self._last = True, last
        return self

    def rows_and_bytes(self) -> tuple[int, int]:
        """How many rows `joined` gives, and the bytes of all its arrays."""
        rows = sum(self.counts) + len(self.counts) * self._bootstrap
        row = sum(math.prod(own[0].shape[1:]) * self._with_last(np.result_type(*own)).itemsize for own in self.leaves)
        return rows, rows * row

    def joined(self, gaps: Sequence[int] | None = None, *, halved: bool = False) -> Any:
        """Copies of all rows, chunk after chunk, in the column's nesting.

        Args:
            gaps: Rows of zeros to leave behind each chunk's; default: none.
            halved: Whether leaves that are float64 throughout become float32.
        """
        if gaps is None and not self._bootstrap:
            return unflatten(self.form, [np.concatenate(parts, dtype=_narrow(parts, halved)) for parts in self.leaves])
        behind = [0] * len(self.counts) if gaps is None else list(gaps)
        if self._bootstrap:
            behind = [gap + 1 for gap in behind]
        return unflatten(self.form, [self._spread(parts, behind, _narrow(parts, halved)) for parts in self.leaves])

    def _with_last(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """The type of a column that has the bootstrap value too: a float makes integers floats."""
        return np.result_type(dtype, self._last) if isinstance(self._last, float) else dtype

    def _spread(self, parts: list[Leaf], behind: list[int], dtype: Any) -> Leaf:
        """Join with `behind` rows after each part, the first of which may be the bootstrap row."""
        first = parts[0]
        zeros = np.zeros((max(behind), *first.shape[1:]), self._with_last(first.dtype))
        fillers = {count: zeros[:count] for count in set(behind)}
        woven = [first] * (2 * len(parts))
        woven[::2], woven[1::2] = parts, [fillers[count] for count in behind]
        out: Leaf = np.concatenate(woven, dtype=dtype)
        if self._bootstrap:
            counts = np.array(self.counts)
            at = np.cumsum(counts + behind) - behind
            out[at] = out[at - 1] if self._last is None else self._last
        return out


def _narrow(parts: list[Leaf], halved: bool) -> Any:
    """The type to join arrays into: float32 if they are all float64 and that is wanted, None for their own."""
    return np.float32 if halved and all(part.dtype == np.float64 for part in parts) else None
