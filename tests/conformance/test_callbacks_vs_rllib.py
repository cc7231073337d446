"""The same callbacks, on the same environment, in both libraries: the same calls in the same order.

Both run Gymnasium's default autoreset, where the reset observation comes one vector step after the end. With
`num_episodes` RLlib leaves out the environments behind the last episode that it counts, so there one environment is
compared, and several of equal lengths with as many episodes as environments.
"""

from __future__ import annotations

import itertools
import warnings

import gymnasium as gym
import numpy as np
import pytest

from oracle.behaviours import holds

pytest.importorskip("ray", reason="RLlib is the oracle")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from ray.rllib.algorithms.ppo import PPOConfig as TheirConfig
    from ray.rllib.callbacks.callbacks import RLlibCallback
    from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner as TheirRunner
    from ray.tune.registry import register_env as register_theirs

from epibatch.algorithms.ppo import PPOConfig
from epibatch.core.registry import register_env
from epibatch.env_runner import SingleAgentEnvRunner
from epibatch.env_runner.callbacks import RUNNER_EVENTS, Callbacks

pytestmark = pytest.mark.filterwarnings("ignore")


class Lengths(gym.Env):
    """Episodes whose lengths repeat (3, 5, 2), rotated by the environment's number; every third is truncated."""

    observation_space = gym.spaces.Box(-1000.0, 1000.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, number, lengths):
        self.number, self.lengths, self.episode = number, lengths, -1

    def _observation(self):
        return np.array([self.episode, self.t], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self._observation(), {"t": 0}

    def step(self, action):
        self.t += 1
        over = self.t == self.lengths[(self.number + self.episode) % len(self.lengths)]
        truncated = over and self.episode % 3 == 2
        return self._observation(), float(self.t), over and not truncated, truncated, {"t": self.t}


class Log:
    """Notes every call; episodes are numbered in the order in which they are first seen."""

    def __init__(self):
        self.calls, self._numbers = [], {}

    def function(self, event, by="function"):
        return lambda **keywords: self.note(event, by, keywords)

    def note(self, event, by, keywords):
        keys = sorted(keywords)
        row = [by, event, keys]
        if "episode" in keywords:
            episode = keywords["episode"]
            number = self._numbers.setdefault(episode.id_, len(self._numbers))
            row += [number, keywords["env_index"], len(episode), episode.t, episode.is_reset]
            row += [episode.is_terminated, episode.is_truncated]
            if len(episode):
                row.append(np.asarray(episode.get_observations(-1)).tolist())
            row.append([(len(chunk), chunk.t_started) for chunk in keywords.get("prev_episode_chunks", ())])
        if "samples" in keywords:
            row.append([(self._numbers.get(chunk.id_), len(chunk)) for chunk in keywords["samples"]])
        self.calls.append(tuple(map(str, row)))


def listener(base, log):
    """A class whose methods note what they are told."""
    names = RUNNER_EVENTS[1:]
    methods = {name: lambda self, _name=name, **keywords: log.note(_name, "method", keywords) for name in names}
    return type("Noting", (base,), methods)


def calls(config_class, runner_class, base, register, num_envs, lengths, samples):
    log, numbers = Log(), itertools.count()
    register("lengths", lambda env_config: Lengths(next(numbers), lengths))
    config = config_class().environment("lengths").env_runners(num_env_runners=0, num_envs_per_env_runner=num_envs)
    config.callbacks(listener(base, log), **{event: log.function(event) for event in RUNNER_EVENTS[1:]})
    runner = runner_class(config=config, worker_index=0)
    for keywords in samples:
        runner.sample(**keywords)
    runner.stop()
    return log.calls


CASES = {
    "one environment": (1, (3, 5, 2), [{"num_timesteps": 25}]),
    "three environments": (3, (3, 5, 2), [{"num_timesteps": 60}]),
    "several calls": (2, (3, 5, 2), [{"num_timesteps": 7}] * 5),
    "a long episode": (1, (40,), [{"num_timesteps": 12}] * 4),
    "random actions": (2, (3, 4), [{"num_timesteps": 21, "random_actions": True}]),
    "a forced reset": (2, (3, 5, 2), [{"num_timesteps": 7}, {"num_timesteps": 7, "force_reset": True}]),
    "whole episodes": (1, (3, 5, 2), [{"num_episodes": 2}, {"num_episodes": 1}, {"num_timesteps": 4}]),
    "whole episodes of two": (2, (4,), [{"num_episodes": 2}, {"num_episodes": 2}]),
}


@holds("C59")
@pytest.mark.parametrize("case", CASES)
def test_calls_and_what_they_are_given(case):
    theirs = calls(TheirConfig, TheirRunner, RLlibCallback, register_theirs, *CASES[case])
    ours = calls(PPOConfig, SingleAgentEnvRunner, Callbacks, register_env, *CASES[case])
    assert ours == theirs
    assert {row[1] for row in ours} >= {"on_episode_created", "on_episode_start", "on_episode_step", "on_sample_end"}
    assert {row[0] for row in ours} == {"function", "method"}
