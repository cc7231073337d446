"""Reads into lookback are seen by a running watch, which may forbid writes."""

from __future__ import annotations

import numpy as np
import pytest

from epibatch.core.errors import EpisodeStateError, LookbackError
from epibatch.episodes import InfiniteLookbackBuffer
from epibatch.episodes._storage.indexing import (
    HistoryWatch,
    check_writable,
    note_history,
    watch_history,
)
from fixture_episodes import joint_step, meeting


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


def test_a_read_into_the_lookback_is_noted_whatever_asks_for_it() -> None:
    for ask in (-2, slice(-2, None), slice(-2, 1, 1), [-2], np.int64(-2)):
        buffer = InfiniteLookbackBuffer([1.0, 2.0, 3.0, 4.0], lookback=3)
        with watch_history(HistoryWatch()) as watch:
            buffer.get(ask, neg_index_as_lookback=True)
        assert watch.depth == 2


def test_reads_before_a_chunk_of_several_agents_are_seen_in_env_steps() -> None:
    episode = meeting("a")
    for _ in range(3):
        episode.add_env_step(**joint_step("a"))
    chunk = episode.cut(1)
    with watch_history(HistoryWatch()) as watch:
        chunk.get_observations(slice(-1, None), neg_index_as_lookback=True)
        assert watch.depth == 1
        with pytest.raises(LookbackError, match="at least 3 steps"):
            chunk.get_observations(slice(-3, None), neg_index_as_lookback=True, fill=0.0)


def test_pieces_that_may_not_write_cannot_set_pending_rows() -> None:
    episode = meeting("a")
    episode.add_env_step({}, {"a": 30}, {})
    with watch_history(HistoryWatch(writable=False)), pytest.raises(EpisodeStateError, match="mutates_episodes"):
        episode.set_actions(new_data={"a": 1}, at_indices=-1)
    assert episode.pending_actions == {"a": 30}
