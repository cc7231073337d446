"""Random chunks go from one library to the other and back: nothing is lost, in either direction and mode."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import strategies as st

from epibatch.env_runner import SingleAgentEnvRunner
from epibatch.episodes._storage.arrays import same_value
from epibatch.interop.rllib import from_rllib, to_rllib
from oracle.cases import random_cases
from oracle.compare import mismatches
from oracle.episodes import chunks
from oracle.libraries import EPIBATCH, RLLIB

NAMES = {"agent_id": "agent", "module_id": "module", "multi_agent_episode_id": "whole"}
TWISTS = ("none", "raw type", "raw nesting", "ragged", "text", "promoted", "steps", "names")
CARRIED = ("provisional", "given_observation_space")  # what RLlib has no place for


def twisted(chunk, twist):
    """The chunk as our episode, in one of the states that RLlib's arrays do not come into by themselves."""
    extra = {key: list(rows) for key, rows in chunk.columns["extra_model_outputs"].items()}
    steps = chunk.lookback + chunk.length
    if twist == "ragged":
        extra["ragged"] = [np.zeros(1 + i % 2) for i in range(steps)]
    if twist == "text":
        extra["text"] = [f"step {i}\0" for i in range(steps)]
    names = NAMES if twist == "names" else {}
    episode = chunk.build(EPIBATCH, extra_model_outputs=extra, **names)
    if twist == "raw type":
        episode.set_observations(new_data={"other": np.float32(1)}, at_indices=-1)
    if twist == "raw nesting":
        episode.set_observations(new_data=(np.zeros(2), "text"), at_indices=-1)
    if twist == "promoted" and len(episode):
        episode.set_rewards(new_data=0.5, at_indices=0)
    if twist == "steps" and not episode.is_done:
        row = chunk.columns["observations"][0]
        outputs = {key: rows[0] for key, rows in extra.items()} if steps else {}
        if steps:
            action = chunk.columns["actions"][0]
            episode.add_env_step(row, action, 2.0, {"more": 1}, extra_model_outputs=outputs)
    episode.custom_data["mine"] = [np.arange(3)]
    return episode


def state_of(episode):
    return {name: value for name, value in episode.get_state().items() if name not in CARRIED}


def columns_of(episode):
    own = {name: getattr(episode, name) for name in ("observations", "infos", "actions", "rewards")}
    return {**own, **episode.extra_model_outputs}


@random_cases(chunk=chunks(), twist=st.sampled_from(TWISTS), numpy=st.booleans(), copy=st.booleans())
def test_ours_to_theirs_and_back(chunk, twist, numpy, copy):
    episode = twisted(chunk, twist)
    before = state_of(episode)
    theirs = to_rllib(episode, numpy=numpy, copy=copy)
    again = from_rllib(theirs, copy=copy)
    assert again.equals(episode)
    assert same_value(state_of(again), before) and same_value(state_of(episode), before)
    assert {key: column.lookback for key, column in columns_of(again).items()} == {
        key: column.lookback for key, column in columns_of(episode).items()
    }
    assert (theirs.t, theirs.t_started, len(theirs)) == (episode.t, episode.t_started, len(episode))
    assert (theirs.is_terminated, theirs.is_truncated) == (episode.is_terminated, episode.is_truncated)
    assert theirs.observation_space == episode.observation_space and theirs.action_space == episode.action_space
    assert again.observation_space is theirs.observation_space and again.action_space is theirs.action_space
    assert [getattr(theirs, name) for name in ("id_", *NAMES)] == [getattr(episode, name) for name in ("id_", *NAMES)]


@random_cases(chunk=chunks(), numpy=st.booleans(), names=st.booleans(), copy=st.booleans())
def test_theirs_to_ours_and_back(chunk, numpy, names, copy):
    theirs = chunk.build(RLLIB, numpy=numpy, **(NAMES if names else {}))
    theirs.custom_data["mine"] = [np.arange(3)]
    again = to_rllib(from_rllib(theirs, copy=copy), numpy=numpy, copy=copy)
    rows = chunk.lookback + chunk.length
    for key, buffer in columns_of(theirs).items():
        own = columns_of(again)[key]
        # RLlib's to_numpy() stacks the observations of a chunk without steps and leaves its lookback in lists
        stacked = numpy and key != "infos" and (chunk.length or key == "observations")
        data = buffer.data if stacked or not numpy or not rows or key == "infos" else _stacked(buffer)
        assert mismatches(data, own.data) == [], key
        assert own.lookback == buffer.lookback and own.space == buffer.space
        assert own.finalized == buffer.finalized or not chunk.length
    for name in ("id_", *NAMES, "t", "t_started", "is_terminated", "is_truncated", "observation_space", "action_space"):
        assert getattr(again, name) == getattr(theirs, name), name
    assert mismatches(theirs.custom_data, again.custom_data) == []


def _stacked(buffer):
    buffer.finalize()
    return buffer.data


@random_cases(chunk=chunks())
def test_getters_give_the_same(chunk):
    theirs = chunk.build(RLLIB, numpy=True)
    for one, other in ((theirs, from_rllib(theirs)), (to_rllib(chunk.build(EPIBATCH)), chunk.build(EPIBATCH))):
        for name in ("observations", "actions", "rewards", "infos"):
            rows = [getattr(episode, f"get_{name}")(slice(-len(episode), None)) for episode in (one, other)]
            assert len(one) == 0 or mismatches(*rows) == [], name
        for key in one.extra_model_outputs:
            assert len(one) == 0 or mismatches(*(ep.get_extra_model_outputs(key) for ep in (one, other))) == []


@random_cases(chunk=chunks(length=3, end="running"))
def test_steps_can_be_added_to_either(chunk):
    """Adding a step to an episode that shares its arrays leaves the other one as it is."""
    outputs = {key: rows[0] for key, rows in chunk.columns["extra_model_outputs"].items()}
    columns = chunk.columns
    step = (columns["observations"][1], columns["actions"][2], columns["rewards"][0], {"new": 1})
    ours = chunk.build(EPIBATCH)
    theirs = to_rllib(ours)
    before = state_of(from_rllib(theirs, copy=True))
    ours.add_env_step(*step, extra_model_outputs=outputs)
    assert same_value(state_of(from_rllib(theirs)), before)
    after = state_of(from_rllib(to_rllib(ours), copy=True))
    again = from_rllib(theirs)
    theirs.add_env_step(*step, extra_model_outputs=outputs)
    assert same_value(state_of(again), before)
    again.add_env_step(*step, extra_model_outputs=outputs)
    for state in (state_of(again), state_of(ours), after):
        state["duration_s"] = after["duration_s"]
        assert same_value(state, after)
    pairs = zip(columns_of(theirs).values(), columns_of(to_rllib(again)).values())
    assert [found for one, other in pairs for found in mismatches(one.data, other.data)] == []


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_episodes_of_a_runner(mode):
    """Views of blocks, with terminal observations in the block and apart from it, of two calls with lookback."""
    from epibatch.algorithms.ppo import PPOConfig

    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_envs_per_env_runner=3, gym_env_autoreset_mode=mode, episode_lookback_horizon=2)
        .debugging(seed=0)
    )
    runner, seen = SingleAgentEnvRunner(config=config), set()
    for _ in range(3):
        block = runner.sample(num_timesteps=90, random_actions=True)
        seen |= {(episode.lookback, episode.is_done) for episode in block}
        for numpy in (True, False):
            for episode, other in zip(block, from_rllib(to_rllib(block, numpy=numpy))):
                assert other.equals(episode)
    assert {lookback for lookback, _ in seen} >= {0, 2} and {done for _, done in seen} == {False, True}
    runner.stop()


def test_arrays_are_shared_unless_they_are_copied():
    episode = EPIBATCH.SingleAgentEpisode(
        observations=[np.zeros(2), np.ones(2)], actions=[1], rewards=[0.5], len_lookback_buffer=0
    )
    theirs, copied = to_rllib(episode), to_rllib(episode, copy=True)
    assert np.shares_memory(theirs.observations.data, episode.observations.data)
    episode.get_observations()[0] = 7.0
    theirs.rewards.data[0] = 3.0
    episode.custom_data["a"] = episode.get_infos(0)["b"] = 1
    assert theirs.get_observations(0).tolist() == [7.0, 7.0] and episode.get_rewards(0) == 3.0
    assert theirs.custom_data == {"a": 1} and theirs.get_infos(0) == {"b": 1}
    assert copied.get_observations(0).tolist() == [0.0, 0.0] and copied.get_rewards(0) == 0.5
    assert copied.custom_data == {} and copied.get_infos(0) == {}
    back, apart = from_rllib(theirs), from_rllib(theirs, copy=True)
    assert np.shares_memory(back.actions.data, theirs.actions.data)
    back.set_actions(new_data=5, at_indices=0)
    assert theirs.get_actions(0) == 5 and apart.get_actions(0) == 1


def test_read_only_arrays_are_copied():
    """Ray's object store hands arrays over that cannot be written to."""
    frozen = np.arange(3.0)
    frozen.flags.writeable = False
    theirs = RLLIB.SingleAgentEpisode(
        observations=RLLIB.InfiniteLookbackBuffer(frozen), actions=[1, 2], rewards=[0.0, 1.0], len_lookback_buffer=0
    )
    episode = from_rllib(theirs)
    episode.set_observations(new_data=9.0, at_indices=0)
    assert episode.get_observations().tolist() == [9.0, 1.0, 2.0] and frozen.tolist() == [0.0, 1.0, 2.0]


def test_what_rllib_holds_differently():
    """Text arrays, lists as nesting and numbers of several types, as the docstrings say."""
    theirs = RLLIB.SingleAgentEpisode(
        observations=[{"a": [1.0, 2]}, {"a": [3.0, 4]}], actions=["up"], rewards=[1], len_lookback_buffer=0
    ).to_numpy()
    assert isinstance(theirs.observations.data["a"], list) and theirs.actions.data.dtype.kind == "U"
    episode = from_rllib(theirs)
    assert isinstance(episode.get_observations()["a"], tuple) and episode.get_actions().tolist() == ["up"]
    assert type(episode.get_actions(0)) is str
    mixed = RLLIB.SingleAgentEpisode(
        observations=[0, 1, 2], actions=[0, np.float32(1)], rewards=[1, 0.5], len_lookback_buffer=0
    )
    columns = from_rllib(mixed)
    assert columns.get_actions().dtype == np.result_type(np.int64, np.float32) and columns.get_rewards(0) == 1.0


def test_durations_are_carried():
    for find, exchange in ((RLLIB, from_rllib), (EPIBATCH, to_rllib)):
        episode = find.SingleAgentEpisode()
        episode.add_env_reset(0.0)
        episode.add_env_step(1.0, 1, 1.0)
        assert exchange(episode).get_duration_s() == episode.get_duration_s() > 0.0


@pytest.mark.parametrize("exchange", [to_rllib, from_rllib])
def test_several_episodes_stay_several(exchange):
    library = EPIBATCH if exchange is to_rllib else RLLIB
    episodes = [library.SingleAgentEpisode(id_=name) for name in "ab"]
    assert [episode.id_ for episode in exchange(tuple(episodes))] == ["a", "b"]
    assert exchange([]) == []


def test_the_space_of_observations_that_a_piece_has_set():
    episode = EPIBATCH.SingleAgentEpisode(observation_space=gym.spaces.Discrete(3), observations=[1])
    episode.observation_space = gym.spaces.Box(0, 1, (3,))
    assert from_rllib(to_rllib(episode)).observation_space == gym.spaces.Box(0, 1, (3,))
