"""Pickled episodes carry the region they use, out of band under protocol 5."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

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
