"""Info dicts: lists of an episode's own, and those of one environment out of the infos of vector steps."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epibatch.core.errors import EpisodeIndexError
from epibatch.episodes import SingleAgentEpisode, VectorRecorder


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
        st.sampled_from([{}, {"a": 1}, {"b": [1, {}]}, None, [], "text", 0, np.zeros(0), np.ones(2)]),
        min_size=1,
        max_size=9,
    ),
    lookback=st.integers(0, 9),
    clone=st.sampled_from([copy.deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))]),
)
def test_copies_hold_the_same_rows_and_none_of_them_twice(rows: list[Any], lookback: int, clone: Any) -> None:
    columns = {
        "observations": list(range(len(rows))),
        "actions": [0] * (len(rows) - 1),
        "rewards": [0.0] * (len(rows) - 1),
    }
    infos = [copy.copy(row) for row in rows]
    episode = SingleAgentEpisode(**columns, infos=infos, len_lookback_buffer=lookback, t_started=7)
    buffer, other = episode.infos, clone(episode.infos)
    assert other == buffer and other.t_started == 7
    assert [type(row) for row in other.data] == [type(row) for row in rows]
    dicts = [row for row in other.data if type(row) is dict]
    assert len({id(row) for row in (*dicts, *filter(lambda row: type(row) is dict, buffer.data))}) == 2 * len(dicts)


def test_empty_infos_cost_next_to_nothing_in_a_pickle() -> None:
    infos = SingleAgentEpisode(observations=np.zeros(10_001), actions=np.zeros(10_000), rewards=np.zeros(10_000)).infos
    assert len(infos.data) == 10_001 and len(pickle.dumps(infos)) < 1_000


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
    infos_before = copy.deepcopy(episode.infos)
    assert episode.infos.data is episode.infos.data and episode.get_infos(0) is episode.infos[0]
    assert pickle.loads(pickle.dumps(episode)).get_infos() == episode.get_infos()
    assert episode.infos.pop() == {"d": 4} and episode.infos != infos_before


DONE = np.zeros(2, bool)


def recorded() -> VectorRecorder:
    recorder = VectorRecorder(2)
    recorder.reset(np.zeros(2), {"i": np.array([0, 10])})
    for i in (1, 2):
        recorder.step(np.zeros(2), np.zeros(2), DONE, DONE, np.zeros(2), {"i": np.array([i, 10 + i])})
    return recorder


def test_infos_of_a_block() -> None:
    infos = recorded().episodes[1].infos
    assert infos.data == infos.get() == [{"i": 10}, {"i": 11}, {"i": 12}]
    assert infos.get(-1) is infos.get(2) and infos.get(slice(1, 9), fill={}) == [{"i": 11}, {"i": 12}, *[{}] * 6]
    infos.get(0)["mark"] = 1
    infos.set({"new": 1}, at_indices=1)
    infos.set([{"last": 1}], at_indices=[-1])
    assert infos.data == [{"i": 10, "mark": 1}, {"new": 1}, {"last": 1}]
    with pytest.raises(EpisodeIndexError, match="match the indices"):
        infos.set([{}])
    twin = pickle.loads(pickle.dumps(infos))
    assert infos == twin


@pytest.mark.parametrize(
    ("infos", "env", "expected"),
    [
        ({"a": np.array([1, 2])}, 1, {"a": 2}),
        ({"a": np.array([1, 0]), "_a": np.array([True, False])}, 1, {}),
        ({"a": np.array([1, 0]), "_a": np.array([True, False])}, 0, {"a": 1}),
        ({"d": {"x": np.array([3, 4])}}, 0, {"d": {"x": 3}}),
        ({"same": "for all"}, 1, {"same": "for all"}),
        ({"_own": np.array([5, 6])}, 1, {"_own": 6}),
    ],
)
def test_infos_of_one_environment(infos: dict[str, Any], env: int, expected: dict[str, Any]) -> None:
    recorder = VectorRecorder(2)
    recorder.reset(np.zeros(2), infos)
    assert recorder.episodes[env].get_infos(-1) == expected
