"""What an episode got before a chunk: known wherever it was cut, in lists, blocks, for agents, in states."""

from __future__ import annotations

import math
import pickle

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode, VectorRecorder
from epibatch.episodes._parts.acting_history import ActingHistory

SPACES = gym.spaces.Box(-9, 9, (1,)), gym.spaces.Discrete(2)


def episode(rewards, **more):
    steps = len(rewards)
    return SingleAgentEpisode(
        observations=list(range(steps + 1)), actions=[0] * steps, rewards=rewards, len_lookback_buffer=0, **more
    )


@settings(max_examples=50, deadline=None)
@given(
    chunks=st.lists(st.lists(st.integers(-9, 9).map(float), max_size=4), min_size=1, max_size=5),
    lookback=st.integers(0, 3),
)
def test_cut_anywhere(chunks, lookback):
    chunk, before = SingleAgentEpisode(), 0.0
    chunk.add_env_reset(0)
    for rewards in chunks:
        for reward in rewards:
            chunk.add_env_step(1, 0, reward)
        assert chunk.return_before == before
        again = SingleAgentEpisode.from_state(chunk.get_state())
        assert pickle.loads(pickle.dumps(chunk)).return_before == again.return_before == before
        before += sum(rewards)
        chunk = chunk.cut(len_lookback_buffer=lookback)


def test_slices_and_joined_chunks():
    whole = episode([1.0, 2.0, 4.0, 8.0])
    assert [whole[start:].return_before for start in range(4)] == [0.0, 1.0, 3.0, 7.0]
    assert whole[1:][1:].return_before == 3.0
    rest = whole.cut(len_lookback_buffer=1)
    rest.add_env_step(9, 0, 16.0)
    assert rest.return_before == 15.0 and rest[0:].return_before == 15.0
    later = rest.cut()
    later.add_env_step(9, 0, 32.0)
    rest.concat_episode(later)
    assert (rest.return_before, rest.get_return()) == (15.0, 48.0)


def test_chunks_of_data_know_it_by_their_lookback_or_not_at_all():
    facts = {"observations": [0, 1, 2, 3], "actions": [0, 0, 0], "rewards": [1.0, 2.0, 4.0]}
    assert SingleAgentEpisode(**facts, t_started=2, len_lookback_buffer=2).return_before == 3.0
    unknown = SingleAgentEpisode(**facts, t_started=3, len_lookback_buffer=2)
    assert math.isnan(unknown.return_before)
    assert math.isnan(unknown.cut().return_before)
    state = episode([1.0]).get_state()
    state.pop("return_before")  # of an earlier release
    assert SingleAgentEpisode.from_state(state).return_before == 0.0


@settings(max_examples=40, deadline=None)
@given(data=st.data(), lookback=st.integers(0, 3), calls=st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_a_recorders_chunks(data, lookback, calls):
    """Next-step resets: the row that only brings a reset counts for nobody."""
    recorder = VectorRecorder(2, *SPACES)
    recorder.reset(np.zeros((2, 1), np.float32))
    running, waiting = [0.0, 0.0], [False, False]
    for steps in calls:
        before = running.copy()
        for _ in range(steps):
            rewards = np.array(data.draw(st.lists(st.integers(-9, 9), min_size=2, max_size=2)), float)
            ends = np.array(data.draw(st.lists(st.booleans(), min_size=2, max_size=2))) & ~np.array(waiting)
            recorder.commit()
            recorder.step(np.zeros(2, int), rewards, ends, np.zeros(2, bool), np.zeros((2, 1), np.float32))
            for env in range(2):
                running[env] = 0.0 if waiting[env] else running[env] + rewards[env]
            waiting = ends.tolist()
            found = recorder.episodes.running_returns()
            assert found.tolist() == running
        recorder.commit()
        for chunk in recorder.harvest(lookback):
            assert chunk.return_before in (0.0, *before)
            if chunk.t_started:
                assert chunk.return_before in before
        assert recorder.episodes.running_returns().tolist() == running


def test_whoever_acts_from_outside():
    history = ActingHistory.start(np.zeros((2, 1)), SPACES)
    history.commit()
    for t in range(1, 5):
        step = {"actions": np.zeros(2, int), "rewards": np.array([1.0, 10.0 * t]), "outputs": {}}
        starts = np.array([False, t == 3])
        history = history.after(observations=np.ones((2, 1)), lookback=t % 2, starts=starts, **step)
        history.commit()
    assert history.episodes.running_returns().tolist() == [4.0, 40.0]
    step["rewards"] = np.array([np.nan, 1.0])
    history = history.after(observations=np.ones((2, 1)), lookback=0, **step)
    history.commit()
    history = history.after(observations=np.ones((2, 1)), lookback=0, **{**step, "rewards": np.ones(2)})
    assert math.isnan(history.episodes[0].return_before) and history.episodes[1].return_before == 41.0


def test_each_agents_own():
    both = MultiAgentEpisode(agent_to_module_mapping_fn=lambda agent, episode: agent)
    both.add_env_reset(observations={"a": 0, "b": 0})
    for t in range(1, 4):
        both.add_env_step(observations={"a": t, "b": t}, actions={"a": 0, "b": 0}, rewards={"a": t, "b": -t})
    rest = both.cut(len_lookback_buffer=1)
    rest.add_env_step(observations={"a": 4, "b": 4}, actions={"a": 0, "b": 0}, rewards={"a": 4, "b": -4})
    assert [rest.agent_episodes[agent].return_before for agent in "ab"] == [6.0, -6.0]
    again = rest.cut()
    assert [again.agent_episodes[agent].return_before for agent in "ab"] == [10.0, -10.0]
    assert MultiAgentEpisode.from_state(rest.get_state()).agent_episodes["a"].return_before == 6.0


@pytest.mark.parametrize("kept", [True, False])
def test_episodes_that_left_their_block(kept):
    recorder = VectorRecorder(1, *SPACES)
    recorder.reset(np.zeros((1, 1), np.float32))
    no = np.zeros(1, bool)
    for reward in (1.0, 2.0):
        recorder.commit()
        recorder.step(np.zeros(1, int), np.array([reward]), no, no, np.zeros((1, 1), np.float32))
        recorder.commit()
        (view,) = recorder.harvest(0)
    if kept:
        view.own_columns()
    assert view.return_before == pickle.loads(pickle.dumps(view)).return_before == 1.0
