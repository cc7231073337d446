"""Rows of one column in many chunks, where they lie, until a batch needs them as arrays."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from epibatch.core.errors import ColumnError, EpisodeError
from epibatch.core.padding import SequenceLayout, pad
from epibatch.core.structs import Form, form_text, map_struct, paths_of, unflatten

from .arrays import Leaf

Indices = npt.NDArray[np.int64]
Places = Callable[[Indices, Indices, int], Indices]


class LazyRows:  # no ABC: asking whether something is one is part of every step, and takes three times as long there
    """Rows of a column that lie in the episodes until they are needed as arrays."""

    __slots__ = ()

    @abstractmethod
    def joined(self, *, halved: bool = False) -> Any:
        """Copies of all rows, chunk after chunk, in the column's nesting.

        Args:
            halved: Whether leaves that are float64 throughout become float32.
        """

    @abstractmethod
    def rows_and_bytes(self) -> tuple[int, int]:
        """Return the number of rows of `joined`, and the bytes of all its arrays."""

    def padded(self, layout: SequenceLayout) -> Any:
        """The arrays of shape [B, T, ...] in a padded layout, zeros where no row is."""
        return map_struct(lambda leaf: pad(leaf, layout), self.joined())


class ColumnRows(LazyRows):
    """Rows of a column, one array per chunk and leaf: views of the episodes' storage.

    Join them before anything writes to the episodes.

    Args:
        form: Nesting of the column.
        leaves: For each leaf the chunks' arrays; none at all if no chunk has a row yet.
        counts: Rows of each chunk.
        name: The column, for messages.
        describe: Names a chunk, for messages.
        sound: Whether the rows are known to be numbers of one shape.
    """

    tails: Mapping[int, list[Leaf]] = {}
    """Rows that lie apart, by position of the chunk that each is the last row of: leaves of shape [1, ...]."""
    _bootstrap = 0
    _last: Any = None

    def __init__(
        self,
        form: Form,
        leaves: list[list[Leaf]],
        counts: list[int],
        name: str = "",
        describe: Callable[[int], str] = str,
        *,
        sound: bool = False,
    ) -> None:
        self.form, self.leaves, self.counts, self.sound = form, leaves, counts, sound
        self._name, self._describe = name, describe

    def of_chunk(self, chunk: int) -> list[Leaf]:
        """The leaves of one chunk's rows: views, unless its last row lies apart."""
        leaves = [parts[chunk] for parts in self.leaves]
        if chunk not in self.tails:
            return leaves
        return [np.concatenate([leaf, tail]) for leaf, tail in zip(leaves, self.tails[chunk])]

    def with_bootstraps(self, last: Any = None) -> ColumnRows:
        """Give each chunk one row more.

        Args:
            last: Its value; default: the chunk's last row again.

        Raises:
            EpisodeError: a chunk has no last row.
        """
        if last is None and 0 in self.counts:
            raise EpisodeError(
                f"column {self._name!r}, {self._describe(self.counts.index(0))}",
                expected="at least one row of each chunk, which is repeated",
                found="none",
                do="leave out episodes without steps: [episode for episode in episodes if len(episode)]",
            )
        self._bootstrap, self._last = 1, last
        return self

    def check(self) -> bool:
        """Make sure that the rows can be joined.

        Returns:
            Whether all of them are numbers.

        Raises:
            ColumnError: they differ in shape.
            EpisodeError: there are none, so that nothing shows what they are like.
        """
        if self.sound:
            return True
        if not self.leaves:
            raise EpisodeError(
                f"column {self._name!r}",
                expected="a step in one of the episodes, which shows what the column holds",
                found=f"{len(self.counts)} without steps",
                do="leave out episodes without steps: [episode for episode in episodes if len(episode)]",
            )
        for i, parts in enumerate(self.leaves):
            chunks = [chunk for chunk, leaf in enumerate(parts) if len(leaf)]
            for chunk in chunks:
                if parts[chunk].shape[1:] != parts[chunks[0]].shape[1:]:
                    raise self._mixed(chunks[0], chunk)
            for chunk, tail in self.tails.items():
                if tail[i].shape[1:] != parts[chunk].shape[1:]:
                    raise self._ragged(i, parts[chunk].shape[1:], tail[i][0], chunk, len(parts[chunk]))
            objects = [(chunk, leaf) for chunk, leaf in enumerate(parts) if leaf.dtype.kind == "O"]
            rows = [(row, chunk, t) for chunk, leaf in objects for t, row in enumerate(leaf)]
            arrays = rows and isinstance(rows[0][0], (np.ndarray, np.generic))
            if arrays and not (rows[0][0].dtype.kind in "SU" and not any(np.ndim(row) for row, *_ in rows)):
                shape = np.shape(rows[0][0])
                raise self._ragged(i, shape, *next((item for item in rows if np.shape(item[0]) != shape), rows[0]))
        return all(leaf.dtype.kind in "biufc" for parts in self.leaves for leaf in parts)

    def _mixed(self, chunk: int, other: int) -> ColumnError:
        def spell(i: int) -> str:
            shapes = [f"{parts[i].dtype} of shape {parts[i].shape[1:]}" for parts in self.leaves]
            return f"rows of {', '.join(shapes)}" + (f" nested as {form_text(self.form)}" if self.form else "")

        return ColumnError(
            f"column {self._name!r}",
            expected=f"{spell(chunk)}, as in {self._describe(chunk)}",
            found=f"{spell(other)} in {self._describe(other)}",
            do="batch only episodes of one space, or bring them to one shape with an earlier piece",
        )

    def _ragged(self, i: int, shape: tuple[int, ...], row: Any, chunk: int, t: int) -> ColumnError:
        return ColumnError(
            f"column {self._name!r}{paths_of(self.form)[i]}, {self._describe(chunk)}",
            expected=f"rows of one shape, {shape}",
            found=f"row {t} of shape {np.shape(row)} (the episode keeps such a column as objects)",
            do="bring them to one shape, by padding say, with an earlier piece",
        )

    def rows_and_bytes(self) -> tuple[int, int]:
        """Return the number of rows of `joined`, and the bytes of all its arrays."""
        rows = int(sum(self.counts)) + len(self.counts) * self._bootstrap
        row = sum(math.prod(own[0].shape[1:]) * self._with_last(np.result_type(*own)).itemsize for own in self.leaves)
        return rows, rows * row

    def joined(self, *, halved: bool = False) -> Any:
        """Copies of all rows, chunk after chunk, in the column's nesting.

        Args:
            halved: Whether leaves that are float64 throughout become float32.
        """
        return self._joined(None, halved)

    def padded(self, layout: SequenceLayout) -> Any:
        """The arrays of shape [B, T, ...] in a padded layout, zeros where no row is."""
        if layout.scattered:
            return super().padded(layout)
        rows = self._joined(layout.gaps, False)
        return map_struct(lambda leaf: leaf.reshape(layout.num_sequences, layout.max_seq_len, *leaf.shape[1:]), rows)

    def _joined(self, gaps: Sequence[int] | None, halved: bool) -> Any:
        """Copies of all rows, with so many rows of zeros after those of each chunk."""
        if gaps is None and not self._bootstrap:
            return unflatten(self.form, [np.concatenate(parts, dtype=_narrow(parts, halved)) for parts in self.leaves])
        after = [self._bootstrap] * len(self.counts) if gaps is None else [gap + self._bootstrap for gap in gaps]
        return unflatten(self.form, [self._spread(parts, after, _narrow(parts, halved)) for parts in self.leaves])

    def _with_last(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """The type of a column that has the bootstrap value too: a float makes integers floats."""
        return np.result_type(dtype, self._last) if isinstance(self._last, float) else dtype

    def _spread(self, parts: list[Leaf], after: list[int], dtype: Any) -> Leaf:
        """Join with `after` rows after each part, the first of which may be the bootstrap row."""
        first = parts[0]
        zeros = np.zeros((max(after), *first.shape[1:]), self._with_last(first.dtype))
        fillers = {count: zeros[:count] for count in set(after)}
        woven = [first] * (2 * len(parts))
        woven[::2], woven[1::2] = parts, map(fillers.__getitem__, after)
        out: Leaf = np.concatenate(woven, dtype=dtype)
        if self._bootstrap and self._last != 0:
            sizes = np.array(after)
            at = np.cumsum(sizes + self.counts) - sizes
            out[at] = out[at - 1] if self._last is None else self._last
        return out


class BlockRows(ColumnRows):
    """Rows of a column of one block, taken out of it in one gather.

    Args:
        form: Nesting of the column.
        block_leaves: Arrays of shape [T, N, ...].
        envs: Environment of each chunk.
        firsts: Row of the block with which each chunk's rows begin.
        counts: Rows of each chunk, those of `tails` included.
        step: Every how many rows of the block.
        places: Gives flat positions in the block: function of `firsts`, of rows for each chunk and of `step`.
        tails: Rows that lie apart (see the class before).
        name: The column, for messages.
        describe: Names a chunk, for messages.
    """

    def __init__(
        self,
        form: Form,
        block_leaves: list[Leaf],
        envs: Indices,
        firsts: Indices,
        counts: Indices,
        step: int,
        places: Places,
        tails: Mapping[int, list[Leaf]],
        name: str,
        describe: Callable[[int], str],
    ) -> None:
        self.form, self.counts, self.tails = form, counts.tolist(), tails
        self._name, self._describe = name, describe
        self.block_leaves, self._places, self._step = block_leaves, places, step
        self._envs, self._firsts, self._rows = envs, firsts, counts

    @cached_property
    def leaves(self) -> list[list[Leaf]]:  # type: ignore[override]
        """For each leaf the chunks' arrays, without those of `tails`."""
        counts, step = self._rows.copy(), self._step
        counts[list(self.tails)] -= 1
        spans = list(zip(self._firsts.tolist(), (self._firsts + counts * step).tolist(), self._envs.tolist()))
        return [[leaf[low:high:step, env] for low, high, env in spans] for leaf in self.block_leaves]

    @property
    def sound(self) -> bool:  # type: ignore[override]
        """True if the rows are known to be numbers of one shape."""
        leaves = self.block_leaves
        fit = all(part.shape[1:] == leaf.shape[2:] for tail in self.tails.values() for part, leaf in zip(tail, leaves))
        return fit and bool(leaves) and all(leaf.dtype.kind in "biufc" for leaf in leaves)

    padded = LazyRows.padded

    def joined(self, *, halved: bool = False) -> Any:
        """Copies of all rows, chunk after chunk, in the column's nesting.

        Args:
            halved: Whether leaves that are float64 throughout become float32.
        """
        return unflatten(self.form, [self.joined_leaf(i, halved) for i in range(len(self.block_leaves))])

    def joined_leaf(self, i: int, halved: bool, out: Leaf | None = None) -> Leaf:
        """Copies of all rows of leaf `i`, in `out` if it is given and of the type that they have."""
        counts = self._rows + 1 if self._bootstrap else self._rows
        at = self._places(self._firsts, counts, self._step)
        ends = np.cumsum(counts) if self._bootstrap or self.tails else counts
        rows = self.block_leaves[i]
        flat = rows.reshape(rows.shape[0] * rows.shape[1], *rows.shape[2:])
        target = out if out is not None and out.dtype == rows.dtype else None
        joined: Leaf = np.take(flat, at, axis=0, out=target, mode="clip")  # rows past a chunk's are overwritten
        for chunk, tail in self.tails.items():
            if tail[i].dtype != joined.dtype:
                joined = joined.astype(np.result_type(joined, tail[i]), copy=False)
            joined[ends[chunk] - 1 - self._bootstrap] = tail[i][0]
        if self._bootstrap:
            joined = joined.astype(self._with_last(joined.dtype), copy=False)
            joined[ends - 1] = joined[ends - 2] if self._last is None else self._last
        return joined.astype(np.float32) if halved and joined.dtype == np.float64 else joined


class SeveralBlockRows(ColumnRows):
    """Rows of a column of several blocks of one nesting and shape, in one gather for each block.

    Args:
        parts: The rows of each block, one after the other.
        name: The column, for messages.
        describe: Names a chunk, for messages.
    """

    def __init__(self, parts: Sequence[Any], name: str, describe: Callable[[int], str]) -> None:
        self.parts, self.form, self.sound = parts, parts[0].form, True
        self.counts, self.tails = [], {}
        for part in parts:
            self.tails.update({len(self.counts) + chunk: tail for chunk, tail in part.tails.items()})
            self.counts += part.counts
        self._name, self._describe = name, describe

    @cached_property
    def leaves(self) -> list[list[Leaf]]:  # type: ignore[override]
        """For each leaf the chunks' arrays, without those of `tails`."""
        return [[leaf for leaves in own for leaf in leaves] for own in zip(*(part.leaves for part in self.parts))]

    def with_bootstraps(self, last: Any = None) -> ColumnRows:
        """Give each chunk one row more (see `ColumnRows.with_bootstraps`)."""
        super().with_bootstraps(last)
        for part in self.parts:
            part.with_bootstraps(last)
        return self

    padded = LazyRows.padded

    def joined(self, *, halved: bool = False) -> Any:
        """Copies of all rows, chunk after chunk, in the column's nesting.

        Args:
            halved: Whether leaves that are float64 throughout become float32.
        """
        sizes = [sum(part.counts) + len(part.counts) * self._bootstrap for part in self.parts]
        ends = np.cumsum(sizes).tolist()
        places = [slice(end - size, end) for size, end in zip(sizes, ends)]
        return unflatten(self.form, [self._leaf(i, places, halved) for i in range(len(self.parts[0].block_leaves))])

    def _leaf(self, i: int, places: list[slice], halved: bool) -> Leaf:
        leaves = [part.block_leaves[i] for part in self.parts]
        halved = halved and all(leaf.dtype == np.float64 for leaf in leaves)
        dtype = np.float32 if halved else np.result_type(*leaves)
        out: Leaf = np.empty((places[-1].stop, *leaves[0].shape[2:]), dtype)
        found = [part.joined_leaf(i, halved, out[place]) for part, place in zip(self.parts, places)]
        if np.result_type(*found) != dtype:
            return np.concatenate(found)
        for rows, place in zip(found, places):
            if not np.may_share_memory(rows, out):
                out[place] = rows
        return out


def _narrow(parts: list[Leaf], halved: bool) -> Any:
    """The type to join arrays into: float32 if they are all float64 and that is wanted, None for their own."""
    return np.float32 if halved and all(part.dtype == np.float64 for part in parts) else None
