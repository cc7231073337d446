"""Stacks on any axis, old or new, padded and pooled, and maxima, against a loop over whole episodes."""

from __future__ import annotations

from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.connectors.common import FrameStacking, observation_window
from epibatch.connectors.common.observation_window import stack_frames
from epibatch.connectors.env_to_module import EnvToModulePipeline
from epibatch.connectors.learner import BatchIndividualItems, LearnerConnectorPipeline
from epibatch.connectors.observations import TimeMaxPool
from epibatch.core.errors import ConfigError, LookbackError, SpaceError
from epibatch.episodes import SingleAgentEpisode, VectorRecorder
from fixture_pieces import played

ACTIONS = gym.spaces.Discrete(2)


SHAPE = (2, 3, 2)


SPACE = gym.spaces.Box(-9, 9, SHAPE, np.int16)


KINDS = [
    {"axis": -1},
    {"axis": 0},
    {"axis": 1},
    {"new_axis": True},
    {"new_axis": True, "axis": -1},
    {"new_axis": True, "axis": 1},
    {"new_axis": True, "axis": -2, "padding": "same"},
    {"axis": -1, "padding": "same", "max_pool": 2},
    {"new_axis": True, "max_pool": 3},
    {"new_axis": True, "axis": -1, "max_pool": 2},
]


def whole(seed, steps, id_="e", shape=SHAPE):
    rows = np.random.default_rng(seed).integers(-9, 9, (steps + 1, *shape)).astype(np.int16)
    return played(list(rows), id_=id_)


def slow_stack(rows, t, num_frames, axis=None, new_axis=False, padding="zeros", max_pool=1):
    """One stack, by picking frames of the whole episode one by one."""
    frames = []
    for k in range(t - num_frames + 1, t + 1):
        if k < 0 and padding == "zeros":
            frames.append(np.zeros_like(rows[0]))
        else:
            k = max(k, 0)
            frames.append(np.max([rows[j] for j in range(max(0, k - max_pool + 1), k + 1)], axis=0))
    if new_axis:
        return np.stack(frames, 0 if axis is None else axis)
    return np.concatenate(frames, -1 if axis is None else axis)


def trained(episodes, **keywords):
    pieces = [FrameStacking(as_learner_connector=True, **keywords), BatchIndividualItems()]
    space = gym.spaces.Box(-9, 9, episodes[0].get_observations(0).shape, np.int16)
    return LearnerConnectorPipeline(space, ACTIONS, connectors=pieces)(rl_module=None, episodes=episodes)["obs"]


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 999), st.lists(st.integers(1, 7), min_size=1, max_size=3), st.integers(1, 4), st.data())
def test_chunks_cut_anywhere_give_the_stacks_of_a_loop(seed, lengths, num_frames, data):
    kind = data.draw(st.sampled_from(KINDS))
    lookback = num_frames + kind.get("max_pool", 1) - 2
    expected, chunks = [], []
    for i, steps in enumerate(lengths):
        episode = whole(seed + i, steps, f"e{i}")
        rows = episode.get_observations()
        expected += [slow_stack(rows, t, num_frames, **kind) for t in range(steps)]
        cuts = sorted({0, steps, *data.draw(st.lists(st.integers(0, steps), max_size=2))})
        chunks += [
            episode.slice(slice(first, stop), len_lookback_buffer=min(first, lookback))
            for first, stop in pairwise(cuts)
        ]
    found = trained(chunks, num_frames=num_frames, **kind)
    assert np.array_equal(found, np.stack(expected))
    assert found.dtype == np.int16
    space = FrameStacking(SPACE, num_frames=num_frames, **kind).observation_space
    assert all(space.contains(row) for row in found)
    assert FrameStacking(num_frames=num_frames, **kind).lookback == lookback


@pytest.mark.parametrize("kind", KINDS)
def test_acting_rows_equal_training_rows_in_lists_and_while_recording(kind):
    rng, pieces = np.random.default_rng(0), [FrameStacking(num_frames=3, **kind), BatchIndividualItems()]
    pipeline = EnvToModulePipeline(SPACE, ACTIONS, connectors=pieces)
    draw = lambda: rng.integers(-9, 9, (3, *SHAPE)).astype(np.int16)  # noqa: E731
    recorder = VectorRecorder(3, SPACE, ACTIONS, autoreset="same_step")
    recorder.reset(draw())
    for _ in range(12):
        found = pipeline(rl_module=None, episodes=recorder.episodes)["obs"]
        rows = [episode.get_observations() for episode in recorder.episodes]
        expected = np.stack([slow_stack(own, len(own) - 1, 3, **kind) for own in rows])
        assert np.array_equal(found, expected)
        copies = [episode.slice(slice(0, len(episode))) for episode in recorder.episodes]
        assert np.array_equal(pipeline(rl_module=None, episodes=copies)["obs"], expected)
        ends = rng.random(3) < 0.3
        recorder.step(np.zeros(3, np.int64), np.zeros(3), ends, np.zeros(3, bool), draw(), final_observations=draw())
        recorder.commit()


def test_rgb_frames_by_hand():
    red, green = np.zeros((2, 1, 1, 3), np.int16)
    red[..., 0], green[..., 1] = 5, 7
    episode = played([red, green], terminated=True)
    pieces = [FrameStacking(num_frames=2, axis=-1), BatchIndividualItems()]
    space = gym.spaces.Box(0, 9, (1, 1, 3), np.int16)
    pipeline = EnvToModulePipeline(space, ACTIONS, connectors=pieces)
    assert pipeline(rl_module=None, episodes=[episode])["obs"].tolist() == [[[[5, 0, 0, 0, 7, 0]]]]
    assert pipeline.observation_space == gym.spaces.Box(0, 9, (1, 1, 6), np.int16)


def test_zeros_are_in_the_space_only_where_they_can_be_seen():
    space = gym.spaces.Box(2, 3, (1,), np.float32)
    assert FrameStacking(space, num_frames=2).observation_space == gym.spaces.Box(0, 3, (2,), np.float32)
    same = FrameStacking(space, num_frames=2, padding="same")
    assert same.observation_space == gym.spaces.Box(2, 3, (2,), np.float32)


def test_mistakes_are_named():
    with pytest.raises(ConfigError, match=r"FrameStacking.max_pool[\s\S]*at least 1"):
        FrameStacking(num_frames=2, max_pool=0)
    with pytest.raises(ConfigError, match=r"FrameStacking\.padding"):
        FrameStacking(num_frames=2, padding="repeat")
    with pytest.raises(SpaceError, match=r"room for axis=3[\s\S]*-1 is the last one"):
        FrameStacking(SPACE, num_frames=2, axis=3).observation_space  # noqa: B018
    with pytest.raises(SpaceError, match="new_axis=True, or join them on an axis of another length with axis=-1"):
        FrameStacking(SPACE, num_frames=2).observation_space  # noqa: B018
    late = whole(0, 5).slice(slice(3, 5), len_lookback_buffer=2)
    with pytest.raises(LookbackError, match="a lookback of 3 steps"):
        trained([late], num_frames=3, max_pool=2, axis=-1)


POOLED = gym.spaces.Box(-9, 9, (2, 3), np.float32)


def whole_of_boxes(seed, steps, id_="e"):
    rows = np.random.default_rng(seed).integers(-9, 9, (steps + 1, 2, 3)).astype(np.float32)
    return played(list(rows), id_=id_)


def slow_maximum(rows, t, size):
    best = rows[t].copy()
    for earlier in range(max(0, t - size + 1), t):
        for at in np.ndindex(best.shape):
            best[at] = max(best[at], rows[earlier][at])
    return best


def trained_by_pool(episodes, size):
    pieces = [TimeMaxPool(num_frames=size, as_learner_connector=True), BatchIndividualItems()]
    return LearnerConnectorPipeline(POOLED, ACTIONS, connectors=pieces)(rl_module=None, episodes=episodes)["obs"]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 999), st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(1, 4), st.data())
def test_chunks_cut_anywhere_give_the_maximum_of_a_loop_over_the_whole_episode(seed, lengths, size, data):
    episodes = [whole_of_boxes(seed + i, steps, f"e{i}") for i, steps in enumerate(lengths)]
    expected, chunks = [], []
    for episode in episodes:
        rows = episode.get_observations()
        expected += [slow_maximum(rows, t, size) for t in range(len(episode))]
        cuts = sorted({0, len(episode), *data.draw(st.lists(st.integers(0, len(episode)), max_size=2))})
        chunks += [
            episode.slice(slice(first, stop), len_lookback_buffer=min(first, size - 1))
            for first, stop in pairwise(cuts)
        ]
    assert np.array_equal(trained_by_pool(chunks, size), np.stack(expected))


def test_mistakes_with_maxima_are_named():
    with pytest.raises(ConfigError, match=r"TimeMaxPool.num_frames[\s\S]*at least 1"):
        TimeMaxPool(num_frames=0)
    for make in (TimeMaxPool, FrameStacking):
        with pytest.raises(ConfigError, match=r"num_frames[\s\S]*at most 65536"):
            make(num_frames=10**9)
    with pytest.raises(SpaceError, match="one array each"):
        TimeMaxPool(gym.spaces.Dict(a=POOLED)).observation_space  # noqa: B018
    late = whole_of_boxes(0, 5).slice(slice(3, 5), len_lookback_buffer=1)
    with pytest.raises(LookbackError, match=r"TimeMaxPool[\s\S]*a lookback of 2 steps"):
        trained_by_pool([late], 3)


def slow_stacks(frames, before, width):
    """Stack by stack, place by place."""
    out = np.zeros((len(frames) - before, *frames.shape[1:-1], width), frames.dtype)
    for t in range(len(out)):
        for place in range(width):
            frame = before + t - width + 1 + place
            if frame >= 0:
                out[t, ..., place] = frames[frame, ..., 0]
    return out


@given(
    width=st.integers(1, 9),
    dtype=st.sampled_from(["u1", "i1", "?", "u2", "f2", "i4", "f4", "f8", "c8"]),
    shape=st.lists(st.integers(1, 4), max_size=2),
    before=st.integers(0, 8),
    count=st.integers(0, 12),
    many_pixels=st.sampled_from([1, 10_000]),
    apart=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(deadline=None, derandomize=True, max_examples=150)
def test_stacks_are_what_two_loops_give(width, dtype, shape, before, count, many_pixels, apart, seed):
    before = min(before, width - 1)
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, ((before + count) * (1 + apart), *shape, np.dtype(dtype).itemsize), np.uint8)
    frames = (raw % 2 == 0)[..., :1] if dtype == "?" else np.nan_to_num(raw.view(dtype))
    frames = frames[:: 1 + apart]  # frames of one environment of a block do not lie side by side
    out = np.full((count, *shape, width), 1, dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(observation_window, "_MANY_PIXELS", many_pixels)
        stack_frames(out, frames, before)
    np.testing.assert_array_equal(out, slow_stacks(frames, before, width))


def test_large_frames_are_stacked_as_words(monkeypatch):
    monkeypatch.setattr(observation_window, "_stack_by_place", None)
    frames = np.random.default_rng(0).integers(0, 256, (9, 84, 84, 1), np.uint8)
    out = np.empty((7, 84, 84, 4), np.uint8)
    stack_frames(out, frames, 2)
    np.testing.assert_array_equal(out, slow_stacks(frames, 2, 4))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_acting_maxima_equal_training_maxima(size):
    episode = whole_of_boxes(3, 7)
    pieces = [TimeMaxPool(num_frames=size), BatchIndividualItems()]
    pipeline = EnvToModulePipeline(POOLED, ACTIONS, connectors=pieces)
    rows = trained_by_pool([episode], size)
    running = SingleAgentEpisode(observations=[episode.get_observations(0)])
    for t in range(7):
        assert np.array_equal(pipeline(rl_module=None, episodes=[running])["obs"][0], rows[t])
        running.add_env_step(episode.get_observations(t + 1), 0, 0.0)
        if t == 4:
            running = running.cut(len_lookback_buffer=size - 1)
