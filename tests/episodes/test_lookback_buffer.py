"""Reading and writing by index against lists of rows, for every way that a buffer can hold its newest row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.core.errors import EpisodeIndexError
from epibatch.episodes._storage.indexing import HistoryWatch, watch_history
from epibatch.episodes.infinite_lookback_buffer import InfiniteLookbackBuffer

BOUND = st.one_of(st.none(), st.integers(-12, 12), st.integers(-12, 12).map(np.int64))
KINDS: dict[str, Any] = {
    "reward": lambda i: float(i + 1),
    "vector": lambda i: np.array([i, i + 0.5], np.float32),
    "frame": lambda i: np.full((2, 2), i, np.uint8),
    "count": lambda i: i + 1,
}


@st.composite
def buffers(draw: st.DrawFn) -> tuple[InfiniteLookbackBuffer, list[Any], str]:
    """A buffer whose newest row is stored, or provisional, or held apart because it is of another type."""
    kind = draw(st.sampled_from(sorted(KINDS)))
    rows = [KINDS[kind](i) for i in range(draw(st.integers(1, 9)))]
    buffer = InfiniteLookbackBuffer(list(rows))
    newest = draw(st.sampled_from(["stored", "provisional", "apart"]))
    if newest != "stored":
        row = KINDS[kind](40)
        row = np.asarray(row, np.float64) if newest == "apart" else row
        buffer.stage(row)
        rows.append(row)
    buffer.lookback = draw(st.integers(0, len(rows)))
    return buffer, rows, kind


def positions(s: slice, lookback: int, total: int, as_lookback: bool) -> range:
    """What a slice without a step asks for, spelled out."""

    def place(bound: Any, default: int) -> int:
        if bound is None:
            return default
        return int(bound) + (lookback if bound >= 0 or as_lookback else total)

    return range(place(s.start, lookback), place(s.stop, total))


@given(
    made=buffers(),
    start=BOUND,
    stop=BOUND,
    step=st.sampled_from([None, 1]),
    as_lookback=st.booleans(),
    fill=st.sampled_from([None, 0, 7.5, 3]),
)
@settings(deadline=None, derandomize=True, max_examples=400)
def test_a_slice_is_its_rows_one_by_one(
    made: Any, start: Any, stop: Any, step: Any, as_lookback: bool, fill: Any
) -> None:
    buffer, rows, _ = made
    wanted = positions(slice(start, stop), buffer.lookback, len(rows), as_lookback)
    if fill is None:
        wanted = range(max(wanted.start, 0), min(wanted.stop, len(rows)))
    found = buffer.get(slice(start, stop, step), neg_index_as_lookback=as_lookback, fill=fill)
    assert len(found) == len(wanted)
    exist = [p for p in wanted if 0 <= p < len(rows)]
    if exist:
        kept = np.stack([rows[p] for p in exist])
        fraction = fill == 7.5 and len(exist) < len(wanted)
        dtype = np.result_type(kept.dtype, np.float64) if fraction and kept.dtype.kind in "iu" else kept.dtype
        filler = np.full(kept.shape[1:], 0 if fill is None else fill, dtype)
        expected = np.stack([rows[p] if 0 <= p < len(rows) else filler for p in wanted])
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == dtype
    elif len(found):
        assert (found == np.asarray(fill).astype(found.dtype)).all()


@given(
    made=buffers(), index=st.one_of(st.integers(-12, 12), st.integers(-12, 12).map(np.int64)), as_lookback=st.booleans()
)
@settings(deadline=None, derandomize=True, max_examples=300)
def test_one_row_is_read_and_written_where_it_is(made: Any, index: Any, as_lookback: bool) -> None:
    buffer, rows, kind = made
    position = int(index) + (buffer.lookback if index >= 0 or as_lookback else len(rows))
    new = KINDS[kind](90)
    if not 0 <= position < len(rows):
        with pytest.raises(EpisodeIndexError, match="indices within"):
            buffer.get(index, neg_index_as_lookback=as_lookback)
        with pytest.raises(EpisodeIndexError, match="indices within"):
            buffer.set(new, at_indices=index, neg_index_as_lookback=as_lookback)
        return
    np.testing.assert_array_equal(buffer.get(index, neg_index_as_lookback=as_lookback), rows[position])
    buffer.set(new, at_indices=index, neg_index_as_lookback=as_lookback)
    if isinstance(new, np.ndarray):
        given, new = new, new.copy()
        given[...] = 99  # a copy was stored
    rows[position] = new
    np.testing.assert_array_equal(buffer.data, np.stack(rows))


@pytest.mark.parametrize(("row", "kind"), [(0.5, float), (2**70, object), (True, np.int64), (np.uint8(3), np.int64)])
def test_a_row_that_the_array_cannot_hold_changes_its_type(row: Any, kind: Any) -> None:
    buffer = InfiniteLookbackBuffer([1, 2, 3])
    buffer.set(row, at_indices=1)
    assert buffer.data.tolist() == [1, row, 3] and buffer.data.dtype == kind


def test_a_read_into_the_lookback_is_noted_whatever_asks_for_it() -> None:
    for ask in (-2, slice(-2, None), slice(-2, 1, 1), [-2], np.int64(-2)):
        buffer = InfiniteLookbackBuffer([1.0, 2.0, 3.0, 4.0], lookback=3)
        with watch_history(HistoryWatch()) as watch:
            buffer.get(ask, neg_index_as_lookback=True)
        assert watch.depth == 2
