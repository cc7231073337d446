"""Rewards of several objectives: from the environment through the runner to the piece that makes numbers of them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms import PPOConfig
from epibatch.connectors.env_to_module import PrevActionsPrevRewards
from epibatch.core.columns import Columns
from epibatch.core.errors import ColumnError, EnvironmentContractError
from epibatch.env_runner import SingleAgentEnvRunner
from epibatch.testing import check_env

WEIGHTS = [0.5, -2.0, 1.0]


class Objectives(gym.Env):
    """Four steps per episode; step t of episode e gives [1, t, e]."""

    observation_space, action_space = gym.spaces.Box(-9, 9, (2,)), gym.spaces.Discrete(2)
    reward_space: Any = gym.spaces.Box(-9, 99, (3,))
    episode, fails = -1, False

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episode, self.t = self.episode + 1 if seed is None else 0, 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        if self.fails and self.t == 3:
            raise ConnectionError("lost")
        return np.full(2, self.t, np.float32), self.reward(), self.t == 4, False, {}

    def reward(self) -> Any:
        return np.array([1, self.t, self.episode], np.float32)


class OwnVector(gym.vector.SyncVectorEnv):
    """As MO-Gymnasium's MOSyncVectorEnv: a reward memory of [N, objectives]."""

    reward_space = Objectives.reward_space

    def __init__(self, num_envs: int) -> None:
        super().__init__([Objectives] * num_envs)
        self._rewards = np.zeros((num_envs, 3), np.float32)


def config_of(env: Any = Objectives, *, pieces: Any = None, **settings: Any) -> PPOConfig:
    return (
        PPOConfig()
        .environment(env)
        .env_runners(**{"num_envs_per_env_runner": 2, **settings})
        .training(learner_connector=pieces, train_batch_size=16, minibatch_size=8, num_epochs=1)
        .debugging(seed=0)
    )


@pytest.mark.parametrize(
    ("mode", "reset"),
    [*(("sync", reset) for reset in ("next_step", "same_step", "disabled")), ("async", None), ("vector", None)],
)
def test_vectors_are_stored_and_returns_are_their_sums(mode, reset):
    config = config_of(gym_env_vectorize_mode=mode, gym_env_autoreset_mode=reset) if mode != "vector" else config_of(
        OwnVector, gym_env_vectorize_mode="vector_entry_point"
    )  # fmt: skip
    runner = SingleAgentEnvRunner(config=config)
    chunks = [chunk for steps in (6, 2, 14) for chunk in runner.sample(num_timesteps=steps)]
    results = runner.get_metrics()
    runner.stop()
    returns = []
    for chunk in chunks:
        rewards = chunk.get_rewards()
        number = rewards[0, 2]
        np.testing.assert_array_equal(rewards, [[1, t + 1, number] for t in range(chunk.t_started, chunk.t)])
        whole = np.array([[1, t + 1, number] for t in range(chunk.t)])
        assert chunk.return_before + chunk.get_return() == whole.sum()
        returns += [whole.sum()] if chunk.is_done else []
    assert len(returns) == 4 and results["episode_return_mean"] == np.mean(returns)


def test_pieces_make_numbers_of_vectors():
    weighted, summed, none = (
        config_of(pieces=[{"piece": "linearise_rewards", "weights": WEIGHTS}]),
        config_of(pieces=[{"piece": "linearise_rewards"}]),
        config_of(),
    )
    episodes = SingleAgentEnvRunner(config=weighted).sample(num_timesteps=21)
    rewards = np.concatenate([np.concatenate([e.get_rewards(), np.zeros((1, 3))]) for e in episodes])
    module = SingleAgentEnvRunner(config=weighted).module
    for config, expected in ((weighted, rewards @ WEIGHTS), (summed, rewards.sum(1)), (none, None)):
        pipeline = config.build_learner_connector(Objectives.observation_space, Objectives.action_space)
        config.extend_learner_connector(pipeline)
        if expected is None:
            with pytest.raises(
                ColumnError, match=r"GeneralAdvantage[\s\S]*\[\d+, 3\][\s\S]*LineariseRewards makes one"
            ):
                pipeline(batch={}, episodes=episodes, rl_module=module, shared_data={})
            continue
        batch = pipeline(batch={}, episodes=episodes, rl_module=module, shared_data={})
        np.testing.assert_allclose(batch[Columns.REWARDS], expected, rtol=1e-6)


def test_training_with_failing_environments():
    class Failing(Objectives):
        def reset(self, **settings):
            self.fails = self.episode % 2 == 1
            return super().reset(**settings)

    config = config_of(Failing, pieces=[{"piece": "linearise_rewards"}])
    config.fault_tolerance(restart_failed_sub_environments=True)
    algo = config.build_algo()
    results = algo.train()
    algo.stop()
    assert results["env_runners"]["num_env_restarts"] > 0
    assert np.isfinite(results["learners"]["default_policy"]["total_loss"])


class Number(gym.RewardWrapper):
    reward_space = gym.spaces.Box(-99, 99, ())

    def reward(self, reward):
        return float(reward.sum())


class LinearReward(gym.RewardWrapper):  # MO-Gymnasium's has this name, and no space of its own
    def reward(self, reward):
        return float(reward @ WEIGHTS)


@pytest.mark.parametrize("wrapper", [Number, LinearReward])
def test_wrappers_may_make_numbers(wrapper):
    episode = SingleAgentEnvRunner(config=config_of(lambda config: wrapper(Objectives()))).sample(num_episodes=1)[0]
    assert episode.get_rewards().shape == (4,)


def variant(space: Any, value: Any) -> Any:
    return type("Odd", (Objectives,), {"reward_space": space, "reward": lambda self: value})


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(
    ("space", "value", "words"),
    [
        (None, np.ones(3), r"a number as reward\n[\s\S]*self.reward_space = Box"),
        (Objectives.reward_space, 1.0, r"shape \(3,\) as reward[\s\S]*1.0[\s\S]*reward_space of shape \(\)"),
        (Objectives.reward_space, np.ones(2), r"shape \(3,\) as reward[\s\S]*\(2,\)"),
        (Objectives.reward_space, np.array([1, np.nan, 1]), r"finite numbers"),
    ],
)
def test_rewards_of_another_shape_are_named(mode, space, value, words):
    runner = SingleAgentEnvRunner(config=config_of(lambda: variant(space, value)(), gym_env_vectorize_mode=mode))
    with pytest.raises(EnvironmentContractError, match=words):
        runner.sample(num_timesteps=4)
    runner.stop()


def test_previous_rewards_are_numbers():
    config = config_of(env_to_module_connector=lambda *spaces: PrevActionsPrevRewards())
    with pytest.raises(ColumnError, match=r"PrevActionsPrevRewards, column 'rewards'[\s\S]*n_prev_rewards=0"):
        SingleAgentEnvRunner(config=config).sample(num_timesteps=8)


@pytest.mark.parametrize("env", [Objectives, OwnVector])
def test_check_env_takes_vectors(env):
    assert not check_env(env, num_steps=10, timeout_s=None).errors
