"""Groups of runners: one in this process, or several, with a fake in place of Ray."""

from __future__ import annotations

import pytest

from epibatch.algorithms import PPOConfig
from epibatch.core.errors import RunnerError
from epibatch.env_runner import EnvRunnerGroup, SingleAgentEnvRunner


def config_of(**settings):
    return PPOConfig().environment("CartPole-v1").env_runners(num_envs_per_env_runner=2, **settings).debugging(seed=3)


def rewards_and_ids(episodes):
    return [(len(episode), episode.get_return()) for episode in episodes]


def test_without_processes_a_group_samples_as_its_runner():
    group, runner = EnvRunnerGroup(config=config_of()), SingleAgentEnvRunner(config=config_of())
    arguments = ({"num_timesteps": 40}, {"num_episodes": 3}, {"num_timesteps": 8, "random_actions": True}, {})
    for keywords in arguments:
        runner.module.set_state(group.local_env_runner.module.get_state())
        assert rewards_and_ids(group.sample(**keywords)) == rewards_and_ids(runner.sample(**keywords))
    runner.stop()
    group.stop()
    with pytest.raises(RunnerError, match="stopped"):
        group.sample()
