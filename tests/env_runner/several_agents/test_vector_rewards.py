"""Rewards of several objectives and several agents."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from epibatch.algorithms import PPOConfig
from epibatch.core.columns import Columns
from epibatch.core.errors import EnvironmentContractError
from epibatch.env_runner import MultiAgentEnv
from epibatch.episodes import MultiAgentEpisode

AGENTS = ["a", "b"]


class Objectives(MultiAgentEnv):
    """Agent b acts at every second step, and is paid in between; it gets nothing for its first step."""

    reward_space = Box(-9, 99, (3,))

    def __init__(self, wrong=None):
        super().__init__()
        self.agents = self.possible_agents = list(AGENTS)
        self.observation_space, self.action_space = Box(-9, 9, (2,)), Discrete(2)
        self.wrong = wrong

    def look(self):
        return {agent: np.full(2, self.t, np.float32) for agent in (AGENTS if self.t % 2 == 0 else ["a"])}

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.look(), {}

    def step(self, actions):
        self.t += 1
        rewards = {"a": np.array([1, self.t, 0]), "b": np.array([0.5, 0, self.t])}
        if self.t <= 2:
            del rewards["b"]
        if self.wrong is not None:
            rewards["a"] = self.wrong
        return self.look(), rewards, {"__all__": self.t == 6}, {}, {}


def config_of(env=Objectives, weights=None, **settings):
    pieces = [{"piece": "linearise_rewards", "weights": weights}]
    return (
        PPOConfig()
        .environment(env)
        .env_runners(num_envs_per_env_runner=2, **settings)
        .multi_agent(policies=set(AGENTS), policy_mapping_fn=lambda agent, episode: agent)
        .training(learner_connector=pieces, train_batch_size=24, minibatch_size=12, num_epochs=1)
        .debugging(seed=0)
    )


# by hand: a's rewards at t = 1..6; b observes at 0, 2, 4, 6 and is paid at 3, 4, 5, 6
PAID = {
    "a": np.array([[1, t, 0] for t in range(1, 7)], np.float64),
    "b": np.array([[0, 0, 0], [1, 0, 3 + 4], [1, 0, 5 + 6]], np.float64),
}


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_episodes_hold_vectors_and_the_metrics_their_sums(mode):
    algo = config_of(gym_env_vectorize_mode=mode).build_algo()
    episodes = algo.env_runner.sample(num_episodes=4)
    for episode in episodes:
        for agent, rewards in episode.get_rewards().items():
            np.testing.assert_array_equal(rewards, PAID[agent])
        assert MultiAgentEpisode.from_state(episode.get_state()).equals(episode)
    total = sum(rewards.sum() for rewards in PAID.values())
    metrics = algo.env_runner.get_metrics()
    assert metrics["episode_return_mean"] == pytest.approx(total) == episodes[0].get_return()
    assert metrics["agent_episode_returns_mean"] == pytest.approx({a: PAID[a].sum() for a in AGENTS})
    algo.stop()


@pytest.mark.parametrize("weights", [None, [0.0, 1.0, 0.0], [2.0, -1.0, 0.5]])
def test_the_learner_piece_weighs_them(weights):
    algo = config_of(weights=weights).build_algo()
    episodes = algo.env_runner.sample(num_timesteps=8)  # chunks end in the middle
    batch = algo.learner.connector(rl_module=algo.learner.module, batch={}, episodes=episodes)
    for agent in AGENTS:
        wanted = [
            np.asarray(e.get_rewards()[agent]) @ (weights or [1, 1, 1]) for e in episodes if agent in e.get_rewards()
        ]
        mask = batch[agent][Columns.LOSS_MASK].numpy()
        np.testing.assert_allclose(batch[agent][Columns.REWARDS].numpy()[mask], np.concatenate(wanted), rtol=1e-6)
    algo.train()
    algo.stop()


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (np.ones(2), r"rewards\['a'\]\n.*a vector of shape \(3,\) as reward"),
        (1.0, r"a vector of shape \(3,\)"),
        (np.array([0, np.nan, 0]), "finite numbers"),
    ],
)
def test_a_reward_of_another_shape_is_named(wrong, match):
    algo = config_of(lambda: Objectives(wrong)).build_algo()
    with pytest.raises(EnvironmentContractError, match=match):
        algo.env_runner.sample(num_timesteps=4)
    algo.stop()


def test_a_vector_environment_of_several_agents_gives_them():
    class Many(gym.vector.VectorEnv):
        possible_agents, reward_space = AGENTS, Objectives.reward_space
        single_observation_space, single_action_space = Box(-9, 9, (2,)), Discrete(2)

        def __init__(self, num_envs):
            self.num_envs, self.metadata = num_envs, {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}

        def reset(self, *, seed=None, options=None):
            self.t = 0
            return np.zeros((self.num_envs, 2, 2), np.float32), {}

        def step(self, actions):
            self.t += 1
            seen = np.full((self.num_envs, 2, 2), self.t, np.float32)
            rewards = np.arange(self.num_envs * 6).reshape(-1, 2, 3)
            return seen, rewards, np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool), {}

    algo = config_of(lambda num_envs: Many(num_envs), gym_env_vectorize_mode="vector_entry_point").build_algo()
    episodes = algo.env_runner.sample(num_timesteps=8)
    for episode in episodes:
        env = algo.env_runner.env_of(episode)
        for i, agent in enumerate(AGENTS):
            first = env * 6 + i * 3
            np.testing.assert_array_equal(episode.get_rewards()[agent], [[first, first + 1, first + 2]] * 4)
    algo.stop()
