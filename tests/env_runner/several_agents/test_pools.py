"""`gym_env_batch_size` with several agents: fast environments do not wait, and each episode stays in order."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from epibatch.algorithms import PPOConfig
from epibatch.core.errors import ConfigError, RunnerError
from epibatch.env_runner import EnvContext, MultiAgentEnv, MultiAgentEnvRunner, VectorMultiAgentEnv

AGENTS = ["a", "b"]


class Told(MultiAgentEnv):
    """Waits as the config says; b acts at every second step; lengths follow from the number and the episode."""

    def __init__(self, env_config):
        super().__init__()
        self.agents = self.possible_agents = list(AGENTS)
        self.observation_space, self.action_space = Box(-999, 999, (4,)), Discrete(3)
        self.number, self.config, self.episode = env_config.vector_index, env_config, -1

    def look(self):
        seen = [self.number, self.episode, self.t, self.total]
        return {a: np.array(seen, np.float32) for a in (AGENTS if self.t % 2 == 0 else ["a"])}

    def reset(self, *, seed=None, options=None):
        self.episode, self.t, self.total = self.episode + 1, 0, 0
        return self.look(), {}

    def step(self, actions):
        path = self.config.get("until")
        while self.number == 0 and path is not None and not path.exists():
            time.sleep(0.005)
        if (self.number, self.episode, self.t) == self.config.get("fails"):
            raise ArithmeticError("as told")
        assert actions.keys() == set(self.look())
        self.t += 1
        self.total += sum(int(action) for action in actions.values())
        ends = self.t == 3 + (self.number + self.episode) % 3
        return self.look(), {agent: float(self.total) for agent in AGENTS}, {"__all__": ends}, {}, {}


def maker(number, env=Told):
    context = EnvContext({})
    context.vector_index = number
    return lambda: env(context)


@pytest.fixture
def made():
    runners = []

    def make(batch_size=None, num_envs=4, restarts=False, env_config=None, **settings):
        torch.manual_seed(0)
        config = (
            PPOConfig()
            .environment(Told, env_config=env_config or {})
            .env_runners(num_envs_per_env_runner=num_envs, gym_env_vectorize_mode="async", explore=False)
            .env_runners(gym_env_batch_size=batch_size, keep_running_episodes=True, **settings)
            .multi_agent(policies=set(AGENTS), policy_mapping_fn=lambda agent, episode: agent)
            .fault_tolerance(restart_failed_sub_environments=restarts)
            .rl_module(model_config={"fcnet_hiddens": [8]})
            .debugging(seed=5)
        )
        runners.append(MultiAgentEnvRunner(config=config))
        return runners[-1]

    yield make
    for runner in runners:
        runner.stop()


def plain(episode):
    return {
        agent: (s.get_observations().tolist(), s.get_actions().tolist(), s.get_rewards().tolist(), s.is_terminated)
        for agent, s in episode.agent_episodes.items()
    }


def whole(chunks):
    """Episodes that ended, by environment and number, from chunks of several calls."""
    joined = {}
    for chunk in chunks:
        if chunk.id_ in joined:
            joined[chunk.id_].concat_episode(chunk)
        else:
            joined[chunk.id_] = chunk
    ended = [episode for episode in joined.values() if episode.is_done]
    return {tuple(episode.get_observations(0)["a"][:2].tolist()): plain(episode) for episode in ended}


@pytest.mark.parametrize("num_envs_per_worker", [1, 2])
def test_episodes_are_those_of_a_runner_that_waits(made, num_envs_per_worker):
    runner = made(batch_size=2, num_envs_per_worker=num_envs_per_worker)
    found = whole([chunk for _ in range(6) for chunk in runner.sample(num_timesteps=30)])
    waits = made()
    expected = whole([chunk for _ in range(12) for chunk in waits.sample(num_timesteps=30)])
    assert len(found) > 20
    assert found == {key: expected[key] for key in found}


def test_fast_environments_do_not_wait_for_a_slow_one(made, tmp_path):
    gate = tmp_path / "open"
    runner = made(batch_size=1, env_config={"until": gate})
    chunks = list(runner.sample(num_timesteps=60))  # environment 0 never answers
    assert {runner.env_of(chunk) for chunk in chunks} == {1, 2, 3}
    with pytest.raises(RunnerError, match=r"at work"):
        runner.step(mask=[False, True, True, True])
    with pytest.raises(RunnerError, match=r"at work"):
        runner.foreach_env(lambda env: env.t)
    gate.touch()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and 0 not in {runner.env_of(chunk) for chunk in chunks[-20:]}:
        chunks = list(runner.sample(num_timesteps=20))
    assert 0 in {runner.env_of(chunk) for chunk in chunks}
    runner.reset()  # waits for those at work
    assert {runner.env_of(chunk) for chunk in runner.sample(num_episodes=8)} <= {0, 1, 2, 3}


def test_a_failed_environment_is_made_again(made):
    runner = made(batch_size=1, restarts=True, env_config={"fails": (1, 0, 2)})
    chunks = list(runner.sample(num_timesteps=60))
    assert runner.get_metrics()["num_env_restarts"] >= 1
    cut = [chunk for chunk in chunks if chunk.is_truncated]
    assert cut and all(chunk.get_observations(0)["a"][0] == 1 for chunk in cut)
    with pytest.raises(ArithmeticError, match=r"number 1 of 4, 2 steps into its episode"):
        made(batch_size=1, env_config={"fails": (1, 0, 2)}).sample(num_timesteps=60)


def test_an_own_loop_acts_for_those_that_have_answered():
    class Slow(Told):
        def step(self, actions):
            time.sleep(0.2 * (self.number == 0))
            return super().step(actions)

    envs = VectorMultiAgentEnv([maker(i, Slow) for i in range(3)], mode="async")
    observations, _ = envs.reset()
    actions = [dict.fromkeys(each, 1) for each in observations]
    counts, mask = np.zeros(3, int), None
    started = time.monotonic()
    while time.monotonic() < started + 1.0:
        step, mask = envs.exchange(actions, mask)
        counts += mask
        assert [bool(each) for each in step.observations] == mask.tolist()
        for env in np.flatnonzero(mask):
            actions[env] = {} if envs.ended[env] else dict.fromkeys(step.observations[env], 1)
    envs.close()
    assert counts[1:].min() > 3 * counts[0]


def test_an_own_loop_resets_environments_beside_steps_of_others():
    envs = VectorMultiAgentEnv([maker(i) for i in range(3)], mode="async")
    envs.exchange([dict.fromkeys(each, 1) for each in envs.reset()[0]], count=3)
    second, third = np.array([False, True, False]), np.array([False, False, True])
    step, mask = envs.exchange([{"a": 1}] * 3, second | third, count=2, resets=second)
    envs.close()
    assert mask.tolist() == [False, True, True] and step.was_reset.tolist() == second.tolist()
    seen = [step.observations[env]["a"].tolist() for env in (1, 2)]
    assert seen == [[1, 1, 0, 0], [2, 0, 2, 3]]  # number, episode, step, sum of actions


def test_it_needs_processes():
    config = PPOConfig().environment(Told).env_runners(gym_env_batch_size=2)
    config.multi_agent(policies={"p"}, policy_mapping_fn=lambda agent, episode: "p")
    with pytest.raises(ConfigError, match="gym_env_batch_size"):
        MultiAgentEnvRunner(config=config)
    envs = VectorMultiAgentEnv([maker(0)])
    envs.reset()
    with pytest.raises(RunnerError, match=r"exchange\(\)"):
        envs.exchange([{}])
    envs.close()
