"""The maximum over the last observations, on both sides, wherever episodes are cut."""

from __future__ import annotations

from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.connectors.common import FrameStacking
from epibatch.connectors.env_to_module import EnvToModulePipeline
from epibatch.connectors.learner import BatchIndividualItems, LearnerConnectorPipeline
from epibatch.connectors.observations import TimeMaxPool
from epibatch.core.errors import ConfigError, LookbackError, SpaceError
from epibatch.episodes import SingleAgentEpisode, VectorRecorder

SPACE = gym.spaces.Box(-9, 9, (2, 3), np.float32)
ACTIONS = gym.spaces.Discrete(2)


def whole(seed, steps, id_="e"):
    rows = np.random.default_rng(seed).integers(-9, 9, (steps + 1, 2, 3)).astype(np.float32)
    return SingleAgentEpisode(
        id_=id_, observations=list(rows), actions=[0] * steps, rewards=[0.0] * steps, len_lookback_buffer=0
    )


def slow_maximum(rows, t, size):
    best = rows[t].copy()
    for earlier in range(max(0, t - size + 1), t):
        for at in np.ndindex(best.shape):
            best[at] = max(best[at], rows[earlier][at])
    return best


def trained(episodes, size):
    pieces = [TimeMaxPool(num_frames=size, as_learner_connector=True), BatchIndividualItems()]
    return LearnerConnectorPipeline(SPACE, ACTIONS, connectors=pieces)(rl_module=None, episodes=episodes)["obs"]


def acting(size):
    pieces = [TimeMaxPool(num_frames=size), BatchIndividualItems()]
    return EnvToModulePipeline(SPACE, ACTIONS, connectors=pieces)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 999), st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(1, 4), st.data())
def test_chunks_cut_anywhere_give_the_maximum_of_a_loop_over_the_whole_episode(seed, lengths, size, data):
    episodes = [whole(seed + i, steps, f"e{i}") for i, steps in enumerate(lengths)]
    expected, chunks = [], []
    for episode in episodes:
        rows = episode.get_observations()
        expected += [slow_maximum(rows, t, size) for t in range(len(episode))]
        cuts = sorted({0, len(episode), *data.draw(st.lists(st.integers(0, len(episode)), max_size=2))})
        chunks += [
            episode.slice(slice(first, stop), len_lookback_buffer=min(first, size - 1))
            for first, stop in pairwise(cuts)
        ]
    assert np.array_equal(trained(chunks, size), np.stack(expected))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_acting_rows_equal_training_rows(size):
    episode, pipeline = whole(3, 7), acting(size)
    rows = trained([episode], size)
    running = SingleAgentEpisode(observations=[episode.get_observations(0)])
    for t in range(7):
        assert np.array_equal(pipeline(rl_module=None, episodes=[running])["obs"][0], rows[t])
        running.add_env_step(episode.get_observations(t + 1), 0, 0.0)
        if t == 4:
            running = running.cut(len_lookback_buffer=size - 1)


def test_recorded_episodes_equal_copies_of_them():
    rng, pipeline = np.random.default_rng(0), acting(3)
    recorder = VectorRecorder(3, SPACE, ACTIONS, autoreset="same_step")
    recorder.reset(rng.normal(size=(3, 2, 3)).astype(np.float32))
    for _ in range(12):
        copies = [episode.slice(slice(0, len(episode))) for episode in recorder.episodes]
        found = pipeline(rl_module=None, episodes=recorder.episodes)["obs"]
        rows = [copy.get_observations() for copy in copies]
        assert np.array_equal(found, np.stack([slow_maximum(own, len(own) - 1, 3) for own in rows]))
        ends = rng.random(3) < 0.3
        newest, final = rng.normal(size=(2, 3, 2, 3)).astype(np.float32)
        recorder.step(np.zeros(3, np.int64), np.zeros(3), ends, np.zeros(3, bool), newest, final_observations=final)
        recorder.commit()


def test_bounds_and_bootstrap_rows_are_those_of_the_observations():
    assert TimeMaxPool(SPACE).observation_space == SPACE
    pieces = [TimeMaxPool(as_learner_connector=True), BatchIndividualItems()]
    assert TimeMaxPool(num_frames=4).lookback == 3
    batch = LearnerConnectorPipeline(SPACE, ACTIONS, connectors=pieces)(rl_module=None, episodes=[whole(0, 3)])
    assert batch["obs"].dtype == np.float32


def test_mistakes_are_named():
    with pytest.raises(ConfigError, match=r"TimeMaxPool.num_frames[\s\S]*at least 1"):
        TimeMaxPool(num_frames=0)
    for make in (TimeMaxPool, FrameStacking):
        with pytest.raises(ConfigError, match=r"num_frames[\s\S]*up to 65536"):
            make(num_frames=10**9)
    with pytest.raises(SpaceError, match="one array each"):
        TimeMaxPool(gym.spaces.Dict(a=SPACE)).observation_space  # noqa: B018
    late = whole(0, 5).slice(slice(3, 5), len_lookback_buffer=1)
    with pytest.raises(LookbackError, match=r"TimeMaxPool[\s\S]*a lookback of 2 steps"):
        trained([late], 3)
