"""Writing into an episode, and copies of it: setters, types, the provisional observation, pickles, states."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from epibatch.core.errors import SpaceError
from epibatch.episodes.single_agent_episode import SingleAgentEpisode
from fixture_episodes import add_numbered, leaves, numbered

BOX = gym.spaces.Box(-100, 100, (2,), np.float32)


RUNNING = {"terminated": False, "truncated": False}


def test_set_the_other_columns() -> None:
    episode = numbered(3)
    episode.set_observations(new_data=[5, 6, 7, 8])
    episode.set_actions(new_data=9, at_indices=-1)
    episode.set_extra_model_outputs(key="e", new_data=np.ones(2, np.float32), at_indices=0)
    np.testing.assert_array_equal(episode.get_observations(), [5, 6, 7, 8])
    np.testing.assert_array_equal(episode.get_actions(), [10, 11, 9])
    np.testing.assert_array_equal(episode.get_extra_model_outputs("e"), [[1, 1], [1, 1], [2, 2]])


def test_a_fraction_written_into_integers_makes_the_column_float() -> None:
    episode = SingleAgentEpisode(observations=[0, 1, 2], actions=[0, 0], rewards=[1, 2], len_lookback_buffer=0)
    assert episode.get_rewards().dtype == np.int64
    episode.set_rewards(new_data=0.5, at_indices=0)
    np.testing.assert_array_equal(episode.get_rewards(), [0.5, 2])
    episode.add_env_step(3, 0.25, 3, terminated=False, truncated=False)
    np.testing.assert_array_equal(episode.get_actions(), [0, 0, 0.25])


def test_numeric_getters_write_through() -> None:
    episode = numbered(3, 1)
    rewards, observations, extra = episode.get_rewards(), episode.get_observations(), episode.get_extra_model_outputs
    rewards += 5
    observations += 100
    extra("e")[:] = 7
    extra("e", 0)[0] = 8
    np.testing.assert_array_equal(episode.rewards.data, [0, 5.5, 6])
    np.testing.assert_array_equal(episode.observations.data, [0, 101, 102, 103])
    np.testing.assert_array_equal(episode.extra_model_outputs["e"].data, [[0, 0], [8, 7], [7, 7]])
    add_numbered(episode, 4)
    np.testing.assert_array_equal(episode.observations.data, [0, 101, 102, 103, 4])


def test_a_leaf_of_changing_shape_becomes_an_object_column_alone() -> None:
    episode = SingleAgentEpisode()
    episode.add_env_reset({"a": np.zeros(2), "b": 0})
    for i in (1, 2, 3):
        episode.add_env_step({"a": np.full(2 + i, i), "b": i}, 0, 0.0, terminated=False, truncated=False)
    found = episode.get_observations(slice(0, 4))
    assert found["a"].dtype == object and [row.shape for row in found["a"]] == [(2,), (3,), (4,), (5,)]
    np.testing.assert_array_equal(found["a"][2], [2, 2, 2, 2])
    np.testing.assert_array_equal(episode.get_observations(1)["a"], [1, 1, 1])
    assert found["b"].dtype == np.int64


def test_the_newest_observation_is_provisional() -> None:
    episode = SingleAgentEpisode()
    episode.add_env_reset({"x": np.zeros(2, np.float64), "n": 0})
    for i in range(1, 5):
        raw = episode.get_observations(-1)
        assert raw["n"] == i - 1
        flat = np.concatenate([raw["x"], [raw["n"]]]).astype(np.float32)
        episode.set_observations(new_data=flat, at_indices=-1)
        np.testing.assert_array_equal(episode.get_observations(-1), flat)
        obs = {"x": np.full(2, i, np.float64), "n": i}
        episode.add_env_step(obs, 0, 0.0, terminated=False, truncated=i == 4)
    episode.set_observations(new_data=np.full(3, 4, np.float32), at_indices=-1)
    found = episode.get_observations()
    assert found.dtype == np.float32 and episode.is_truncated
    np.testing.assert_array_equal(found, [[i, i, i] for i in range(5)])


def test_a_piece_may_write_observations_and_point_the_episode_to_their_space() -> None:
    flat_space = gym.spaces.Box(-100, 100, (3,), np.float32)
    episode = SingleAgentEpisode(observation_space=flat_space)
    episode.add_env_reset(np.zeros(3, np.float32))
    assert episode.observations.space == flat_space
    episode.observation_space, episode.action_space = BOX, gym.spaces.Discrete(2)
    episode.set_observations(new_data=np.ones(2, np.float32), at_indices=-1)
    np.testing.assert_array_equal(episode.observations.get(-5, fill=1), [1, 1])
    assert episode.observations.space == BOX and episode.actions.space == gym.spaces.Discrete(2)


RAW = {"x": np.zeros(2), "n": 0}


READERS: dict[str, Callable[[SingleAgentEpisode], Any]] = {
    "data": lambda e: e.observations.data,
    "get": lambda e: e.get_observations(),
    "slice": lambda e: e[0 : len(e)],
    "cut": lambda e: e.cut(),
    "deepcopy": copy.deepcopy,
    "pickle": lambda e: pickle.dumps(e, protocol=5),
    "state": lambda e: e.get_state(),
    "validate": lambda e: e.validate(),
    "repr": repr,
}


@pytest.mark.parametrize("steps_before", [0, 2])
@pytest.mark.parametrize("reader", READERS)
def test_reading_leaves_the_newest_observation_provisional(reader: str, steps_before: int) -> None:
    episode = SingleAgentEpisode()
    episode.add_env_reset(RAW)
    for i in range(steps_before + 1):
        if i == steps_before:
            READERS[reader](episode)
            assert episode.get_observations(-1)["n"] == 0
        episode.set_observations(new_data=np.full(3, i, np.float32), at_indices=-1)
        episode.add_env_step(RAW, 0, 0.0, **RUNNING)
    episode.set_observations(new_data=np.full(3, steps_before + 1, np.float32), at_indices=-1)
    found = episode.get_observations()
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, [[i] * 3 for i in range(steps_before + 2)])


# ---------------------------------------------------------------- ownership
def test_the_constructor_keeps_nothing_of_the_callers() -> None:
    observations, rewards, infos, extras = [np.zeros(2), np.ones(2)], [1.0], [{}, {}], {"e": [np.zeros(1)]}
    episode = SingleAgentEpisode(
        observations=observations, actions=[0], rewards=rewards, infos=infos, extra_model_outputs=extras,
        len_lookback_buffer=0,
    )  # fmt: skip
    episode.add_env_step(
        np.full(2, 2.0), 1, 2.0, {"k": 1}, terminated=False, truncated=False, extra_model_outputs={"e": np.ones(1)}
    )
    assert [len(x) for x in (observations, rewards, infos, extras["e"])] == [2, 1, 2, 1]
    observations[0][:] = 9
    observations.append(np.zeros(2))
    extras["e"][0][:] = 9
    rewards[0] = 9.0
    np.testing.assert_array_equal(episode.get_observations(), [[0, 0], [1, 1], [2, 2]])
    np.testing.assert_array_equal(episode.get_rewards(), [1, 2])
    np.testing.assert_array_equal(episode.get_extra_model_outputs("e"), [[0], [1]])


@pytest.mark.parametrize("how", ["constructor", "step", "set"])
def test_rows_of_object_columns_are_copies_as_well(how: str) -> None:
    rows = [np.zeros(1), np.zeros(2), np.zeros(3)]
    if how == "constructor":
        episode = SingleAgentEpisode(
            observations=[0, 1, 2, 3], actions=list(rows), rewards=[0.0] * 3, len_lookback_buffer=0,
            extra_model_outputs={"e": list(rows)},
        )  # fmt: skip
    else:
        episode = SingleAgentEpisode()
        episode.add_env_reset(0)
        for row in rows:
            first = row if how == "step" else np.ones(len(row))
            episode.add_env_step(0, first, 0.0, extra_model_outputs={"e": first}, **RUNNING)
    if how == "set":
        for i, row in enumerate(rows):
            episode.set_actions(new_data=row, at_indices=i)
            episode.set_extra_model_outputs(key="e", new_data=row, at_indices=i)
    for row in rows:
        row += 9
    for column in (episode.get_actions(), episode.get_extra_model_outputs("e")):
        assert column.dtype == object and [float(row.sum()) for row in column] == [0.0, 0.0, 0.0]


# ---------------------------------------------------------------- a refused write changes nothing
@pytest.mark.parametrize(
    ("action", "extra"),
    [({"b": 1}, {"e": 0}), (1, {"e": 0}), ({"a": 1}, {"e": {"nested": 0}}), (({"a": 1},), {"e": 0})],
)
def test_a_refused_step_leaves_the_episode_as_it_was(action: Any, extra: Any) -> None:
    episode = SingleAgentEpisode()
    episode.add_env_reset(0)
    for i in (1, 2):
        episode.add_env_step(i, {"a": i}, 1.0, extra_model_outputs={"e": i}, **RUNNING)
    with pytest.raises(ValueError, match=r"expected:[\s\S]*found:"):
        episode.add_env_step(3, action, 1.0, extra_model_outputs=extra, **RUNNING)
    episode.validate()
    assert len(episode) == 2
    episode.add_env_step(3, {"a": 3}, 1.0, extra_model_outputs={"e": 3}, **RUNNING)
    np.testing.assert_array_equal(episode.get_observations(), [0, 1, 2, 3])
    np.testing.assert_array_equal(episode.get_actions()["a"], [1, 2, 3])


def test_nested_observations_can_be_written_back() -> None:
    space = gym.spaces.Dict(a=gym.spaces.Discrete(9), b=BOX)
    rows = [{"a": i, "b": np.full(2, i, np.float32)} for i in range(3)]
    episode = SingleAgentEpisode(
        observations=rows, actions=[0, 0], rewards=[0.0, 0.0], observation_space=space, len_lookback_buffer=0
    ).to_numpy()
    episode.set_observations(new_data=episode.get_observations(-1), at_indices=0)
    assert episode.get_observations()["a"].tolist() == [2, 1, 2]
    assert episode.get_observations()["b"].tolist() == [[2, 2], [1, 1], [2, 2]]


def out_of_band(episode: SingleAgentEpisode) -> tuple[bytes, list[bytes]]:
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(episode, protocol=5, buffer_callback=buffers.append)
    return body, [bytes(buffer.raw()) for buffer in buffers]


def wide_episode(n: int) -> SingleAgentEpisode:
    episode = SingleAgentEpisode()
    episode.add_env_reset(np.zeros(256, np.float32))
    for i in range(1, n + 1):
        extras = {"e": np.full(64, i, np.float32)}
        episode.add_env_step(
            np.full(256, i, np.float32), i % 3, i / 4, terminated=False, truncated=False, extra_model_outputs=extras
        )
    return episode


def used_bytes(episode: SingleAgentEpisode) -> int:
    columns = [episode.observations, episode.actions, episode.rewards, episode.extra_model_outputs["e"]]
    return sum(leaf.nbytes for column in columns for leaf in leaves(column.data))


@pytest.mark.parametrize("part", ["grown", "slice", "cut"])
def test_pickles_carry_the_used_region_out_of_band(part: str) -> None:
    episode = wide_episode(1030)  # just behind a doubling of the capacity
    if part == "slice":
        episode = episode[100:110]
    elif part == "cut":
        episode = episode.cut(len_lookback_buffer=5)
    used = used_bytes(episode)
    body, buffers = out_of_band(episode)
    assert 0.9 * used <= sum(map(len, buffers)) + (4096 if part != "grown" else 0)
    assert sum(map(len, buffers)) <= 1.02 * used + 512
    assert len(body) < 4096 + 32 * len(episode.infos.data)
    assert len(pickle.dumps(episode, protocol=4)) < 1.02 * used + 8192 + 32 * len(episode.infos.data)


def test_episodes_made_from_read_only_buffers_can_be_changed() -> None:
    episode = wide_episode(10)
    body, buffers = out_of_band(episode)
    twin = pickle.loads(body, buffers=buffers)
    assert twin.equals(episode)
    twin.set_rewards(new_data=9.0, at_indices=0)
    rewards = twin.get_rewards()
    rewards += 1
    twin.add_env_step(
        np.ones(256, np.float32), 1, 1.0, terminated=True, truncated=False, extra_model_outputs={"e": np.ones(64)}
    )
    assert twin.get_rewards(0) == 10.0 and len(twin) == 11 and len(episode) == 10


# ---------------------------------------------------------------- plain state
def test_the_state_keeps_the_space_that_new_observations_are_checked_against() -> None:
    raw, flat = gym.spaces.Dict(n=gym.spaces.Discrete(3)), gym.spaces.Box(-1, 1, (1,), np.float32)
    episode = SingleAgentEpisode(observation_space=raw)
    episode.add_env_reset({"n": 1})
    episode.observation_space = flat
    episode.set_observations(new_data=np.zeros(1, np.float32), at_indices=-1)
    twin = SingleAgentEpisode.from_state(episode.get_state())
    assert twin.observation_space == flat
    with pytest.raises(SpaceError, match=r"dict with keys \['n'\]"):
        twin.add_env_step(np.zeros(1, np.float32), 0, 0.0)
    twin.add_env_step({"n": 2}, 0, 0.0)
    assert twin.get_observations(-1) == {"n": 2}


@pytest.mark.parametrize("clone", ["state", "pickle", "deepcopy", "cut", "slice"])
def test_a_raw_newest_observation_goes_along_and_stays_provisional(clone: str) -> None:
    episode = SingleAgentEpisode()
    episode.add_env_reset({"raw": 0})
    episode.set_observations(new_data=np.zeros(2), at_indices=-1)
    episode.add_env_step({"raw": 1}, 0, 0.0)
    twin = {
        "state": lambda: SingleAgentEpisode.from_state(episode.get_state()),
        "pickle": lambda: pickle.loads(pickle.dumps(episode)),
        "deepcopy": lambda: copy.deepcopy(episode),
        "cut": lambda: episode.cut(len_lookback_buffer=1),
        "slice": lambda: episode[0:1],
    }[clone]()
    assert twin.get_observations(-1) == {"raw": 1}
    twin.set_observations(new_data=np.ones(2), at_indices=-1)
    twin.add_env_step(np.full(2, 2.0), 0, 0.0)
    np.testing.assert_array_equal(twin.observations.data, [[0, 0], [1, 1], [2, 2]])
    assert episode.get_observations(-1) == {"raw": 1}


def test_columns_without_rows_keep_their_nesting_shapes_and_types() -> None:
    episode = SingleAgentEpisode()
    episode.add_env_reset(np.zeros(2))
    outputs = {"logp": np.float32(-1), "state": {"h": np.ones(3, np.float32), "n": 2}}
    episode.add_env_step(np.zeros(2), np.int8(1), np.float32(0.5), extra_model_outputs=outputs)
    chunk = episode.cut()
    twin = SingleAgentEpisode.from_state(chunk.get_state())
    assert (twin.get_actions().dtype, twin.get_rewards().dtype) == (np.int8, np.float32)
    assert twin.get_extra_model_outputs("logp").dtype == np.float32
    state = twin.get_extra_model_outputs("state")
    assert {key: (leaf.shape, str(leaf.dtype)) for key, leaf in state.items()} == {
        "h": ((0, 3), "float32"),
        "n": ((0,), "int64"),
    }
    twin.add_env_step(np.zeros(2), 2, 1, extra_model_outputs={"logp": 0, "state": {"h": np.zeros(3), "n": 1}})
    assert (twin.get_rewards().dtype, len(twin), twin.t) == (np.float32, 1, 2)
