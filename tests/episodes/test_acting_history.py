"""Episodes of a caller that acts from outside: their rows, rewards that were not given, and returns before a chunk."""

from __future__ import annotations

import math
import pickle

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.core.errors import ColumnError, EpisodeError
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode, VectorRecorder, reader_of
from epibatch.episodes._parts.acting_history import ActingHistory

SPACES = (gym.spaces.Dict(x=gym.spaces.Box(-9, 9, (2,))), gym.spaces.Discrete(5))


def rows(value, n=3):
    return {"x": np.full((n, 2), value, np.float32) + np.arange(n, dtype=np.float32)[:, None] * 100}


def walk(steps, lookback, starts=None):
    """A history of `steps` steps in three environments, and the same episodes recorded one by one."""
    history = ActingHistory.start(rows(0), SPACES, {"t": np.zeros(3, int)})
    history.commit()
    slow = [new_episode(i, rows(0), 0) for i in range(3)]
    for t in range(1, steps + 1):
        begun = np.zeros(3, bool) if starts is None else starts[t - 1]
        history = history.after(
            observations=rows(t),
            actions=np.arange(3) + t,
            rewards=np.arange(3.0) * t,
            outputs={"state_out": {"h": np.full((3, 1), t)}},
            lookback=lookback,
            starts=begun,
            infos={"t": np.full(3, t)},
        )
        history.commit()
        for i in range(3):
            if begun[i]:
                slow[i] = new_episode(i, rows(t), t)
                continue
            slow[i].add_env_step(
                {"x": rows(t)["x"][i]},
                i + t,
                float(i * t),
                {"t": t},
                extra_model_outputs={"state_out": {"h": np.array([t])}},
            )
    return history, slow


def new_episode(i, observations, t):
    episode = SingleAgentEpisode(str(i))
    episode.add_env_reset({"x": observations["x"][i]}, {"t": t})
    return episode


@pytest.mark.parametrize("lookback", [0, 1, 3, 20])
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 7])
def test_the_newest_rows_are_those_of_a_recorded_episode(steps, lookback):
    starts = np.zeros((steps, 3), bool)
    starts[min(2, steps - 1) :: 4, 1] = True
    history, slow = walk(steps, lookback, starts)
    for own, episode in zip(history.episodes, slow):
        kept = min(lookback + 1, episode.t)
        assert own.t == episode.t
        for back in range(1, kept + 1):
            assert own.get_actions(-back) == episode.get_actions(-back)
            assert own.get_rewards(-back) == episode.get_rewards(-back)
            assert own.get_extra_model_outputs("state_out", -back) == episode.get_extra_model_outputs(
                "state_out", -back
            )
        for back in range(1, kept + 2):
            np.testing.assert_array_equal(own.get_observations(-back)["x"], episode.get_observations(-back)["x"])
            assert own.get_infos(-back) == episode.get_infos(-back)
        assert own.observations.len_incl_lookback() == kept + 1


def test_a_history_stays_as_it_is():
    history, _ = walk(4, 2)
    before = [episode.get_state() for episode in history.episodes]
    for value in (7, 8):
        later = history.after(
            observations=rows(value), actions=np.zeros(3, int), rewards=np.zeros(3), lookback=2,
            outputs={"state_out": {"h": np.zeros((3, 1))}},
        )  # fmt: skip
        later.episodes[0].set_observations(new_data={"x": np.full(2, -1.0)}, at_indices=-1)
        later.episodes[0].custom_data["seen"] = value
        later.commit()
    for state, episode in zip(before, history.episodes):
        after = episode.get_state()
        np.testing.assert_array_equal(state["observations"]["x"], after["observations"]["x"])
        assert state["custom_data"] == after["custom_data"] == {}


def test_custom_data_is_carried_and_copied():
    history = ActingHistory.start(rows(0), SPACES)
    history.episodes[1].custom_data["goal"] = [1]
    history.commit()
    step = {"actions": np.zeros(3, int), "rewards": np.zeros(3), "outputs": {}, "lookback": 0}
    later = history.after(observations=rows(1), **step)
    assert later.episodes[1].custom_data == {"goal": [1]}
    later.episodes[1].custom_data["goal"].append(2)
    assert history.episodes[1].custom_data == {"goal": [1]}
    fresh = history.after(observations=rows(1), starts=np.ones(3, bool), **step)
    assert fresh.episodes[1].custom_data == {}
    assert fresh.episodes[1].id_ != later.episodes[1].id_ == history.episodes[1].id_


def test_rows_and_outputs_that_do_not_fit():
    history, _ = walk(2, 1)
    step = {"observations": rows(3), "actions": np.zeros(3, int), "rewards": np.zeros(3), "lookback": 1}
    with pytest.raises(EpisodeError, match=r"(?s)\['state_out'\].*found:    \['vf_preds'\]"):
        history.after(outputs={"vf_preds": np.zeros(3)}, **step)
    with pytest.raises(ColumnError, match="3 rows, one per environment"):
        history.after(outputs={"state_out": {"h": np.zeros((2, 1))}}, **step)


REWARDS = [1.0, 2.0, float("nan"), 4.0]


def test_rewards_that_the_caller_did_not_give_cannot_be_read():
    history, _ = walk(0, 5)
    for reward in REWARDS:
        step = {"actions": np.zeros(3, int), "rewards": np.full(3, reward), "outputs": {}}
        history = history.after(observations=rows(1), lookback=5, **step)
        history.commit()
    get = history.episodes[0].get_rewards
    for read in (-1, [-1, -4], slice(-4, -2), [-4, 9]):
        assert not np.isnan(get(read, fill=0.0)).any()
    for read in (-2, [-4, -2], slice(-3, None), slice(-9, None)):
        with pytest.raises(ColumnError, match=r"none for 1 of them[\s\S]*reward=reward"):
            get(read, fill=0.0)
    reader = reader_of(list(history.episodes))
    assert reader.rows("rewards", -3, -1).joined().tolist() == [1, 2] * 3
    with pytest.raises(ColumnError, match="reward= was left out"):
        reader.rows("rewards", -3, 0)


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


def test_whoever_acts_from_outside():
    history = ActingHistory.start(np.zeros((2, 1)), PLAIN_SPACES)
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
