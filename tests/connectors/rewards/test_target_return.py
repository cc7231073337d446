"""What is still wanted: acting side and learner side have the same numbers, wherever episodes are cut."""

from __future__ import annotations

from collections import Counter

import gymnasium as gym
import numpy as np
import pytest
import torch

from epibatch.algorithms import Policy
from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors.env_to_module import (
    AddObservationsFromEpisodesToBatch,
    BatchIndividualItems,
    EnvToModulePipeline,
)
from epibatch.connectors.rewards import TargetReturn
from epibatch.core.errors import ColumnError, ConfigError, LookbackError
from epibatch.env_runner import MultiAgentEnvRunner, SingleAgentEnvRunner, make_multi_agent
from epibatch.episodes import SingleAgentEpisode
from epibatch.testing import check_connector

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


def test_the_module_is_built_for_it_and_trained():
    algo = config(mode="constant").build_algo()
    assert algo.get_module().observation_space["target_return"] == gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    assert algo.train()["num_env_steps_sampled_lifetime"] >= 64
    algo.stop()


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
    chunk = SingleAgentEpisode(
        observations=np.zeros((2, 1), np.float32), actions=[0], rewards=[1.0], t_started=4, len_lookback_buffer=0
    )
    with pytest.raises(LookbackError, match="starts at t=4"):
        acting()(rl_module=None, batch={}, episodes=[chunk])
    assert acting("constant")(rl_module=None, batch={}, episodes=[chunk])["obs"]["target_return"].tolist() == [[10.0]]


def test_by_contract():
    check_connector(TargetReturn(target=3.0))
