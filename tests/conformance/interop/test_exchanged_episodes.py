"""Random chunks go from one library to the other and back: nothing is lost, in either direction and mode."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import strategies as st

from epibatch.env_runner import SingleAgentEnvRunner
from epibatch.interop.rllib import from_rllib, to_rllib
from oracle.cases import random_cases
from oracle.compare import mismatches
from oracle.episodes import chunks
from oracle.libraries import EPIBATCH, RLLIB

COLUMNS = ("observations", "infos", "actions", "rewards")
NAMES = {"agent_id": "agent", "module_id": "module", "multi_agent_episode_id": "whole"}
FACTS = ("id_", *NAMES, "t", "t_started", "is_terminated", "is_truncated", "observation_space", "action_space")
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
    episode = chunk.build(EPIBATCH, extra_model_outputs=extra, **(NAMES if twist == "names" else {}))
    raw = {"raw type": {"other": np.float32(1)}, "raw nesting": (np.zeros(2), "text")}
    if twist in raw:
        episode.set_observations(new_data=raw[twist], at_indices=-1)
    if twist == "promoted" and len(episode):
        episode.set_rewards(new_data=0.5, at_indices=0)
    if twist == "steps" and steps and not episode.is_done:
        outputs = {key: rows[0] for key, rows in extra.items()}
        row, action = chunk.columns["observations"][0], chunk.columns["actions"][0]
        episode.add_env_step(row, action, 2.0, {"more": 1}, extra_model_outputs=outputs)
    episode.custom_data["mine"] = [np.arange(3)]
    return episode


def state_of(episode):
    return {name: value for name, value in episode.get_state().items() if name not in CARRIED}


def columns_of(episode):
    return {**{name: getattr(episode, name) for name in COLUMNS}, **episode.extra_model_outputs}


def facts_of(episode):
    lookbacks = {key: column.lookback for key, column in columns_of(episode).items()}
    return [len(episode), lookbacks, *(getattr(episode, name) for name in FACTS)]


def rows_of(episode):
    """What the getters give."""
    rows = {name: getattr(episode, f"get_{name}")(slice(-len(episode), None)) for name in COLUMNS}
    return {**rows, **{key: episode.get_extra_model_outputs(key) for key in episode.extra_model_outputs}}


@random_cases(chunk=chunks(), twist=st.sampled_from(TWISTS), numpy=st.booleans(), copy=st.booleans())
def test_ours_to_theirs_and_back(chunk, twist, numpy, copy):
    episode = twisted(chunk, twist)
    before = state_of(episode)
    theirs = to_rllib(episode, numpy=numpy, copy=copy)
    again = from_rllib(theirs, copy=copy)
    assert again.equals(episode)
    assert mismatches(before, state_of(again)) == mismatches(before, state_of(episode)) == []
    assert facts_of(theirs) == facts_of(again) == facts_of(episode)
    if twist == "none" and numpy and len(episode):
        assert mismatches(rows_of(theirs), rows_of(episode)) == []


@random_cases(chunk=chunks(), numpy=st.booleans(), names=st.booleans(), copy=st.booleans())
def test_theirs_to_ours_and_back(chunk, numpy, names, copy):
    theirs = chunk.build(RLLIB, numpy=numpy, **(NAMES if names else {}))
    theirs.custom_data["mine"] = [np.arange(3)]
    ours = from_rllib(theirs, copy=copy)
    if numpy and len(theirs):
        assert mismatches(rows_of(theirs), rows_of(ours)) == []
    again = to_rllib(ours, numpy=numpy, copy=copy)
    assert facts_of(theirs) == facts_of(ours) == facts_of(again)
    assert mismatches(theirs.custom_data, again.custom_data) == []
    for key, buffer in columns_of(theirs).items():
        own = columns_of(again)[key]
        assert own.space == buffer.space and (own.finalized == buffer.finalized or not chunk.length)
        # RLlib's to_numpy() stacks the observations of a chunk without steps and leaves its lookback in lists
        if numpy and buffer.len_incl_lookback() and key != "infos" and not buffer.finalized:
            buffer.finalize()
        assert mismatches(buffer.data, own.data) == [], key


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
    assert mismatches(before, state_of(from_rllib(theirs))) == []
    after = state_of(from_rllib(to_rllib(ours), copy=True))
    again = from_rllib(theirs)
    theirs.add_env_step(*step, extra_model_outputs=outputs)
    assert mismatches(before, state_of(again)) == []
    again.add_env_step(*step, extra_model_outputs=outputs)
    for state in (state_of(again), state_of(ours)):
        assert mismatches({**after, "duration_s": 0}, {**state, "duration_s": 0}) == []
    pairs = zip(columns_of(theirs).values(), columns_of(to_rllib(again)).values())
    assert [found for one, other in pairs for found in mismatches(one.data, other.data)] == []


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_episodes_of_a_runner(mode):
    """Views of blocks, with terminal observations in the block and apart from it, of two calls with lookback."""
    settings = {"num_envs_per_env_runner": 3, "gym_env_autoreset_mode": mode, "episode_lookback_horizon": 2}
    config = EPIBATCH.PPOConfig().environment("CartPole-v1").env_runners(**settings).debugging(seed=0)
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
    data = {"observations": [np.zeros(2), np.ones(2)], "actions": [1], "rewards": [0.5], "len_lookback_buffer": 0}
    episode = EPIBATCH.SingleAgentEpisode(**data)
    theirs, copied = to_rllib(episode), to_rllib(episode, copy=True)
    episode.get_observations()[0] = 7.0
    theirs.rewards.data[0] = 3.0
    episode.custom_data["a"] = episode.get_infos(0)["b"] = 1
    assert theirs.get_observations(0).tolist() == [7.0, 7.0] and episode.get_rewards(0) == 3.0
    assert theirs.custom_data == {"a": 1} and theirs.get_infos(0) == {"b": 1}
    assert copied.get_observations(0).tolist() == [0.0, 0.0] and copied.get_rewards(0) == 0.5
    assert copied.custom_data == {} and copied.get_infos(0) == {}
    back, apart = from_rllib(theirs), from_rllib(theirs, copy=True)
    back.set_actions(new_data=5, at_indices=0)
    assert theirs.get_actions(0) == 5 and apart.get_actions(0) == 1


def test_what_rllib_holds_differently():
    """Read-only arrays of Ray's object store, text, lists as nesting and numbers of several types."""
    make, data = RLLIB.SingleAgentEpisode, {"len_lookback_buffer": 0}
    frozen = np.arange(3.0)
    frozen.flags.writeable = False
    episode = from_rllib(
        make(observations=RLLIB.InfiniteLookbackBuffer(frozen), actions=[1, 2], rewards=[0.0, 1.0], **data)
    )
    episode.set_observations(new_data=9.0, at_indices=0)
    assert episode.get_observations().tolist() == [9.0, 1.0, 2.0] and frozen.tolist() == [0.0, 1.0, 2.0]
    nested = [{"a": [1.0, 2]}, {"a": [3.0, 4]}]
    episode = from_rllib(make(observations=nested, actions=["up"], rewards=[1], **data).to_numpy())
    assert isinstance(episode.get_observations()["a"], tuple) and episode.get_actions().tolist() == ["up"]
    assert type(episode.get_actions(0)) is str
    episode = from_rllib(make(observations=[0, 1, 2], actions=[0, np.float32(1)], rewards=[1, 0.5], **data))
    assert episode.get_actions().dtype == np.result_type(np.int64, np.float32) and episode.get_rewards(0) == 1.0


@pytest.mark.parametrize(
    ("library", "exchange"), [(RLLIB, from_rllib), (EPIBATCH, to_rllib)], ids=["RLlib", "epibatch"]
)
def test_durations_and_several_episodes(library, exchange):
    episodes = [library.SingleAgentEpisode(id_=name) for name in "ab"]
    assert [episode.id_ for episode in exchange(tuple(episodes))] == ["a", "b"] and exchange([]) == []
    episodes[0].add_env_reset(0.0)
    episodes[0].add_env_step(1.0, 1, 1.0)
    assert exchange(episodes[0]).get_duration_s() == episodes[0].get_duration_s() > 0.0


def test_the_space_of_observations_that_a_piece_has_set():
    episode = EPIBATCH.SingleAgentEpisode(observation_space=gym.spaces.Discrete(3), observations=[1])
    episode.observation_space = gym.spaces.Box(0, 1, (3,))
    assert from_rllib(to_rllib(episode)).observation_space == gym.spaces.Box(0, 1, (3,))
