"""What episodes have got so far and what is still wanted: the same on both sides, wherever episodes are cut."""

from __future__ import annotations

from collections import Counter

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epibatch.algorithms import Policy
from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors.env_to_module import (
    AddObservationsFromEpisodesToBatch,
    BatchIndividualItems,
    EnvToModulePipeline,
)
from epibatch.connectors.learner import AddOneTsToEpisodesAndTruncate, LearnerConnectorPipeline
from epibatch.connectors.rewards import RewardScaling, RewardSum, TargetReturn
from epibatch.core.errors import ColumnError, ConfigError, LookbackError
from epibatch.env_runner import MultiAgentEnvRunner, SingleAgentEnvRunner, make_multi_agent
from epibatch.episodes import MultiAgentEpisode, SingleAgentEpisode
from fixture_pieces import played

SPACES = gym.spaces.Box(-9, 9, (1,)), gym.spaces.Discrete(2)


def acting(mode="reduce"):
    pieces = [TargetReturn(target=10.0, mode=mode), AddObservationsFromEpisodesToBatch(), BatchIndividualItems()]
    return EnvToModulePipeline(*SPACES, connectors=pieces)


@pytest.mark.parametrize("mode", ["reduce", "constant"])
@pytest.mark.parametrize("lookback", [0, 2])
def test_a_loop_of_ones_own(mode, lookback):
    pipeline = acting(mode)
    episode, shown, rewards = SingleAgentEpisode(), [], [0.5, 2.0, -1.0, 0.0, 4.0]
    episode.add_env_reset(np.zeros(1, np.float32))
    for t, reward in enumerate(rewards):
        shown += pipeline(rl_module=None, batch={}, episodes=[episode])["obs"]["target_return"][:, 0].tolist()
        if t % 2:
            episode = episode.cut(len_lookback_buffer=lookback)
        episode.add_env_step(np.full(1, t, np.float32), 0, reward)
    expected = [10.0 - sum(rewards[:t]) if mode == "reduce" else 10.0 for t in range(5)]
    assert shown == expected


def config(**settings):
    made = PPOConfig().environment("CartPole-v1").debugging(seed=1)
    made.training(train_batch_size=64, minibatch_size=64, num_epochs=1)
    connector = {"env_to_module_connector": lambda env: TargetReturn(target=20.0, **settings)}
    return made.env_runners(num_envs_per_env_runner=3, **connector)


@pytest.mark.parametrize("steps", [30, 45])
def test_what_the_learner_finds_is_what_the_module_acted_on(steps):
    seen = []

    class Noted(TargetReturn):
        def rewrite(self, observations, call):
            out = super().rewrite(observations, call)
            seen.extend(out["target_return"][:, 0].tolist())
            return out

    made = config().env_runners(env_to_module_connector=lambda env: Noted(target=20.0))
    runner, so_far, found = SingleAgentEnvRunner(config=made), {}, []
    for _ in range(8):
        for episode in runner.sample(num_timesteps=steps, random_actions=False):
            targets = episode.get_observations()["target_return"][:, 0]
            before = so_far.get(episode.id_, 0.0)
            assert targets.tolist() == [20.0 - before - t for t in range(len(episode) + 1)]
            so_far[episode.id_] = before + len(episode)
            found += targets[: None if episode.is_done else -1].tolist()
    only_seen = Counter(seen) - Counter(found)
    assert len(so_far) > 5 and Counter(found) <= Counter(seen)
    assert only_seen.total() <= 3  # the newest of each environment, which begin the next chunks
    runner.stop()


def test_acting_from_outside(tmp_path):
    algo = config().build_algo()
    path = algo.save_to_path(str(tmp_path / "saved"))
    algo.stop()
    policy = Policy.from_checkpoint(path)
    shown = []
    forward = policy.module.forward_inference

    def noted(batch, **kwargs):
        shown.append(float(torch.as_tensor(batch["obs"]["target_return"]).ravel()[0]))
        return forward(batch, **kwargs)

    policy.module.forward_inference = noted
    observation = np.zeros(4, np.float32)
    _, state = policy.act(observation)
    for reward in (1.0, 0.25):
        _, state = policy.act(observation, state, reward=reward)
    assert shown == [20.0, 19.0, 18.75]
    with pytest.raises(ColumnError, match=r"reward=reward"):
        policy.act(observation, state)


def test_each_agent_has_its_own():
    made = (
        PPOConfig()
        .environment(make_multi_agent("CartPole-v1"), env_config={"num_agents": 2})
        .multi_agent(policies=["p"], policy_mapping_fn=lambda agent, episode: "p")
        .env_runners(env_to_module_connector=lambda env: TargetReturn(target=5.0))
        .debugging(seed=0)
    )
    runner = MultiAgentEnvRunner(config=made)
    for _ in range(3):
        for episode in runner.sample(num_timesteps=7, random_actions=True):
            for own in episode.agent_episodes.values():
                targets = own.get_observations()["target_return"][:, 0].tolist()
                assert targets == [5.0 - own.t_started - t for t in range(len(own) + 1)]
    runner.stop()


def test_mistakes_are_named():
    with pytest.raises(ConfigError, match=r"target=200.0"):
        TargetReturn(target=float("inf"))
    with pytest.raises(ConfigError, match="'reduce' or 'constant'"):
        TargetReturn(target=1.0, mode="reduced")
    chunk = played(np.zeros((2, 1), np.float32), [1.0], t_started=4)
    with pytest.raises(LookbackError, match="starts at t=4"):
        acting()(rl_module=None, batch={}, episodes=[chunk])
    assert acting("constant")(rl_module=None, batch={}, episodes=[chunk])["obs"]["target_return"].tolist() == [[10.0]]


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
    episode = played([0, 1, 2], [1.0, 3.0])
    assert sums([episode], [AddOneTsToEpisodesAndTruncate(), RewardScaling(scale=9.0)]).tolist() == [1.0, 4.0, 4.0]


@pytest.mark.parametrize(("dtype", "expected"), [(np.float32, np.float32), (np.int64, np.float64)])
def test_types(dtype, expected):
    rewards = np.array([1, 3], dtype)
    episode = played([0, 1, 2], rewards)
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


def test_chunks_that_cannot_be_summed_up_are_named():
    facts = {"observations": [0, 1, 2], "actions": [0, 0], "rewards": [1.0, 2.0]}
    chunk = SingleAgentEpisode(**facts, t_started=7, len_lookback_buffer=1)
    with pytest.raises(LookbackError, match=r"starts at t=7[\s\S]*a lookback of 1 steps[\s\S]*episode.cut\(\)"):
        sums([chunk])
    assert sums([SingleAgentEpisode(**facts, t_started=1, len_lookback_buffer=1)]).tolist() == [3.0]
    vectors = played([0, 1], [[1.0, 2.0]])
    with pytest.raises(ColumnError, match="one number per step"):
        sums([vectors])
