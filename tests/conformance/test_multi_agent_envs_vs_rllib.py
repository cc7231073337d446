"""Environments of several agents: what a class written for RLlib returns here, alone and as several of them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pettingzoo
import pytest

from epibatch.env_runner.vector_envs import VectorMultiAgentEnv
from oracle.libraries import BOTH, EPIBATCH, RLLIB
from oracle.probes import plain

AGENTS = ["a", "b", "c"]


def guild(library: Any) -> Any:
    """Agents that come and go at random; it is reset when `__all__` says so."""

    class Guild(library.MultiAgentEnv):
        def __init__(self) -> None:
            super().__init__()
            self.agents = self.possible_agents = list(AGENTS)
            self.observation_spaces = {agent: gym.spaces.Box(-9, 9, (2,), np.float64) for agent in AGENTS}
            self.action_spaces = dict.fromkeys(AGENTS, gym.spaces.Discrete(4))
            self.render_mode = None

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            super().reset(seed=seed, options=options)
            return self.look(0.7), {"a": {"seed": seed}}

        def step(self, action_dict: Any) -> Any:
            observations = self.look(0.6)
            rewards = {agent: self.np_random.random() + action for agent, action in action_dict.items()}
            over = [bool(self.np_random.random() < 0.1) for _ in range(2)]
            flags = [{**dict.fromkeys(observations, False), "__all__": each} for each in over]
            return observations, rewards, *flags, {agent: {"x": 1} for agent in observations}

        def look(self, share: float) -> Any:
            return {agent: self.np_random.random(2) for agent in AGENTS if self.np_random.random() < share}

    return Guild()


def steps_of(library: Any, seed: int) -> list[Any]:
    """Everything that two of them return together; for steps that reset only what both libraries define alike."""
    made = [lambda: guild(library)] * 2
    if library is RLLIB:
        envs = library.module("env.vector.sync_vector_multi_agent_env").SyncVectorMultiAgentEnv(made)
    else:
        envs = VectorMultiAgentEnv(made)
    observations, infos = envs.reset(seed=seed)
    told = [plain((list(observations), list(infos)))]
    draw, over = np.random.default_rng(seed), [False, False]
    for _ in range(30):
        result = envs.step([{agent: int(draw.integers(4)) for agent in AGENTS} for _ in range(2)])
        for number in range(2):
            own = plain(tuple(column[number] for column in result))
            told.append((own[0], own[4]) if over[number] else own)
            over[number] = own[2]["__all__"] or own[3]["__all__"]
    return told


@pytest.mark.parametrize("seed", range(20))
def test_several_of_a_class(seed: int) -> None:
    theirs, ours = (steps_of(library, seed) for library in BOTH)
    assert ours == theirs


def test_agents_side_by_side() -> None:
    told = []
    for library in BOTH:
        env = library.make_multi_agent("CartPole-v1")({"num_agents": 1})
        start, _ = env.reset(seed=3)
        env.envs[0].unwrapped.state = np.array([0.01, 0.02, 0.03, 0.04])  # the seeds of agents are a listed difference
        rows = [plain(env.step({0: 1}))]
        while not rows[-1][2]["__all__"]:
            rows.append(plain(env.step({0: 1})))
        told.append((list(start), env.possible_agents, list(env.action_spaces), [row[:3] for row in rows]))
    theirs, ours = told
    assert ours == theirs


@pytest.mark.parametrize("name", ["classic/tictactoe-v3", "classic/connect_four-v3", "classic/rps-v2"])
def test_turn_based_games(name: str) -> None:
    theirs, ours = ([game(library.PettingZooEnv, name, seed) for seed in range(10)] for library in (RLLIB, EPIBATCH))
    assert ours == theirs


def game(adapter: Any, name: str, seed: int) -> list[Any]:
    """What a game of random moves returns."""
    draw = np.random.default_rng(seed)
    env = adapter(pettingzoo.make("aec", name))
    observations, _ = env.reset(seed=seed)
    told, over = [plain(observations)], False
    while not over:
        (player,) = observations
        seen = observations[player]
        moves = np.flatnonzero(seen["action_mask"]) if isinstance(seen, dict) else np.arange(3)
        step = env.step({player: int(draw.choice(moves))})
        told.append(plain(step))
        observations, over = step[0], step[2]["__all__"] or step[3]["__all__"]
    return told


def test_a_parallel_game() -> None:
    told = []
    for library in BOTH:
        env = library.ParallelPettingZooEnv(pettingzoo.make("parallel", "sisl/pursuit-v5", n_pursuers=2, max_cycles=3))
        rows = [plain(env.reset(seed=5))]
        rows += [plain(env.step(dict.fromkeys(env.possible_agents, t))) for t in range(3)]
        told.append([[dict(sorted(column.items())) for column in row] for row in rows])
    assert told[0] == told[1] and told[0][-1][3]["__all__"]
