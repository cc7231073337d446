"""Returns before a chunk, and what a caller who acts from outside tells pieces."""

from __future__ import annotations

import math
import pickle

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.algorithms import PPOConfig
from epibatch.connectors import ConnectorV2
from epibatch.core.errors import ColumnError
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode, VectorRecorder

PLAIN_SPACES = gym.spaces.Box(-9, 9, (1,)), gym.spaces.Discrete(2)


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
    recorder = VectorRecorder(2, *PLAIN_SPACES)
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
        for chunk in recorder.flush(lookback):
            assert chunk.return_before in (0.0, *before)
            if chunk.t_started:
                assert chunk.return_before in before
        assert recorder.episodes.running_returns().tolist() == running


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
    recorder = VectorRecorder(1, *PLAIN_SPACES)
    recorder.reset(np.zeros((1, 1), np.float32))
    no = np.zeros(1, bool)
    for reward in (1.0, 2.0):
        recorder.commit()
        recorder.step(np.zeros(1, int), np.array([reward]), no, no, np.zeros((1, 1), np.float32))
        recorder.commit()
        (view,) = recorder.flush(0)
    if kept:
        view.own_columns()
    assert view.return_before == pickle.loads(pickle.dumps(view)).return_before == 1.0


# ---------------------------------------------------------------- acting from outside
class Remember(ConnectorV2):
    """Keeps the infos and custom data of the first episode."""

    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def __call__(self, *, batch, episodes, **kwargs):
        self.seen.append((episodes[0].get_infos(-1), list(episodes[0].custom_data.setdefault("calls", []))))
        episodes[0].custom_data["calls"].append(len(self.seen))
        return batch


@pytest.fixture
def acting():
    """A policy, and what its piece saw in each call."""
    seen = []
    config = PPOConfig().environment("CartPole-v1").rl_module(model_config={"fcnet_hiddens": [4]})
    algorithm = config.env_runners(env_to_module_connector=lambda env, spaces, device: Remember(seen)).build_algo()
    yield algorithm.get_policy(), seen
    algorithm.stop()


def test_infos_and_custom_data_of_a_state_reach_pieces_and_states_stay_as_they_are(acting):
    policy, seen = acting
    _, first = policy.act(np.zeros(4), info={"t": 0})
    for t in (1, 2):  # twice from the same state
        policy.act(np.zeros(4), first, reward=1.0, info={"t": t})
    assert seen == [({"t": 0}, []), ({"t": 1}, [1]), ({"t": 2}, [1])]


def test_outputs_without_a_row_for_each_environment_are_named(acting):
    policy, _ = acting
    forward = policy.module.forward_inference
    policy.module.forward_inference = lambda batch, **kwargs: {**forward(batch, **kwargs), "score": np.zeros(2)}
    with pytest.raises(ColumnError, match="column 'score'"):
        policy.act(np.zeros((3, 4)))
