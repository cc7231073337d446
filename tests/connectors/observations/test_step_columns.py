"""Steps and first steps, in lists, chunks, blocks, among agents, and in sequences."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors.env_to_module import BatchIndividualItems, EnvToModulePipeline
from epibatch.connectors.learner import AddOneTsToEpisodesAndTruncate, LearnerConnectorPipeline
from epibatch.connectors.observations import CountSteps, MarkFirstSteps
from epibatch.env_runner import SingleAgentEnvRunner
from epibatch.episodes import MultiAgentEpisode, VectorRecorder
from fixture_pieces import played

SPACE = gym.spaces.Box(-1, 99, (), np.float32)
ACTIONS = gym.spaces.Discrete(2)


def whole(steps, id_="e"):
    """Observations are their own step."""
    return played([np.float32(t) for t in range(steps + 1)], id_=id_)


def trained(episodes, *more):
    pieces = [CountSteps(), MarkFirstSteps(), *more, BatchIndividualItems()]
    return LearnerConnectorPipeline(SPACE, ACTIONS, connectors=pieces)(rl_module=None, episodes=episodes)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.data())
def test_rows_of_chunks_count_from_the_episodes_start(lengths, data):
    chunks, expected = [], []
    for i, steps in enumerate(lengths):
        episode = whole(steps, f"e{i}")
        cut = data.draw(st.integers(0, steps - 1))
        chunks.append(episode.slice(slice(cut, steps), len_lookback_buffer=data.draw(st.integers(0, cut))))
        expected += range(cut, steps)
    batch = trained(chunks)
    assert batch["t"].tolist() == expected
    assert batch["is_first"].tolist() == [t == 0 for t in expected]
    assert batch["t"].dtype == np.int64
    assert batch["is_first"].dtype == np.bool_


def test_bootstrap_rows_are_of_the_step_after_the_last():
    batch = trained([whole(2, "a"), whole(1, "b")], AddOneTsToEpisodesAndTruncate())
    assert batch["t"].tolist() == [0, 1, 2, 0, 1]
    assert batch["is_first"].tolist() == [True, False, False, True, False]


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_acting_rows_start_anew_where_an_environment_was_reset_and_only_there(mode):
    rng = np.random.default_rng(1)
    pipeline = EnvToModulePipeline(SPACE, ACTIONS, connectors=[CountSteps(), MarkFirstSteps(), BatchIndividualItems()])
    recorder = VectorRecorder(3, SPACE, ACTIONS, autoreset=mode)
    recorder.reset(np.zeros(3, np.float32))
    steps = np.zeros(3, np.int64)
    for call in range(20):
        batch = pipeline(rl_module=None, episodes=recorder.episodes)
        assert batch["t"].tolist() == steps.tolist() == [episode.t for episode in recorder.episodes]
        assert batch["is_first"].tolist() == (steps == 0).tolist()
        ends = rng.random(3) < 0.4
        ends[recorder.waiting] = False
        final = np.zeros(3, np.float32) if mode == "same_step" else None
        newest = np.zeros(3, np.float32)
        flags = np.zeros(3, np.int64), np.zeros(3), ends, np.zeros(3, bool)
        recorder.step(*flags, newest, final_observations=final)
        recorder.commit()
        steps = np.array([episode.t for episode in recorder.episodes])
        if call % 6 == 5:
            harvested = recorder.flush(1)
            for episode, rows in zip(harvested, np.split(trained(harvested)["t"], np.cumsum(harvested.lengths())[:-1])):
                assert rows.tolist() == list(range(episode.t_started, episode.t))


def test_each_agent_counts_its_own_steps():
    both = MultiAgentEpisode(id_="m", agent_to_module_mapping_fn=lambda agent, episode: "all")
    both.add_env_reset(observations={"a": np.float32(0)})
    both.add_env_step({"a": np.float32(1), "b": np.float32(0)}, {"a": 0}, {"a": 0.0})
    both.add_env_step({"a": np.float32(2), "b": np.float32(1)}, {"a": 0, "b": 0}, {"a": 0.0, "b": 0.0})
    config = (
        PPOConfig()
        .multi_agent(policies=["all"], policy_mapping_fn=lambda agent, episode: "all")
        .learners(learner_connector=lambda o, a: [CountSteps(), MarkFirstSteps()])
    )
    spaces = [gym.spaces.Dict(a=space, b=space) for space in (SPACE, ACTIONS)]
    batch = config.build_learner_connector(*spaces)(rl_module=None, batch={}, episodes=[both])["all"]
    assert np.asarray(batch["t"]).tolist() == [0, 1, 0]
    assert np.asarray(batch["is_first"]).tolist() == [True, False, True]


def test_time_limits_truncate_at_the_step_that_was_set():
    config = PPOConfig().environment("CartPole-v1", wrappers=[{"wrapper": "TimeLimit", "max_episode_steps": 4}])
    (episode, *_) = SingleAgentEnvRunner(config=config).sample(num_episodes=1)
    assert (len(episode), episode.is_truncated, episode.is_terminated) == (4, True, False)
    assert trained([episode])["t"].tolist() == [0, 1, 2, 3]
