"""An environment that reports what it was given, and the configs that policies are tested with."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from epibatch.connectors import ConnectorV2
from fixture_configs import cart_pole
from fixture_envs import RandomEnv
from fixture_episodes import leaves

LSTM = {"use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 5}


class Walk(RandomEnv):
    """Random observations and rewards, 3 to 9 steps; infos tell the action as it came, and the observation."""

    def __init__(self, action_space=None, shape=(3,), observation_space=None):
        super().__init__(observation_space or gym.spaces.Box(-5, 5, shape), action_space or gym.spaces.Discrete(3))

    def reset(self, *, seed=None, options=None):
        observation, _ = super().reset(seed=seed)
        return observation, {"raw": [observation]}

    def step(self, action):
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"got": flat(action), "raw": [observation]}


def flat(action):
    """The numbers of an action in one row."""
    return np.concatenate([np.ravel(leaf).astype(np.float64) for leaf in leaves(action)])


class LastReward(ConnectorV2):
    """Puts the reward of the step before, 0 at the start, in place of the first number of each observation."""

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            obs = np.array(episode.get_observations(-1))
            obs[0] = episode.get_rewards(-1, fill=0.0)
            self.add_batch_item(batch, "obs", obs, episode)
        return batch


class MeanOfFour(ConnectorV2):
    """Acts on the mean of the newest four observations; an undeclared piece with a history."""

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            rows = episode.get_observations(slice(-4, None), fill=0.0)
            self.add_batch_item(batch, "obs", rows.mean(0).astype(np.float32), episode)
        return batch


def config(case, num_envs=1, seed=3):
    """The config of a case, with small networks."""
    box = gym.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([5.0, 0.5], np.float32))
    nested = gym.spaces.Dict(a=gym.spaces.Box(-5, 5, (2, 2)), b=gym.spaces.Tuple([gym.spaces.Discrete(4, start=3)]))
    actions = gym.spaces.Tuple([box, gym.spaces.Dict(x=gym.spaces.Discrete(3, start=-1), y=gym.spaces.MultiBinary(2))])
    env_config = {
        "box": {"action_space": box},
        "frames": {"shape": (3, 1)},
        "nested": {"observation_space": nested, "action_space": actions},
    }.get(case, {})
    made = (
        cart_pole(Walk, train_batch_size=64)
        .environment(env_config=env_config)
        .env_runners(num_envs_per_env_runner=num_envs)
        .rl_module(model_config={"fcnet_hiddens": [8], **(LSTM if case == "lstm" else {})})
        .debugging(seed=seed)
    )
    pieces = {
        "frames": [{"piece": "frame_stacking", "num_frames": 4}],
        "filter": [{"piece": "mean_std_filter"}],
        "previous": [{"piece": "prev_actions_prev_rewards", "n_prev_actions": 2, "n_prev_rewards": 3}],
        "reward": lambda env, spaces, device: [LastReward()],
        "mean": lambda env, spaces, device: [MeanOfFour()],
    }
    if case in pieces:
        made.env_runners(env_to_module_connector=pieces[case])
    if case == "frames":
        made.learners(learner_connector=pieces[case])
    return made


@pytest.fixture
def walk():
    """The class of the environment."""
    return Walk


@pytest.fixture
def built():
    """Builds algorithms of configs; closes them."""
    algorithms = []

    def build(config):
        algorithms.append(config.build_algo())
        return algorithms[-1]

    yield build
    for algorithm in algorithms:
        algorithm.stop()


@pytest.fixture
def algorithm(built):
    """Builds the algorithm of a case."""
    return lambda case, num_envs=1, seed=3: built(config(case, num_envs, seed))


@pytest.fixture
def case_config():
    """Makes the config of a case."""
    return config
