"""Infos of a multi-agent environment under `__common__`, which belong to no agent, beside a list by env step."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.core.errors import EpisodeError, EpisodeIndexError, UnknownNameError
from epibatch.episodes import MultiAgentEpisode, pack_episodes, unpack_episodes

COMMON = "__common__"
LENGTH = 6
GIVEN: list[dict[str, Any] | None] = [{"t": 0}, None, {"t": 2}, {"t": 3}, None, {}, {"t": 6}]


def infos_at(t: int) -> dict[Any, Any]:
    return {"a": {"own": t}, **({} if GIVEN[t] is None else {COMMON: GIVEN[t]})}


def new() -> MultiAgentEpisode:
    return MultiAgentEpisode("e", agent_episode_ids={"a": "one"})


def grow(episode: MultiAgentEpisode, stop: int, start: int = 0) -> MultiAgentEpisode:
    for t in range(start, stop + 1):
        observations = {"a": float(t)} if t % 2 == 0 else {}
        if t == 0:
            episode.add_env_reset(observations=observations, infos=infos_at(t))
        else:
            actions, ends = ({"a": t} if t % 2 else {}), {"__all__": t == LENGTH}
            episode.add_env_step(observations, actions, {"a": 1.0}, infos_at(t), terminateds=ends)
    return episode


def assert_has(episode: MultiAgentEpisode, first: int, last: int) -> None:
    """The chunk has what was given from one env step to another, and no agent of that name."""
    assert [row.get(COMMON) for row in episode.get_infos(return_list=True)] == GIVEN[first : last + 1]
    told = [info for info in GIVEN[first : last + 1] if info is not None]
    assert episode.get_infos().get(COMMON, []) == told
    assert set(episode.agent_ids) <= {"a"} and COMMON not in episode.get_observations()


@settings(max_examples=40)
@given(st.integers(1, LENGTH), st.integers(0, 3), st.integers(0, LENGTH), st.integers(0, LENGTH))
def test_kept_by_cut_join_slice_and_state(at: int, lookback: int, one: int, other: int) -> None:
    first = grow(new(), at - 1)
    second = grow(first.cut(lookback), LENGTH, at)
    assert_has(first, 0, at - 1)
    assert_has(second, at - 1, LENGTH)
    if second.lookback:
        before = second.get_infos(-1, neg_index_as_lookback=True)
        assert before.get(COMMON) == GIVEN[at - 2]
    for chunk in (first, second):
        for made in (
            MultiAgentEpisode.from_state(chunk.get_state()),
            pickle.loads(pickle.dumps(chunk)),
            copy.deepcopy(chunk),
            unpack_episodes(pack_episodes([chunk]))[0],
        ):
            assert made.equals(chunk) and made.get_infos() == chunk.get_infos()
    first.concat_episode(second)
    whole = grow(new(), LENGTH)
    assert first.equals(whole)
    assert_has(first, 0, LENGTH)
    begin, end = sorted((one, other))
    assert_has(whole[begin:end], begin, end)
    whole.set_infos(new_data={COMMON: {"t": 1}}, at_indices=0)
    assert not first.equals(whole)


@pytest.mark.parametrize(
    ("indices", "keywords", "expected"),
    [
        (0, {}, {"a": {"own": 0}, COMMON: {"t": 0}}),
        (1, {}, {}),
        (-1, {}, {"a": {"own": 6}, COMMON: {"t": 6}}),
        (3, {"agent_ids": [COMMON]}, {COMMON: {"t": 3}}),
        (3, {"agent_ids": COMMON}, {COMMON: {"t": 3}}),
        (2, {"agent_ids": "a"}, {"a": {"own": 2}}),
        ([0, 3, 4], {"agent_ids": {COMMON}}, {COMMON: [{"t": 0}, {"t": 3}]}),
        (slice(4, 7), {"agent_ids": {COMMON}, "fill": 0}, {COMMON: [0, {}, {"t": 6}]}),
        (4, {"agent_ids": COMMON, "fill": 0}, {COMMON: 0}),
        ([1, 4], {"agent_ids": COMMON}, {}),
        (0, {"env_steps": False}, {"a": {"own": 0}}),
    ],
)
def test_getters(indices: Any, keywords: dict[str, Any], expected: Any) -> None:
    episode = MultiAgentEpisode()
    for t in range(LENGTH + 1):
        if t == 0:
            episode.add_env_reset(observations={"a": 0.0}, infos=infos_at(0))
        else:
            acts, observes = t % 2, t % 2 == 0
            infos = {agent: info for agent, info in infos_at(t).items() if observes or agent == COMMON}
            episode.add_env_step({"a": 1.0} if observes else {}, {"a": 0} if acts else {}, {"a": 1.0}, infos)
    assert episode.get_infos(indices, **keywords) == expected


def test_what_a_getter_gives_can_be_set() -> None:
    episode = grow(MultiAgentEpisode(), LENGTH)
    for indices in (3, [2, 4, 6], None, slice(1, 4)):
        found = episode.get_infos(indices, agent_ids=COMMON)[COMMON]
        new: Any = {"new": 1} if indices == 3 else [{"new": i} for i in range(len(found))]
        episode.set_infos(new_data={COMMON: new}, at_indices=indices)
        assert episode.get_infos(indices)[COMMON] == new
    with pytest.raises(EpisodeIndexError, match=r"__common__[\s\S]*has one: 2[\s\S]*1 for \[2, 3\]"):
        episode.set_infos(new_data={COMMON: [{}]}, at_indices=[2, 3])
    without = MultiAgentEpisode()
    without.add_env_reset(observations={"a": 0.0})
    with pytest.raises(UnknownNameError, match=COMMON):
        without.set_infos(new_data={COMMON: {}}, at_indices=0)


def test_an_info_that_is_no_dict_is_refused_and_changes_nothing() -> None:
    episode = grow(new(), 3)
    before = copy.deepcopy(episode)
    with pytest.raises(EpisodeError, match="info dict"):
        episode.add_env_step({}, {}, {}, {COMMON: 3})
    assert episode.equals(before)
    with pytest.raises(EpisodeError, match="info dict"):
        MultiAgentEpisode().add_env_reset(observations={}, infos={COMMON: 3})
