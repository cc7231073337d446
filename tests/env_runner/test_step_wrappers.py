"""Several steps of an environment for one: the same action again, or a chunk of them."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.algorithms.ppo import PPOConfig
from epibatch.core.errors import ConfigError
from epibatch.env_runner import ActionChunks, FrameSkip, SingleAgentEnvRunner


class Counted(gym.Env):
    """Counts steps; the reward is the step's number, and every action is noted."""

    observation_space = gym.spaces.Box(0, 99, (1,), np.float32)
    taken: list

    def __init__(self, actions=None, length=6, truncates=False):
        self.action_space, self.length, self.truncates = actions or gym.spaces.Discrete(3), length, truncates

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.taken = 0, []
        return np.float32([0]), {}

    def step(self, action):
        assert self.action_space.contains(action) and self.t < self.length
        self.t += 1
        self.taken.append(action)
        end = self.t == self.length
        return np.float32([self.t]), float(self.t), end and not self.truncates, end and self.truncates, {"t": self.t}


@pytest.mark.parametrize("truncates", [False, True])
def test_an_action_is_repeated_until_the_episode_ends(truncates):
    env = FrameSkip(Counted(truncates=truncates), skip=4)
    env.reset()
    assert env.step(1) == (np.float32([4]), 1 + 2 + 3 + 4, False, False, {"t": 4})
    assert env.step(2) == (np.float32([6]), 5 + 6, not truncates, truncates, {"t": 6})
    assert env.unwrapped.taken == [1] * 4 + [2] * 2


def test_a_chunk_is_one_transition():
    env = ActionChunks(Counted(), size=4)
    env.reset()
    observation, reward, terminated, _, info = env.step(np.array([0, 1, 2, 1]))
    assert (observation.tolist(), reward, terminated) == ([4], 10, False)
    assert info["chunk_steps"] == 4 and info["chunk_rewards"].tolist() == [1, 2, 3, 4] and info["t"] == 4
    observation, reward, terminated, _, info = env.step(np.array([2, 0, 1, 1]))
    assert (observation.tolist(), reward, terminated) == ([6], 11, True)
    assert info["chunk_steps"] == 2 and info["chunk_rewards"].tolist() == [5, 6, 0, 0]
    assert env.unwrapped.taken == [0, 1, 2, 1, 2, 0]


def test_rewards_of_a_chunk_are_discounted():
    env = ActionChunks(Counted(), size=3, gamma=0.5)
    env.reset()
    assert env.step(np.zeros(3, int))[1] == 1 + 2 * 0.5 + 3 * 0.25


@pytest.mark.parametrize(
    ("actions", "chunks"),
    [
        (gym.spaces.Discrete(3, start=4), gym.spaces.MultiDiscrete([3, 3], start=[4, 4])),
        (gym.spaces.MultiDiscrete([2, 5], start=[1, 0]), gym.spaces.MultiDiscrete([[2, 5]] * 2, start=[[1, 0]] * 2)),
        (gym.spaces.MultiBinary(3), gym.spaces.MultiBinary((2, 3))),
        (gym.spaces.Box(-2.0, 1.0, (2,)), gym.spaces.Box(-2.0, 1.0, (2, 2))),
        (
            gym.spaces.Dict(a=gym.spaces.Discrete(2), b=gym.spaces.Tuple([gym.spaces.MultiBinary(2)])),
            gym.spaces.Dict(a=gym.spaces.MultiDiscrete([2, 2]), b=gym.spaces.Tuple([gym.spaces.MultiBinary((2, 2))])),
        ),
    ],
    ids=str,
)
def test_chunks_of_any_actions_are_trained(actions, chunks):
    config = (
        PPOConfig()
        .environment(lambda _: Counted(actions), wrappers=[{"wrapper": "ActionChunks", "size": 2}])
        .env_runners(num_envs_per_env_runner=2)
        .training(train_batch_size=24, minibatch_size=24, num_epochs=1)
    )
    algo = config.build_algo()
    assert algo.get_module().action_space == chunks
    algo.train()
    for episode in algo.env_runner.sample(num_episodes=2):
        assert len(episode) == 3 and episode.get_rewards().tolist() == [3, 7, 11]
        assert episode.get_observations().ravel().tolist() == [0, 2, 4, 6]
    algo.stop()


def test_repeated_actions_in_a_config():
    config = PPOConfig().environment(lambda _: Counted(), wrappers=[{"wrapper": "FrameSkip", "skip": 4}])
    runner = SingleAgentEnvRunner(config=config)
    for random_actions in (False, True):
        (episode,) = runner.sample(num_episodes=1, random_actions=random_actions)
        assert episode.get_rewards().tolist() == [10, 11] and episode.is_terminated
    runner.stop()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda env: FrameSkip(env, skip=0), r"FrameSkip\.skip"),
        (lambda env: FrameSkip(env, skip=2.0), "a whole number"),
        (lambda env: ActionChunks(env, size=True), r"ActionChunks\.size"),
        (lambda env: ActionChunks(env, gamma=1.5), r"ActionChunks\.gamma"),
    ],
)
def test_what_cannot_be_meant_is_named(make, said):
    with pytest.raises(ConfigError, match=said):
        make(Counted())
