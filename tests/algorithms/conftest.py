"""An environment that reports what it was given, and the configs that policies are tested with."""

from __future__ import annotations

import re
import subprocess

import gymnasium as gym
import imageio_ffmpeg
import numpy as np
import pytest

from epibatch.algorithms import PPOConfig
from epibatch.connectors import ConnectorV2

LSTM = {"use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 5}


class Walk(gym.Env):
    """Random observations and rewards, episodes of 3 to 9 steps; `info["got"]` is the action as it came."""

    def __init__(self, action_space=None, shape=(3,)):
        self.observation_space = gym.spaces.Box(-5, 5, shape)
        self.action_space = action_space or gym.spaces.Discrete(3)

    def _observe(self):
        return self.np_random.uniform(-5, 5, self.observation_space.shape).astype(np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._left = int(self.np_random.integers(3, 10))
        return self._observe(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self._left -= 1
        got = np.array(action, np.float64)
        return self._observe(), float(self.np_random.normal()), self._left == 0, False, {"got": got}


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
    env_config = {"box": {"action_space": box}, "frames": {"shape": (3, 1)}}.get(case, {})
    made = (
        PPOConfig()
        .environment(Walk, env_config=env_config)
        .env_runners(num_envs_per_env_runner=num_envs)
        .training(train_batch_size=64, minibatch_size=32, num_epochs=1)
        .rl_module(model_config={"fcnet_hiddens": [8], **(LSTM if case == "lstm" else {})})
        .debugging(seed=seed)
    )
    pieces = {
        "frames": [{"piece": "frame_stacking", "num_frames": 4}],
        "reward": lambda env, spaces, device: [LastReward()],
        "mean": lambda env, spaces, device: [MeanOfFour()],
    }
    if case in pieces:
        made.env_runners(env_to_module_connector=pieces[case])
    if case == "frames":
        made.learners(learner_connector=pieces[case])
    return made


@pytest.fixture
def read_video():
    """Reads a video with ffmpeg itself: frames per second, and uint8 frames of shape [frames, height, width, 3]."""

    def read(path):
        command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
        done = subprocess.run(command, capture_output=True, check=True)
        width, height, fps = re.search(r"Video: .* (\d+)x(\d+)[ ,].* ([\d.]+) fps", done.stderr.decode()).groups()
        return float(fps), np.frombuffer(done.stdout, np.uint8).reshape(-1, int(height), int(width), 3)

    return read


@pytest.fixture
def walk():
    """The class of the environment."""
    return Walk


@pytest.fixture
def algorithm():
    """Builds the algorithm of a case; closes what it built."""
    built = []

    def build(case, num_envs=1, seed=3):
        built.append(config(case, num_envs, seed).build_algo())
        return built[-1]

    yield build
    for algo in built:
        algo.stop()


@pytest.fixture
def case_config():
    """Makes the config of a case."""
    return config
