"""Resets of single agents: masks by agent, of environments and of runners."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from epibatch.algorithms import PPOConfig
from epibatch.connectors import ConnectorV2
from epibatch.core.errors import NotAvailableError, RunnerError, UnknownNameError
from epibatch.env_runner import MultiAgentEnv, MultiAgentEnvRunner, VectorMultiAgentEnv, make_multi_agent

AGENTS = ["agent0", "agent1"]


class Counters(MultiAgentEnv):
    """Each agent counts its own steps from 0, and the observation shows the count."""

    def __init__(self, env_config=None):
        super().__init__()
        self.agents = self.possible_agents = list(AGENTS)
        self.observation_space, self.action_space = Box(-99, 99, (1,)), Discrete(3)
        self.start = {"agent0": 1, "agent1": 2}  # as in the example, and 0 after a reset

    def look(self, agents):
        return {agent: np.array([self.counts[agent]], np.float32) for agent in agents}

    def reset(self, *, seed=None, options=None):
        self.t, self.counts = 0, dict.fromkeys(AGENTS, 0) if options is None else dict(self.start)
        return self.look(AGENTS), {}

    def reset_agents(self, agents):
        self.counts.update(dict.fromkeys(agents, 0))
        return self.look(agents), {agent: {"again": self.t} for agent in agents}

    def step(self, actions):
        self.t += 1
        for agent in actions:
            self.counts[agent] += 1
        rewards = {agent: float(self.counts[agent]) for agent in actions}
        return self.look(actions), rewards, {"__all__": self.t == 40}, {}, {}


def counts_of(envs):
    return [list(each.values()) for each in envs.call(lambda env: dict(env.counts))]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_masks_of_environments_of_agents_and_of_both(mode):
    """The three examples of nested resets: values that are 1 for agent0 and 2 for agent1, and 0 after a reset."""
    envs = VectorMultiAgentEnv([Counters] * 2, mode=mode)
    envs.reset(options={})
    envs.reset(mask=np.array([False, True]))
    assert counts_of(envs) == [[1, 2], [0, 0]]
    nested = {"agent0": [False, True], "agent1": [True, False]}
    envs.reset(options={})
    observations, infos = envs.reset(mask=nested)
    assert counts_of(envs) == [[1, 0], [0, 2]]
    assert observations == [{"agent1": np.array([0])}, {"agent0": np.array([0])}]
    assert infos == [{"agent1": {"again": 0}}, {"agent0": {"again": 0}}]
    observations, *_ = envs.step([{"agent0": 1}, {"agent1": 1}])
    assert observations == [{"agent0": 2, "agent1": 0}, {"agent0": 0, "agent1": 3}]
    envs.reset(options={})
    envs.reset(mask={**nested, "__all__": [True, True]})
    assert counts_of(envs) == [[0, 0], [0, 0]]
    envs.close()


class Seen(ConnectorV2):
    """Counts the observations that pass."""

    def __call__(self, *, batch, episodes, **kwargs):
        for episode in episodes:
            self.rows.extend((episode.id_, episode.env_t, agent) for agent in episode.get_agents_that_observed())
        return batch


def runner_of(env=Counters, piece=None, **settings):
    torch.manual_seed(0)
    config = (
        PPOConfig()
        .environment(env, **settings)
        .env_runners(num_envs_per_env_runner=3, env_to_module_connector=piece)
        .multi_agent(policies={"p"}, policy_mapping_fn=lambda agent, episode: "p")
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .debugging(seed=1)
    )
    return MultiAgentEnvRunner(config=config)


@pytest.mark.parametrize("random_actions", [False, True])
def test_episodes_are_those_of_a_plain_loop(random_actions):
    rng, rows = np.random.default_rng(0), []
    piece = Seen()
    piece.rows = rows
    runner = runner_of(piece=lambda env: piece)
    chunks = list(runner.step(random_actions=random_actions))
    counts = np.ones((3, 2), int)  # of each environment and agent
    segments = {(env, i): [[0, 1]] for env in range(3) for i in range(2)}  # what each agent saw in each life
    waits = np.zeros((3, 2), bool)
    for _ in range(38):
        if rng.random() < 0.4:
            masks = rng.random((2, 3)) < 0.4
            runner.reset(mask=dict(zip(AGENTS, masks)))
            for i, env in zip(*np.nonzero(masks)):
                counts[env, i], waits[env, i] = 0, True
        chunks += runner.step(random_actions=random_actions)
        for env in range(3):
            for i in range(2):
                if waits[env, i]:
                    segments[env, i].append([0])
                else:
                    counts[env, i] += 1
                    segments[env, i][-1].append(counts[env, i])
        waits[:] = False
    whole = {}
    for chunk in chunks:
        if chunk.id_ in whole:
            whole[chunk.id_].concat_episode(chunk)
        else:
            whole[chunk.id_] = chunk
    assert len(whole) == 3 and not any(episode.is_done for episode in whole.values())
    for env, episode in enumerate(whole.values()):
        for i, agent in enumerate(AGENTS):
            lives = [segment.episode for segment in episode.segments if segment.agent_id == agent]
            seen = [life.get_observations()[:, 0].tolist() for life in lives]
            assert len(lives) > 3 and seen == segments[env, i]
            for life in lives[:-1]:
                assert life.is_truncated and not life.is_terminated
            for life in lives:
                assert life.get_rewards().tolist() == [float(t) for t in range(1, len(life) + 1)]
    assert len(rows) == len(set(rows))  # each observation passed once
    runner.stop()


def test_a_reset_of_all_agents_has_precedence():
    runner = runner_of()
    runner.sample(num_timesteps=9)
    before = [episode.id_ for episode in runner.step()]
    runner.reset(mask={"__all__": [True, False, False], "agent0": [True, True, False]})
    assert counts_of(runner.env) == [[0, 0], [0, 4], [4, 4]]
    after = runner.step()
    assert [episode.id_ == id_ for episode, id_ in zip(after, before)] == [False, True, True]
    assert [episode.env_t for episode in after] == [1, 5, 5]
    runner.stop()


def test_a_batch_has_the_lives_of_an_agent_one_after_the_other():
    runner = runner_of()
    runner.sample(num_timesteps=9)
    runner.reset(mask={"agent1": [True, False, False]})
    episodes = runner.sample(num_timesteps=15)
    first = episodes[0]
    assert [len(s.episode) for s in first.segments if s.agent_id == "agent1"] == [0, 4]
    assert [len(s.episode) for s in first.segments if s.agent_id == "agent0"] == [5]
    runner.stop()


def test_agents_with_an_environment_each_can_be_reset_alone():
    runner = runner_of(make_multi_agent("CartPole-v1"), env_config={"num_agents": 2})
    runner.sample(num_timesteps=9)
    runner.reset(mask={0: [True, True, False], 1: [True, False, False]})  # nobody acts in environment 0
    runner.sample(num_timesteps=3)
    lives = [len([s for s in episode.segments if s.agent_id == 0]) for episode in runner.sample(num_timesteps=3)]
    assert len(lives) == 3
    runner.stop()


def test_wrong_masks_and_environments_that_cannot_are_named():
    runner = runner_of()
    runner.step()
    with pytest.raises(UnknownNameError, match=r"'agent2'[\s\S]*did you mean 'agent0'|'agent2'[\s\S]*'agent1'"):
        runner.reset(mask={"agent2": [True, False, False]})
    with pytest.raises(RunnerError, match=r"agent 'agent0'[\s\S]*bools of shape \(3,\)"):
        runner.reset(mask={"agent0": [True, False]})
    runner.stop()

    class Cannot(Counters):
        reset_agents = MultiAgentEnv.reset_agents

    runner = runner_of(Cannot)
    runner.step()
    with pytest.raises(NotAvailableError, match=r"Cannot\.reset_agents[\s\S]*define it"):
        runner.reset(mask={"agent0": [True, False, False]})
    assert len(runner.sample(num_timesteps=6)) == 3  # all begin again
    runner.stop()
