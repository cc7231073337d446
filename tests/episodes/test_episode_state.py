"""Pickled episodes carry the region they use; states are plain data; both come back as they were."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from epibatch.core.errors import SpaceError
from epibatch.core.state_codec import decode_state, encode_state
from epibatch.episodes.single_agent_episode import SingleAgentEpisode


def leaves(struct: Any) -> list[Any]:
    if isinstance(struct, dict):
        return [leaf for key in sorted(struct) for leaf in leaves(struct[key])]
    if isinstance(struct, tuple):
        return [leaf for value in struct for leaf in leaves(value)]
    return [struct]


def assert_equal(one: SingleAgentEpisode, two: SingleAgentEpisode) -> None:
    for name in ("observations", "actions", "rewards"):
        a, b = leaves(getattr(one, name).data), leaves(getattr(two, name).data)
        for x, y in zip(a, b, strict=True):
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)
        assert getattr(one, name).lookback == getattr(two, name).lookback
    assert one.infos.data == two.infos.data
    for name in ("id_", "agent_id", "t", "t_started", "is_terminated", "is_truncated", "custom_data"):
        assert getattr(one, name) == getattr(two, name)


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
    assert_equal(episode, twin)
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
    twin = SingleAgentEpisode.from_state(decode_state(*encode_state(chunk.get_state())))
    assert (twin.get_actions().dtype, twin.get_rewards().dtype) == (np.int8, np.float32)
    assert twin.get_extra_model_outputs("logp").dtype == np.float32
    state = twin.get_extra_model_outputs("state")
    assert {key: (leaf.shape, str(leaf.dtype)) for key, leaf in state.items()} == {
        "h": ((0, 3), "float32"),
        "n": ((0,), "int64"),
    }
    twin.add_env_step(np.zeros(2), 2, 1, extra_model_outputs={"logp": 0, "state": {"h": np.zeros(3), "n": 1}})
    assert (twin.get_rewards().dtype, len(twin), twin.t) == (np.float32, 1, 2)


def test_the_state_holds_nothing_of_the_episodes() -> None:
    episode = wide_episode(3)
    episode.set_infos(new_data={"deep": [1]}, at_indices=0)
    state = episode.get_state()
    episode.get_rewards()[:] = 9
    episode.get_infos(0)["deep"].append(2)
    twin = SingleAgentEpisode.from_state(state)
    twin.get_infos(0)["deep"].append(3)
    assert twin.get_return() == 1.5 and state["infos"][0] == {"deep": [1]}
