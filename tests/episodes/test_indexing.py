"""Requests become absolute positions; reads into lookback are seen by a running watch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from epibatch.core.errors import EpisodeIndexError, EpisodeStateError, LookbackError
from epibatch.episodes import InfiniteLookbackBuffer
from epibatch.episodes._storage.indexing import (
    HistoryWatch,
    check_writable,
    note_history,
    position_of,
    positions_of,
    watch_history,
)


@pytest.mark.parametrize(
    ("index", "neg", "expected"), [(0, False, 2), (3, False, 5), (-1, False, 4), (-1, True, 1), (-3, True, -1)]
)
def test_position_of(index: int, neg: bool, expected: int) -> None:
    assert position_of(index, 2, 5, neg) == expected


@pytest.mark.parametrize(
    ("request_", "neg", "filled", "expected"),
    [
        (None, False, False, [2, 3, 4]),
        (slice(None), False, False, [2, 3, 4]),
        (slice(-9, 9), False, False, [0, 1, 2, 3, 4]),
        (slice(-6, None), False, True, [-1, 0, 1, 2, 3, 4]),
        (slice(-1, 1), True, False, [1, 2]),
        (slice(None, None, -1), False, False, [4, 3, 2]),
        (slice(None, -6, -1), False, True, [4, 3, 2, 1, 0]),
        ([0, -1], False, False, [2, 4]),
        ([], False, False, []),
    ],
)
def test_positions_of(request_: Any, neg: bool, filled: bool, expected: list[int]) -> None:
    assert list(positions_of(request_, 2, 5, neg, filled)) == expected


@pytest.mark.parametrize("bad", [0.5, "1", None])
def test_an_index_that_is_no_integer(bad: Any) -> None:
    with pytest.raises(EpisodeIndexError, match=r"an int, a slice or a list"):
        position_of(bad, 0, 1, False)


def test_a_slice_needs_a_step() -> None:
    with pytest.raises(EpisodeIndexError, match=r"step other than 0"):
        positions_of(slice(0, 1, 0), 0, 1, False, False)


def test_a_watch_records_the_depth_and_refuses_hidden_fills() -> None:
    note_history(-5, 0, 99)  # nobody watches
    with watch_history(HistoryWatch()) as watch:
        note_history(1, 2, 0)
        assert watch.depth == 1
        note_history(-1, 2, 0)
        note_history(5, 2, 0)  # no lookback read
        assert watch.depth == 3
        note_history(-1, 2, 2)  # the episode is not older than its lookback
        with pytest.raises(LookbackError, match=r"3 steps before[\s\S]*at least 3 steps"):
            note_history(-1, 2, 7)


def test_a_watch_refuses_writes_of_pieces_that_did_not_declare_them() -> None:
    check_writable()  # nobody watches
    with watch_history(HistoryWatch()) as watch:
        check_writable()
        watch.writable = False
        with pytest.raises(EpisodeStateError, match="mutates_episodes"):
            check_writable()
    assert positions_of(np.array([1]), 0, 2, False, False).tolist() == [1]  # type: ignore[union-attr]


def test_arrays_are_read_only_while_a_piece_runs_that_may_not_write() -> None:
    rows = {"a": [1.0, 2.0], "b": [[3], [4]]}
    buffer = InfiniteLookbackBuffer({key: np.array(values) for key, values in rows.items()})
    with watch_history(HistoryWatch(writable=False)) as watch:
        for found in (buffer.get(), buffer[0:1], buffer.get([0, 1]), buffer.get(slice(-3, 2), fill=0), buffer.data):
            with pytest.raises(ValueError, match="read-only"):
                found["a"][0] = 5
        with pytest.raises(ValueError, match="read-only"):
            buffer.get(-1)["b"][:] = 5
        watch.writable = True
        buffer.get()["a"][0] = 5
    buffer.get(-1)["b"][:] = 6
    assert buffer.data["a"].tolist() == [5, 2] and buffer.data["b"].tolist() == [[3], [6]]
