"""Other ways to cut ragged chunks into sequences than zero-padding each chunk's last one.

`epibatch.core.padding` has `pad` and `unpad`, which move rows into the layouts made here and back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from epibatch.core.errors import ConfigError, nearest
from epibatch.core.padding import (
    Bools,
    Ints,
    SequenceLayout,
    check_counts,
    check_seq_len,
    layout_of_spans,
    owned_rows,
    padded_layout,
)

__all__ = [
    "SEQUENCE_ENDS",
    "SequenceEnd",
    "without_burn_in",
    "check_burn_in",
    "check_sequence_end",
    "joined_layout",
    "random_layout",
    "random_spans",
    "sequence_layout",
]

SequenceEnd = Literal["pad", "drop", "truncate", "overlap", "continue"]
SEQUENCE_ENDS: tuple[str, ...] = get_args(SequenceEnd)


def sequence_layout(
    counts: npt.ArrayLike, max_seq_len: int, *, end: str = "pad", burn_in: int = 0, bootstrapped: bool = False
) -> SequenceLayout:
    """Lay ragged chunks out as sequences of T = `max_seq_len` rows that end in one of five ways.

    - `pad`: a chunk's last sequence has zeros on its right.
    - `drop`: a chunk's last sequence is left out if it is short; so is a chunk of less than T rows.
    - `truncate`: a chunk is cut to its first sequence; the rest is left out. A short chunk is padded.
    - `overlap`: a chunk's last sequence reaches back so far that it is full. Rows that the sequence before it has too
      are its prefix and carry no loss. A chunk of less than T rows is padded.
    - `continue`: chunks follow one another without a gap, across sequences; only the very last one is padded.

    With `burn_in` = k, sequences own T - k rows each. Before these, every sequence but a chunk's first has a prefix of
    up to k rows, which the sequence before it owns and which carry no loss.

    With `bootstrapped` the last row of each chunk is no step but holds what came after the last one. A value function
    needs all rows then, so `drop` and `truncate` leave nothing out: what they would leave out carries no loss.

    Args:
        counts: int [C], rows per chunk; a chunk of 0 rows gets no sequence.
        max_seq_len: T >= 1.
        end: One of `SEQUENCE_ENDS`.
        burn_in: k, in [0, T).
        bootstrapped: Whether each chunk's last row is for bootstrapping only.

    Raises:
        ConfigError: an unknown end; k outside of [0, T); k > 0 with an end that has no sequences to burn in.
        ColumnError: counts are not a one-dimensional array of integers >= 0.

    Examples:
        >>> layout = sequence_layout([5, 3], 4, end="overlap")
        >>> layout.offsets, layout.seq_lens
        (array([0, 1, 0]), array([4, 4, 3]))
        >>> layout.loss.astype(int)
        array([[1, 1, 1, 1],
               [0, 0, 0, 1],
               [1, 1, 1, 0]])
    """
    steps = check_seq_len(max_seq_len)
    check_sequence_end(end, "sequence_layout, end")
    check_burn_in(burn_in, steps, end, "sequence_layout, burn_in")
    if end == "continue":
        return _continued(check_counts(counts), steps)
    if end == "pad" and not burn_in:
        return padded_layout(counts, steps)
    rows = check_counts(counts)
    chunks, begin, stop = owned_rows(rows, steps - burn_in)
    first = np.maximum(begin - burn_in, 0)
    if end == "overlap":
        last = stop == rows[chunks]
        first[last] = np.minimum(first, np.maximum(rows[chunks] - steps, 0))[last]
    left_out = np.zeros(len(chunks), np.bool_)
    if end == "drop":
        left_out = np.minimum(stop, rows[chunks] - bootstrapped) - begin < steps - burn_in
    elif end == "truncate":
        left_out = begin > 0
    if bootstrapped:
        return _placed(rows, steps, chunks, (first, begin, stop), burn_in, left_out)
    kept = ~left_out
    return _placed(rows, steps, chunks[kept], (first[kept], begin[kept], stop[kept]), burn_in)


def random_spans(rows: Ints, length: int, draws: npt.ArrayLike, short: str) -> tuple[Ints, Ints]:
    """Return where one sub-sequence of each chunk begins and ends, as `random_layout` takes them.

    Raises:
        ConfigError: `short` is neither "pad" nor "drop".
    """
    if short not in ("pad", "drop"):
        do = nearest(str(short), ("pad", "drop"))
        raise ConfigError("random_layout, short", expected="'pad' or 'drop'", found=repr(short), do=do)
    places = np.maximum(rows - length + 1, 1)
    begin = np.minimum((np.asarray(draws, np.float64) * places).astype(np.int64), places - 1)
    stop = np.minimum(begin + length, rows)
    return begin, np.where((rows < length) & (short == "drop"), begin, stop)


def random_layout(
    counts: npt.ArrayLike,
    max_seq_len: int,
    draws: npt.ArrayLike,
    *,
    burn_in: int = 0,
    short: str = "pad",
    bootstrapped: bool = False,
) -> SequenceLayout:
    """Lay one random sub-sequence of each chunk out.

    The rows that carry loss are T - k in a row, at any place of the chunk with the same probability; up to k rows in
    front of them are the prefix.

    Args:
        counts: int [C], rows per chunk.
        max_seq_len: T >= 1.
        draws: float [C], uniform in [0, 1): where each chunk's sub-sequence lies.
        burn_in: k, in [0, T).
        short: Chunks with less than T - k rows: "pad" takes all rows and pads them, "drop" leaves them out.
        bootstrapped: Whether each chunk's last row is for bootstrapping only, see `sequence_layout`. The other rows of
            a chunk are then in sequences of their own, which carry no loss.

    Raises:
        ConfigError: k outside of [0, T), or `short` is neither.
        ColumnError: counts are not a one-dimensional array of integers >= 0.

    Examples:
        >>> layout = random_layout([5, 2], 3, [0.9, 0.9])
        >>> layout.offsets, layout.seq_lens
        (array([2, 0]), array([3, 2]))
    """
    steps, rows = check_seq_len(max_seq_len), check_counts(counts)
    check_burn_in(burn_in, steps, "pad", "random_layout, burn_in")
    length = steps - burn_in
    begin, stop = random_spans(rows - bootstrapped, length, draws, short)
    if not bootstrapped:
        chunks = np.flatnonzero(stop > begin)
        begin, stop = begin[chunks], stop[chunks]
        return _placed(rows, steps, chunks, (np.maximum(begin - burn_in, 0), begin, stop), burn_in)
    starts = np.stack([np.zeros_like(begin), begin, stop], 1)  # before it, it itself, and after it
    parts, begin, stop = owned_rows(np.diff(starts, axis=1, append=rows[:, None]).ravel(), length)
    begin, stop = begin + starts.ravel()[parts], stop + starts.ravel()[parts]
    return _placed(rows, steps, parts // 3, (np.maximum(begin - burn_in, 0), begin, stop), burn_in, parts % 3 != 1)


def without_burn_in(layout: SequenceLayout, burn_in: int) -> SequenceLayout:
    """The layout without the rows that are there for the state alone: T - k rows per sequence.

    Args:
        layout: One that was made with `burn_in`.
        burn_in: k.

    Examples:
        >>> layout = sequence_layout([6], 4, burn_in=2)
        >>> layout.offsets, without_burn_in(layout, 2).offsets
        (array([0, 0, 2]), array([0, 2, 4]))
    """
    if layout.burn_in is None or layout.prefixes is None:
        return layout
    seq_lens, steps = layout.seq_lens - layout.burn_in, layout.max_seq_len - burn_in
    return replace(
        layout,
        max_seq_len=steps,
        seq_lens=seq_lens,
        mask=np.arange(steps) < seq_lens[:, None],
        offsets=layout.offsets + layout.burn_in,
        prefixes=layout.prefixes - layout.burn_in,
        burn_in=None,
    )


def joined_layout(layouts: Sequence[SequenceLayout], order: npt.ArrayLike) -> SequenceLayout:
    """Merge the layouts of several groups of chunks; each of their sequences has rows of only one chunk.

    Args:
        layouts: Of each group; made with the same settings.
        order: How to take their chunks, one group after the other, in the order of all chunks: int64 [chunks].

    Examples:
        >>> layouts = [sequence_layout([5], 2, end="drop"), sequence_layout([3], 2, end="drop")]
        >>> joined_layout(layouts, [1, 0]).sequence_chunks
        array([0, 1, 1])
    """
    rank = np.argsort(order, kind="stable")
    starts = np.cumsum([0, *(len(layout.counts) for layout in layouts)])
    chunks = np.concatenate([rank[start + layout.sequence_chunks] for start, layout in zip(starts, layouts)])
    order = np.argsort(chunks, kind="stable")
    counts = np.empty(len(rank), np.int64)
    counts[rank] = np.concatenate([layout.counts for layout in layouts])

    def together(name: str) -> Any:
        parts = [getattr(layout, name) for layout in layouts]
        return None if all(part is None for part in parts) else np.concatenate(parts)[order]

    names = ("seq_lens", "mask", "offsets", "prefixes", "no_loss", "burn_in")
    return replace(
        layouts[0],
        counts=counts,
        sequence_chunks=chunks[order],
        num_rows=int(counts.sum()),
        **{name: together(name) for name in names},
    )


def check_sequence_end(end: Any, where: str) -> str:
    """Return the name of an end after checking that it is one.

    Raises:
        ConfigError: it is not.
    """
    if end not in SEQUENCE_ENDS:
        hint = nearest(str(end), SEQUENCE_ENDS)
        raise ConfigError(where, expected=f"one of {', '.join(SEQUENCE_ENDS)}", found=repr(end), do=hint)
    return str(end)


def check_burn_in(burn_in: Any, steps: int, end: str, where: str) -> int:
    """Return the rows to burn in after checking that they fit sequences of `steps` rows with this end.

    Raises:
        ConfigError: they do not.
    """
    if isinstance(burn_in, bool) or not isinstance(burn_in, (int, np.integer)) or not 0 <= burn_in < steps:
        raise ConfigError(
            where,
            expected=f"an integer of at least 0 and less than max_seq_len = {steps}",
            found=repr(burn_in),
            do="make max_seq_len the steps to burn in and those to learn from together",
        )
    if burn_in and end in ("truncate", "continue"):
        raise ConfigError(
            where,
            expected=f"0 with sequence_end {end!r}, "
            + ("whose sequences all begin with a chunk" if end == "truncate" else "whose sequences mix chunks"),
            found=repr(burn_in),
            do="use sequence_end 'pad', 'drop' or 'overlap', or leave burn_in out",
        )
    return int(burn_in)


def _placed(
    rows: Ints, steps: int, chunks: Ints, spans: tuple[Ints, Ints, Ints], burn_in: int, no_loss: Bools | None = None
) -> SequenceLayout:
    """Return the layout of sequences with these first rows, first own rows, and ends (one past the last row)."""
    first, begin, stop = spans
    prefixes = begin - first
    burned = np.minimum(prefixes, burn_in) if burn_in else None
    return layout_of_spans(
        rows, steps, chunks, first, stop, scattered=True, prefixes=prefixes, no_loss=no_loss, burn_in=burned
    )


def _continued(rows: Ints, steps: int) -> SequenceLayout:
    total = int(rows.sum())
    starts = np.cumsum(rows) - rows
    _, begin, stop = owned_rows(np.array([total]), steps)
    chunks = np.searchsorted(starts + rows, begin, side="right")
    resets = np.zeros(len(begin) * steps, np.bool_)
    resets[starts[rows > 0]] = True
    resets[::steps] = False
    first = starts[chunks]
    return layout_of_spans(rows, steps, chunks, begin - first, stop - first, resets=resets.reshape(-1, steps))
