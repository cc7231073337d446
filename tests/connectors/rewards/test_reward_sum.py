"""Running returns: against a loop, across cuts, in blocks, for agents."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors.learner import AddOneTsToEpisodesAndTruncate, BatchIndividualItems, LearnerConnectorPipeline
from epibatch.connectors.rewards import RewardScaling, RewardSum
from epibatch.core.errors import ColumnError, LookbackError
from epibatch.env_runner import SingleAgentEnvRunner
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode
from epibatch.testing import check_connector


def sums(episodes, front=()):
    pipeline = LearnerConnectorPipeline(connectors=[*front, RewardSum(), BatchIndividualItems()])
    return pipeline(rl_module=None, batch={}, episodes=episodes)["episode_return"]


@settings(max_examples=60, deadline=None)
@given(
    chunks=st.lists(st.lists(st.integers(-9, 9).map(float), min_size=1, max_size=5), min_size=1, max_size=4),
    lookback=st.integers(0, 3),
    order=st.randoms(use_true_random=False),
)
def test_each_chunk_goes_on_from_the_one_before(chunks, lookback, order):
    episodes, episode = [], SingleAgentEpisode()
    episode.add_env_reset(0)
    for rewards in chunks:
        for reward in rewards:
            episode.add_env_step(1, 0, reward)
        episodes.append(episode)
        episode = episode.cut(len_lookback_buffer=lookback)
    flat = [reward for rewards in chunks for reward in rewards]
    running = [sum(flat[: t + 1]) for t in range(len(flat))]
    assert sums(episodes).tolist() == running
    places = list(range(len(chunks)))
    order.shuffle(places)
    starts = np.cumsum([0, *map(len, chunks)])
    expected = [running[t] for place in places for t in range(starts[place], starts[place + 1])]
    assert sums([episodes[place] for place in places]).tolist() == expected


def test_at_the_end_it_is_the_return():
    runner = SingleAgentEnvRunner(config=PPOConfig().environment("CartPole-v1").env_runners(num_envs_per_env_runner=3))
    whole = {}
    for _ in range(6):
        sample = runner.sample(num_timesteps=60, random_actions=True)
        found = np.split(sums(sample), np.cumsum([len(episode) for episode in sample])[:-1])
        for episode, own in zip(sample, found):
            whole[episode.id_] = whole.get(episode.id_, 0.0) + episode.get_return()
            assert own[-1] == whole[episode.id_]
    assert len(whole) > 6
    runner.stop()


def test_rewards_in_the_batch_do_not_count_and_bootstrap_rows_repeat():
    episode = SingleAgentEpisode(observations=[0, 1, 2], actions=[0, 0], rewards=[1.0, 3.0], len_lookback_buffer=0)
    assert sums([episode], [AddOneTsToEpisodesAndTruncate(), RewardScaling(scale=9.0)]).tolist() == [1.0, 4.0, 4.0]


@pytest.mark.parametrize(("dtype", "expected"), [(np.float32, np.float32), (np.int64, np.float64)])
def test_types(dtype, expected):
    rewards = np.array([1, 3], dtype)
    episode = SingleAgentEpisode(observations=[0, 1, 2], actions=[0, 0], rewards=rewards, len_lookback_buffer=0)
    assert sums([episode]).dtype == expected


def test_each_agents_own():
    both = MultiAgentEpisode(agent_to_module_mapping_fn=lambda agent, episode: "p")
    both.add_env_reset(observations={"a": 0, "b": 0})
    chunks = []
    for t in range(1, 5):
        both.add_env_step(observations={"a": t, "b": t}, actions={"a": 0, "b": 0}, rewards={"a": 1.0, "b": -t})
        if t == 2:
            chunks, both = [both], both.cut()
    config = PPOConfig().multi_agent(policies=["p"], policy_mapping_fn=lambda agent, episode: "p")
    config.learners(learner_connector=lambda o, a: RewardSum(to="so_far"))
    spaces = [gym.spaces.Dict(a=space, b=space) for space in (gym.spaces.Discrete(9), gym.spaces.Discrete(2))]
    batch = config.build_learner_connector(*spaces)(rl_module=None, batch={}, episodes=[*chunks, both])
    assert sorted(np.asarray(batch["p"]["so_far"]).tolist()) == sorted([1.0, 2.0, 3.0, 4.0, -1.0, -3.0, -6.0, -10.0])


def test_mistakes_are_named():
    facts = {"observations": [0, 1, 2], "actions": [0, 0], "rewards": [1.0, 2.0]}
    chunk = SingleAgentEpisode(**facts, t_started=7, len_lookback_buffer=1)
    with pytest.raises(LookbackError, match=r"starts at t=7[\s\S]*a lookback of 1 steps[\s\S]*episode.cut\(\)"):
        sums([chunk])
    assert sums([SingleAgentEpisode(**facts, t_started=1, len_lookback_buffer=1)]).tolist() == [3.0]
    vectors = SingleAgentEpisode(observations=[0, 1], actions=[0], rewards=[[1.0, 2.0]], len_lookback_buffer=0)
    with pytest.raises(ColumnError, match="one number per step"):
        sums([vectors])


def test_by_contract():
    check_connector(RewardSum())
