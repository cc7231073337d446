"""The infos of a chunk stay a list of dicts."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epibatch.core.errors import EpisodeIndexError
from epibatch.episodes._storage.infos_buffer import EMPTY, InfosBuffer
from epibatch.episodes.single_agent_episode import SingleAgentEpisode


def make() -> InfosBuffer:
    return InfosBuffer([{"i": i} for i in range(4)], lookback=1)


def test_reading() -> None:
    buffer = make()
    assert (len(buffer), buffer.len_incl_lookback(), buffer.space) == (3, 4, None)
    assert buffer.get(0) == {"i": 1} and buffer.get(-1, neg_index_as_lookback=True) == {"i": 0}
    assert buffer.get(slice(-9, 2), fill={}) == [{}] * 5 + [{"i": 0}, {"i": 1}, {"i": 2}]
    assert buffer[[0, -1]] == [{"i": 1}, {"i": 3}] and buffer.get(9, fill=None or {}) == {}


def test_writing() -> None:
    buffer = make()
    buffer.set({"x": 1}, at_indices=0)
    buffer.set([{"y": 2}, {"y": 3}], at_indices=slice(1, 3))
    assert buffer.data == [{"i": 0}, {"x": 1}, {"y": 2}, {"y": 3}]
    with pytest.raises(EpisodeIndexError, match=r"expected: 3 rows[\s\S]*found:    1"):
        buffer.set([{}])
    buffer.append({"z": 1})
    assert buffer.pop() == {"z": 1} and buffer == InfosBuffer(buffer.data, 1)


def test_given_dicts_are_copied_shallowly() -> None:
    info, inner = {"a": 1}, [0]
    info_with = {"inner": inner}
    episode = SingleAgentEpisode()
    episode.add_env_reset(0, info)
    episode.add_env_step(1, 0, 0.0, info_with)
    info["a"] = 2
    info_with["more"] = [1]
    inner.append(1)
    assert episode.get_infos() == [{"a": 1}, {"inner": [0, 1]}]


@given(
    rows=st.lists(
        st.sampled_from([{}, {"a": 1}, {"b": [1, {}]}, None, [], "text", 0, np.zeros(0), np.ones(2)]), max_size=9
    ),
    lookback=st.integers(0, 9),
    clone=st.sampled_from([copy.deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))]),
)
def test_copies_hold_the_same_rows_and_none_of_them_twice(rows: list[Any], lookback: int, clone: Any) -> None:
    buffer = InfosBuffer([copy.copy(row) for row in rows], lookback)
    buffer.t_started = 7
    other = clone(buffer)
    assert other == buffer and other.t_started == 7
    assert [type(row) for row in other.data] == [type(row) for row in rows]
    dicts = [row for row in other.data if type(row) is dict]
    assert len({id(row) for row in (*dicts, *filter(lambda row: type(row) is dict, buffer.data))}) == 2 * len(dicts)


def test_empty_infos_cost_next_to_nothing_in_a_pickle() -> None:
    assert len(pickle.dumps(InfosBuffer([{} for _ in range(10_000)]))) < 1_000


def test_empty_infos_are_dicts_of_their_own_that_keep_what_is_written_to_them() -> None:
    episode = SingleAgentEpisode()
    episode.add_env_reset(0)
    for i in range(4):
        episode.add_env_step(i, 0, 0.0, {} if i % 2 else None)
    episode.get_infos(1)["a"] = 1
    episode.get_infos([2])[0]["b"] = 2
    episode.get_infos(slice(3, 4))[0]["c"] = 3
    episode.infos.data[4]["d"] = 4
    assert episode.get_infos() == [{}, {"a": 1}, {"b": 2}, {"c": 3}, {"d": 4}]
    assert episode.infos.data is episode.infos.data and episode.get_infos(0) is episode.infos[0]
    assert pickle.loads(pickle.dumps(episode)).get_infos() == episode.get_infos()
    assert episode.infos.pop() == {"d": 4} and episode.infos == InfosBuffer(episode.infos.data)


def test_rows_for_a_copy_are_the_same_dicts_but_for_empty_ones_that_nobody_saw() -> None:
    kept = {"a": 1}
    buffer = InfosBuffer([EMPTY, kept, EMPTY])
    copy = buffer.copy_rows(range(0, 3), 0)
    assert copy.data == buffer.data == [{}, kept, {}] and copy.data[1] is buffer.data[1]
    copy.data[0]["new"] = 1
    assert buffer.data[0] == {}
    assert buffer.copy_rows([2, 1], 0).data == [{}, kept]
