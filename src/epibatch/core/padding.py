"""The padded layout of recurrent batches: ragged chunks cut into sequences of `max_seq_len` rows, zeros on the right.

Rows keep their order, so one gather fills a padded array and one gather empties it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, ConfigError
from epibatch.core.kept_property import kept_property
from epibatch.core.structs import BatchedNdArray, flatten, flatten_like, map_struct, unflatten

__all__ = [
    "SequenceLayout",
    "create_mask_and_seq_lens",
    "pad",
    "padded_layout",
    "placed_layout",
    "split_and_zero_pad",
    "split_and_zero_pad_n_episodes",
    "split_trajectories",
    "unpad",
    "unpad_data_if_necessary",
]


_END_FLAGS = (Columns.TERMINATEDS, Columns.TRUNCATEDS)

Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class SequenceLayout:
    """Places of the rows of ragged chunks in sequences `[B, T]`.

    Built by `padded_layout`, by `epibatch.core.sequence_ends` where sequences end in another way, and by
    `placed_layout`.

    Attributes:
        counts: int64 [C], rows per chunk.
        max_seq_len: T, rows per sequence.
        seq_lens: int64 [B], valid rows per sequence.
        mask: bool [B, T], True at places with a row.
        sequence_chunks: int64 [B], the chunk of each sequence's first row.
        num_rows: R, the sum of `counts`.
        offsets: int64 [B], index in its chunk of each sequence's first row.
        scattered: True if some rows are in several sequences or in none; otherwise each is in one, in order.
        prefixes: int64 [B], rows at the start of each sequence that belong to the one before it; None: none.
        no_loss: bool [B], sequences that carry no loss at all; None: none.
        burn_in: int64 [B], rows of the prefix that only compute the state; None: none.
        resets: bool [B, T], True where another chunk begins after the first place of a sequence; None: nowhere.
        places: int64 [R], the place of each row in the layout flattened to `[B * T]`, where rows change their order;
            None: they keep it.
    """

    counts: Ints
    max_seq_len: int
    seq_lens: Ints
    mask: Bools
    sequence_chunks: Ints
    num_rows: int
    offsets: Ints
    scattered: bool = False
    prefixes: Ints | None = None
    no_loss: Bools | None = None
    burn_in: Ints | None = None
    resets: Bools | None = None
    places: Ints | None = None

    @kept_property
    def num_sequences(self) -> int:
        """B, the number of sequences."""
        return len(self.seq_lens)

    @kept_property
    def first_rows(self) -> Ints:
        """int64 [B]: the flat row at each sequence's first place."""
        return (np.cumsum(self.counts) - self.counts)[self.sequence_chunks] + self.offsets

    @kept_property
    def own(self) -> Bools:
        """bool [B, T]: where each row lies that lies anywhere, once."""
        if self.prefixes is None:
            return self.mask
        return self.mask & (np.arange(self.max_seq_len) >= self.prefixes[:, None])

    @kept_property
    def loss(self) -> Bools:
        """bool [B, T]: the places of `own` in sequences that carry loss."""
        return self.own if self.no_loss is None else self.own & ~self.no_loss[:, None]

    @kept_property
    def destination(self) -> Ints:
        """int64 [K]: the place of every row of `kept_rows` in the layout flattened to `[B * T]`."""
        return np.flatnonzero(self.own) if self.places is None else self.places

    @kept_property
    def kept_rows(self) -> Ints:
        """int64 [K]: the flat rows that lie in a sequence, which `unpad` gives back."""
        return self.source[self.destination] if self.scattered else np.arange(self.num_rows)

    @kept_property
    def source(self) -> Ints:
        """int64 [B * T]: the flat row at every place; 0 at the places of `holes`."""
        if self.scattered and self.places is None:
            return np.where(self.mask, self.first_rows[:, None] + np.arange(self.max_seq_len), 0).ravel()
        source = np.zeros(self.mask.size, np.int64)
        source[self.destination] = np.arange(self.num_rows)
        return source

    @kept_property
    def holes(self) -> Ints:
        """int64 [H]: the places of the flattened layout without a row."""
        return np.flatnonzero(~self.mask)

    @kept_property
    def gaps(self) -> Ints:
        """int64 [C]: the places without a row after each chunk's rows; only for layouts that are not `scattered`."""
        if self.resets is None:
            return -self.counts % self.max_seq_len
        gaps = np.zeros_like(self.counts)
        gaps[-1:] = -self.num_rows % self.max_seq_len
        return gaps


def padded_layout(counts: npt.ArrayLike, max_seq_len: int) -> SequenceLayout:
    """Lay ragged chunks out as sequences of at most `max_seq_len` rows, `ceil(count / T)` sequences per chunk.

    Args:
        counts: int [C], rows per chunk; a chunk of 0 rows gets no sequence.
        max_seq_len: T >= 1.

    Raises:
        ColumnError: counts are not a one-dimensional array of integers >= 0.
        ConfigError: max_seq_len is no integer >= 1.

    Examples:
        >>> layout = padded_layout([5, 3], max_seq_len=4)
        >>> layout.seq_lens, layout.sequence_chunks
        (array([4, 1, 3]), array([0, 0, 1]))
        >>> layout.mask.astype(int)
        array([[1, 1, 1, 1],
               [1, 0, 0, 0],
               [1, 1, 1, 0]])
    """
    steps, rows = check_seq_len(max_seq_len), check_counts(counts)
    chunks, begin, stop = owned_rows(rows, steps)
    return layout_of_spans(rows, steps, chunks, begin, stop)


def owned_rows(counts: Ints, stride: int) -> tuple[Ints, Ints, Ints]:
    """Cut each chunk into sequences that own `stride` rows, the last one what is left.

    Args:
        counts: int64 [C], rows per chunk.
        stride: Rows per sequence.

    Returns:
        int64 [B] each: a sequence's chunk, its first row in the chunk, and one past its last row.
    """
    per_chunk = -(-counts // stride)
    chunks = np.repeat(np.arange(len(counts)), per_chunk)
    first = np.cumsum(per_chunk) - per_chunk
    begin = (np.arange(len(chunks)) - first[chunks]) * stride
    return chunks, begin, np.minimum(begin + stride, counts[chunks])


def layout_of_spans(counts: Ints, steps: int, chunks: Ints, first: Ints, stop: Ints, **others: Any) -> SequenceLayout:
    """Lay spans of chunks out, each as a sequence.

    Args:
        counts: int64 [C], rows per chunk.
        steps: T, rows per sequence.
        chunks: int64 [B], the chunk of each sequence.
        first: int64 [B], the first row in the chunk.
        stop: int64 [B], one past the last row.
        **others: Further attributes of the layout.
    """
    seq_lens = stop - first
    mask = np.arange(steps) < seq_lens[:, None]
    return SequenceLayout(counts, steps, seq_lens, mask, chunks, int(counts.sum()), first, **others)


def placed_layout(counts: Ints, places: Ints, shape: tuple[int, int]) -> SequenceLayout:
    """Lay rows out at given places of `[B, T]`, in any order.

    Args:
        counts: int64 [C], rows per chunk, R in all.
        places: int64 [R], the place of each row in the layout flattened to `[B * T]`; each at most once.
        shape: B and T.

    Examples:
        >>> layout = placed_layout(np.array([2, 1]), np.array([1, 3, 0]), (2, 2))
        >>> pad(np.array([10, 20, 30]), layout)
        array([[30, 10],
               [ 0, 20]])
    """
    mask = np.zeros(shape, np.bool_)
    mask.ravel()[places] = True
    zeros = np.zeros(shape[0], np.int64)
    return SequenceLayout(counts, shape[1], mask.sum(1), mask, zeros, len(places), zeros, scattered=True, places=places)


def pad(rows: npt.NDArray[Any], layout: SequenceLayout) -> npt.NDArray[Any]:
    """Move flat rows `[R, ...]` into the padded layout `[B, T, ...]`; padding is zero (False for bool).

    Raises:
        ColumnError: `rows` has another number of rows than the layout.

    Examples:
        >>> pad(np.arange(1, 6), padded_layout([5], max_seq_len=3))
        array([[1, 2, 3],
               [4, 5, 0]])
    """
    if len(rows) != layout.num_rows:
        raise _row_error("padding", f"{layout.num_rows} rows, as the chunks hold", f"{len(rows)} rows")
    shape = (layout.num_sequences, layout.max_seq_len, *rows.shape[1:])
    if not layout.scattered and (rows.ndim == 1 or layout.num_rows == 0):
        padded = np.zeros(shape, rows.dtype)
        padded[layout.mask] = rows
        return padded
    flat = rows.take(layout.source, axis=0)
    flat[layout.holes] = 0
    return flat.reshape(shape)


def unpad(padded: npt.NDArray[Any], layout: SequenceLayout) -> npt.NDArray[Any]:
    """Move `[B, T, ...]` back to flat rows `[R, ...]`: the exact inverse of `pad`.

    Where the layout leaves rows out, those of `layout.kept_rows` come back, `[K, ...]`.

    Raises:
        ColumnError: `padded` does not start with the layout's `[B, T]`.

    Examples:
        >>> layout = padded_layout([5, 2], max_seq_len=3)
        >>> unpad(pad(np.arange(7), layout), layout)
        array([0, 1, 2, 3, 4, 5, 6])
    """
    if padded.shape[:2] != layout.mask.shape:
        raise _row_error("removing padding", f"leading shape {layout.mask.shape}", f"{padded.shape[:2]}")
    if padded.ndim == 2:
        flat: npt.NDArray[Any] = padded.ravel()[layout.destination] if layout.scattered else padded[layout.mask]
        return flat
    return padded.reshape(layout.mask.size, *padded.shape[2:]).take(layout.destination, axis=0)


def create_mask_and_seq_lens(episode_len: int, T: int) -> tuple[list[Bools], list[int]]:
    """The masks and lengths of one episode's sequences; an episode of 0 rows gets one empty sequence.

    Args:
        episode_len: Rows of the episode, >= 0.
        T: Rows per sequence, >= 1.

    Returns:
        One bool [T] mask and one length per sequence.

    Examples:
        >>> create_mask_and_seq_lens(4, 3)
        ([array([ True,  True,  True]), array([ True, False, False])], [3, 1])
    """
    layout = padded_layout([episode_len], T)
    if layout.num_sequences == 0:
        return [np.zeros(layout.max_seq_len, np.bool_)], [0]
    return list(layout.mask), layout.seq_lens.tolist()


def split_and_zero_pad(item_list: Sequence[Any], max_seq_len: int) -> list[Any]:
    """Cut a list of rows into sequences of `max_seq_len` rows, the last one zero-padded.

    Args:
        item_list: Rows (arrays, numbers or structs of them), or `BatchedNdArray` items that hold many rows each.
        max_seq_len: T >= 1.

    Returns:
        One array (or struct of arrays) [T, ...] per sequence.

    Raises:
        ColumnError: the list is empty, or its items differ in nesting or shape.

    Examples:
        >>> split_and_zero_pad([1.0, 2.0, 3.0], 2)
        [array([1., 2.]), array([3., 0.])]
    """
    if len(item_list) == 0:
        raise _row_error("splitting a list of rows", "at least one row", "an empty list")
    first, form = flatten(item_list[0])
    leaves = []
    for column in zip(first, *(flatten_like(form, item) for item in item_list[1:])):
        join = np.concatenate if isinstance(column[0], BatchedNdArray) else np.stack
        try:
            rows = join([np.asarray(leaf) for leaf in column])
        except ValueError as error:
            shapes = sorted({np.shape(leaf) for leaf in column})
            raise _row_error("splitting a list of rows", "rows of one shape", f"shapes {shapes}") from error
        leaves.append(pad(rows, padded_layout([len(rows)], max_seq_len)))
    return [unflatten(form, list(sequence)) for sequence in zip(*leaves)]


def split_and_zero_pad_n_episodes(nd_array: Any, episode_lens: Sequence[int], max_seq_len: int) -> list[Any]:
    """Cut the concatenated rows of several episodes into zero-padded sequences, none crossing an episode's end.

    Args:
        nd_array: Array or struct of arrays [sum(episode_lens), ...].
        episode_lens: Rows per episode.
        max_seq_len: T >= 1.

    Returns:
        One array (or struct of arrays) [T, ...] per sequence.

    Raises:
        ColumnError: the rows do not add up to the episodes' lengths.

    Examples:
        >>> split_and_zero_pad_n_episodes(np.arange(1, 6), [3, 2], 2)
        [array([1, 2]), array([3, 0]), array([4, 5])]
    """
    layout = padded_layout(episode_lens, max_seq_len)
    leaves, form = flatten(map_struct(lambda leaf: pad(np.asarray(leaf), layout), nd_array))
    return [unflatten(form, list(sequence)) for sequence in zip(*leaves)]


def split_trajectories(columns: Mapping[str, Any], ids: str = Columns.EPS_ID) -> tuple[dict[str, Any], SequenceLayout]:
    """Cut a flat batch into trajectories, and pad them to the longest.

    Counterpart: TorchRL's `split_trajectories`. `unpad` of an array with the layout restores the rows in their order.

    Args:
        columns: Arrays, or structs of arrays, [R, ...].
        ids: The column with the trajectory of each row; rows of one may lie apart, and keep their order. Without such
            a column a trajectory ends with each row whose `terminateds` or `truncateds` is True.

    Returns:
        The columns [B, T, ...], zero-padded, with the trajectories in the order of their first rows; and the layout.
        Its `mask` [B, T] is True where a row is.

    Raises:
        ColumnError: neither ids nor flags, or columns with different numbers of rows.

    Examples:
        >>> flags = np.array([False, False, True, False])
        >>> batch, layout = split_trajectories({"obs": np.arange(1, 5), "terminateds": flags})
        >>> batch["obs"]
        array([[1, 2, 3],
               [4, 0, 0]])
        >>> unpad(batch["obs"], layout)
        array([1, 2, 3, 4])
    """
    names = [ids] if ids in columns else [name for name in _END_FLAGS if name in columns]
    marks = [np.asarray(columns[name]) for name in names]
    if not marks or marks[0].ndim != 1 or marks[0].shape != marks[-1].shape:
        found = ", ".join(f"{name} of shape {mark.shape}" for name, mark in zip(names, marks)) or f"{list(columns)}"
        raise _row_error("splitting trajectories", f"a column {ids!r}, or flags {_END_FLAGS}, of shape [R]", found)
    if ids in columns:
        numbers: dict[Any, int] = {}  # faster than sorting strings
        owners = np.array([numbers.setdefault(label, len(numbers)) for label in marks[0].tolist()], np.int64)
    else:
        ends = np.any(marks, axis=0)
        owners = np.cumsum(ends) - ends
    counts = np.bincount(owners)
    steps, order = int(counts.max(initial=0)), np.argsort(owners, kind="stable")
    places = np.empty_like(owners)
    places[order] = np.arange(len(owners)) + np.repeat(
        np.arange(len(counts)) * steps - np.cumsum(counts) + counts, counts
    )
    layout = placed_layout(counts, places, (len(counts), steps))
    return {
        name: map_struct(lambda leaf: pad(np.asarray(leaf), layout), rows) for name, rows in columns.items()
    }, layout


def unpad_data_if_necessary(episode_lens: Sequence[int], data: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return `[B, T]` data as flat rows without padding; one-dimensional data is returned as it is.

    Args:
        episode_lens: Rows per episode.
        data: [B, T] as `split_and_zero_pad_n_episodes` lays it out, or [R].

    Raises:
        ColumnError: the data has more than two axes, or fewer or more sequences than the episodes need.

    Examples:
        >>> unpad_data_if_necessary([3, 1], np.array([[1, 2], [3, 0], [4, 0]]))
        array([1, 2, 3, 4])
    """
    if data.ndim == 1:
        return data
    if data.ndim != 2:
        raise _row_error("removing padding", "an array [R] or [B, T]", f"shape {data.shape}; see `unpad`")
    return unpad(data, padded_layout(episode_lens, data.shape[1]))


def check_counts(counts: npt.ArrayLike) -> Ints:
    """Return row counts as int64 [C] after checking that they are integers >= 0.

    Raises:
        ColumnError: they are not.
    """
    rows = np.asarray(counts)
    if rows.size == 0:
        return np.zeros(0, np.int64)
    if rows.ndim != 1 or rows.dtype.kind not in "iu" or int(rows.min()) < 0:
        raise _row_error("row counts", "a one-dimensional array of integers >= 0", f"{counts!r}")
    return rows.astype(np.int64, copy=False)


def check_seq_len(max_seq_len: int, where: str = "max_seq_len") -> int:
    """Return rows per sequence after checking that they are an integer >= 1.

    Args:
        max_seq_len: Rows per sequence.
        where: What they are, for the message.

    Raises:
        ConfigError: they are not.
    """
    if isinstance(max_seq_len, bool) or not isinstance(max_seq_len, (int, np.integer)) or max_seq_len < 1:
        raise ConfigError(
            where,
            expected="an integer >= 1",
            found=repr(max_seq_len),
            do="set model_config['max_seq_len'] of the stateful module" if where == "max_seq_len" else "set it so",
        )
    return int(max_seq_len)


def _row_error(where: str, expected: str, found: str) -> ColumnError:
    return ColumnError(where, expected=expected, found=found, do="give every chunk's rows exactly once")
