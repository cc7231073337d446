"""The number of calls of the package's functions in one call of a pipeline: exact, whatever the machine is doing."""

from __future__ import annotations

import copy
import sys
from collections import Counter
from itertools import cycle
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import epibatch
from epibatch.algorithms import DQNConfig
from epibatch.algorithms.ppo import PPOConfig
from epibatch.connectors import ConnectorV2
from epibatch.env_runner.multi_agent_env import make_multi_agent
from epibatch.episodes.replay import EpisodeReplayBuffer

PACKAGE = str(Path(epibatch.__file__).parent)
CALLS = {
    "learning": 276,
    "learning, block": 284,
    "learning, LSTM": 423,
    "learning, LSTM, block": 420,
    "learning, plain piece": 1104,
    "learning, agents": 907,
    "learning, agents, plain piece": 4624,
    "acting": 90,
    "acting, LSTM": 139,
    "acting, agents": 360,
    "replay, a draw and its batch": 265,
    "replay, a draw and its batch, LSTM": 482,
    "replay, 64 steps added": 211,
}
"""Of functions and methods; comprehensions, which some versions of Python inline, do not count."""


class Clock(gym.Env):
    """Episodes of 5, 17 and 40 steps in turn, whatever is done in them."""

    observation_space, action_space = gym.spaces.Box(-1, 99, (3,)), gym.spaces.Discrete(2)

    def __init__(self, **_):
        self.lengths = cycle((5, 17, 40))

    def reset(self, *, seed=None, options=None):
        self.left = next(self.lengths)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.full(3, self.left, np.float32), 1.0, self.left == 0, False, {}


class Noop(ConnectorV2):
    """Declares nothing and does nothing."""

    def __call__(self, *, batch, **kwargs):
        return batch


def calls_in(call):
    """Call something, and count the functions of the package that it enters."""
    counts = Counter()

    def entered(frame, event, arg):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and not code.co_name.startswith("<"):
            counts[f"{Path(code.co_filename).name}:{code.co_name}"] += 1

    sys.setprofile(entered)
    try:
        call()
    finally:
        sys.setprofile(None)
    return counts


def algorithm(name):
    config = PPOConfig().environment(Clock)
    if "agents" in name:
        config = PPOConfig().environment(make_multi_agent(lambda config: Clock()), env_config={"num_agents": 4})
        config = config.multi_agent(policies={"a", "b"}, policy_mapping_fn={"0": "a", "1": "a", "*": "b"})
    config = config.env_runners(num_envs_per_env_runner=4).training(train_batch_size=256).debugging(seed=0)
    if "LSTM" in name or "agents" in name:
        config = config.rl_module(model_config={"use_lstm": True, "max_seq_len": 20})
    return config.build_algo()


def learning(name):
    algo = algorithm(name)
    episodes = algo.env_runner.sample(num_timesteps=256)
    pipeline, module = algo.learner.connector, algo.learner.module
    if "block" not in name:
        episodes = copy.deepcopy(episodes)
    if "plain piece" in name:
        pipeline.insert_after("AddColumnsFromEpisodesToTrainBatch", Noop())

    def call():
        pipeline(rl_module=module, batch={}, episodes=episodes, shared_data={})

    call()
    counts = calls_in(call)
    algo.stop()
    return counts


def acting(name):
    algo, counts = algorithm(name), Counter()
    step = {"n": 0}

    def watched(pipeline):
        call = type(pipeline).__call__

        def __call__(self, **kwargs):
            step["n"] += 1
            found = []
            counted = calls_in(lambda: found.append(call(self, **kwargs)))
            if step["n"] in (59, 60):  # both pipelines, in the middle of episodes
                counts.update(counted)
            return found[0]

        pipeline.__class__ = type(type(pipeline).__name__, (type(pipeline),), {"__call__": __call__})

    for side in ("env_to_module", "module_to_env"):
        watched(algo.pipelines[side])
    algo.env_runner.sample(num_timesteps=400)
    algo.stop()
    return counts


def replaying(name):
    config = DQNConfig().environment(Clock).env_runners(num_envs_per_env_runner=4).debugging(seed=0)
    config.rl_module(model_config={"use_lstm": "LSTM" in name, "max_seq_len": 8})
    algo, buffer = config.build_algo(), EpisodeReplayBuffer(1000, seed=0)
    pipeline, module = algo.learner.connector, algo.learner.module
    deliveries = [algo.env_runner.sample(num_timesteps=64) for _ in range(4)]

    def draw():
        drawn = buffer.sample(32, batch_length_T=8, lookback=1) if "LSTM" in name else buffer.sample(32)
        pipeline(rl_module=module, batch={}, episodes=drawn, shared_data={})

    for episodes in deliveries[:3]:
        buffer.add(episodes)
        draw()
    counts = calls_in((lambda: buffer.add(deliveries[3])) if "added" in name else draw)
    algo.stop()
    return counts


@pytest.mark.parametrize("name", CALLS)
def test_calls_of_one_call(name):
    kinds = {"learning": learning, "acting": acting, "replay": replaying}
    counts = kinds[name.split(",")[0]](name)
    total, expected = sum(counts.values()), CALLS[name]
    most = ", ".join(f"{count} {function}" for function, count in counts.most_common(12))
    assert abs(total - expected) <= 0.05 * expected, (
        f"{name}: {total} calls where {expected} are stored ({most}). If this is meant, store the new number."
    )
