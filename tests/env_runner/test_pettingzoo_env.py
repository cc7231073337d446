"""PettingZoo's environments beside PettingZoo's own loops over them."""

from __future__ import annotations

from collections import defaultdict
from functools import partial

import numpy as np
import pettingzoo
import pytest
from fixture_cases import slow
from gymnasium.spaces import Box, Discrete
from pettingzoo.utils import parallel_to_aec

from epibatch.core.errors import ConfigError, EnvironmentContractError
from epibatch.env_runner import ParallelPettingZooEnv, PettingZooEnv, make_vector_multi_agent_env


class Crowd(pettingzoo.ParallelEnv):
    """Agents that are born and that end in every way, with random rewards; all in one array of observations."""

    def __init__(self, length=12, render_mode="ansi"):
        self.metadata = {"name": "crowd", "render_modes": ["ansi"]}
        self.possible_agents = [f"agent_{i}" for i in range(5)]
        self.length, self.render_mode, self.rows = length, render_mode, np.zeros((5, 2))
        self.closed = False

    def observation_space(self, agent):
        return Box(-np.inf, np.inf, (2,), np.float64)

    def action_space(self, agent):
        return Discrete(4)

    def reset(self, seed=None, options=None):
        self.random, self.time = np.random.default_rng(seed), 0
        self.coming = [agent for agent in self.possible_agents if self.random.random() < 0.5]
        self.agents = [agent for agent in self.possible_agents if agent not in self.coming]
        if not self.agents:
            self.agents = [self.coming.pop()]
        return self.look(self.agents), {agent: {"options": options} for agent in self.agents}

    def look(self, agents):
        for agent in agents:
            self.rows[self.possible_agents.index(agent)] = self.time, self.random.random()
        return {agent: self.rows[self.possible_agents.index(agent)] for agent in agents}

    def step(self, actions):
        self.time += 1
        last, born = self.time >= self.length, []
        if self.coming and not last and self.random.random() < 0.3:
            born = [self.coming.pop()]  # parallel_to_aec cannot let an agent end that never acted
        here = [*self.agents, *born]
        rewards = defaultdict(int, {agent: self.random.random() + actions.get(agent, 0) for agent in here})
        terminateds = {agent: bool(self.random.random() < 0.15 and agent not in born) for agent in here}
        truncateds = {agent: bool(last or (self.random.random() < 0.1 and agent not in born)) for agent in here}
        self.agents = [agent for agent in here if not (terminateds[agent] or truncateds[agent])]
        return self.look(here), rewards, terminateds, truncateds, {agent: {"time": self.time} for agent in here}

    def render(self):
        return f"{len(self.agents)} agents"

    def state(self):
        return self.rows

    def close(self):
        self.closed = True


def choose(draw, observation):
    """An action, one of the mask's if there is one."""
    mask = observation.get("action_mask") if isinstance(observation, dict) else None
    return int(draw.integers(3)) if mask is None else int(draw.choice(np.flatnonzero(mask)))


def plain(value):
    """The value with lists in place of arrays, so that == compares all of it."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def turn_by_turn(env, seed):
    """Each agent's observations, rewards, flags and infos, as `agent_iter` and `last` of PettingZoo give them."""
    draw, told = np.random.default_rng(seed), defaultdict(list)
    env.reset(seed=seed)
    for agent in env.agent_iter():
        observation, reward, terminated, truncated, info = env.last()
        told[agent].append(plain((observation, reward, terminated, truncated, info)))
        env.step(None if terminated or truncated else choose(draw, observation))
    return dict(told)


def all_at_once(env, seed):
    """The same of a parallel environment, by its own loop."""
    draw, told = np.random.default_rng(seed), defaultdict(list)
    observations, infos = env.reset(seed=seed)
    for agent in observations:
        told[agent].append(plain((observations[agent], 0, False, False, infos[agent])))
    while env.agents:
        columns = env.step({agent: choose(draw, observations[agent]) for agent in env.agents})
        observations = columns[0]
        for agent in observations:
            told[agent].append(plain(tuple(column[agent] for column in columns)))
    return dict(told)


def adapted(env, seed):
    """The same by the contract of multi-agent environments: whoever observed and has not ended acts."""
    draw, told, over = np.random.default_rng(seed), defaultdict(list), False
    observations, infos = env.reset(seed=seed)
    for agent in observations:
        told[agent].append(plain((observations[agent], 0, False, False, infos[agent])))
    acting = list(observations)
    while not over:
        columns = env.step({agent: choose(draw, observations[agent]) for agent in acting})
        observations, _, terminateds, truncateds, _ = columns
        for agent in observations:
            told[agent].append(plain(tuple(column[agent] for column in columns)))
        acting = [agent for agent in observations if not (terminateds[agent] or truncateds[agent])]
        over = terminateds["__all__"] or truncateds["__all__"]
        assert over == (not env.agents) == (not acting)
        assert set(env.agents) >= set(acting)
    return dict(told)


AEC = {
    "crowd": lambda: parallel_to_aec(Crowd()),
    "tictactoe": partial(pettingzoo.make, "aec", "classic/tictactoe-v3"),
    "connect_four": partial(pettingzoo.make, "aec", "classic/connect_four-v3"),
    "rps": partial(pettingzoo.make, "aec", "classic/rps-v2", max_cycles=4),
}
PARALLEL = {
    "crowd": Crowd,
    "rps": partial(pettingzoo.make, "parallel", "classic/rps-v2", max_cycles=4),
}


@pytest.mark.parametrize("game", AEC)
def test_turn_based_games_as_with_agent_iter(game):
    adapter, own = PettingZooEnv(AEC[game]()), AEC[game]()
    for seed in range(20):
        assert adapted(adapter, seed) == turn_by_turn(own, seed)


@pytest.mark.parametrize("game", PARALLEL)
def test_parallel_games_as_by_themselves(game):
    adapter, own = ParallelPettingZooEnv(PARALLEL[game]()), PARALLEL[game]()
    for seed in range(40):
        assert adapted(adapter, seed) == all_at_once(own, seed)


class Parting(Crowd):
    """Two agents, whose flags of the first step are given; those that end stay in `agents` if told so."""

    def __init__(self, terminated=(True, True), truncated=(False, False), kept=False):
        super().__init__()
        self.possible_agents = self.possible_agents[:2]
        self.flags, self.kept = (terminated, truncated), kept

    def reset(self, seed=None, options=None):
        super().reset(seed)
        self.agents = list(self.possible_agents)
        return self.look(self.agents), None

    def step(self, actions):
        here = self.agents
        flags = [{agent: flag for agent, flag in zip(here, own) if flag is not None} for own in self.flags]
        ended = [agent for agent in here if any(own.get(agent) for own in flags)]
        self.agents = [agent for agent in here if agent not in ended or self.kept]
        return self.look(here), dict.fromkeys(here, 0.0), *flags, {agent: {} for agent in here}


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize(
    ("terminated", "truncated", "of_all"),
    [
        ((True, True), (False, False), (True, False)),
        ((False, False), (True, True), (False, True)),
        ((True, False), (False, True), (False, True)),
        ((True, True), (True, False), (True, False)),
        ((True, None), (None, True), (False, True)),
        ((True, False), (False, False), (False, False)),
        ((False, True), (True, False), (False, True)),
    ],
)
def test_the_flag_of_all_makes_no_truncated_agent_a_terminated_one(terminated, truncated, of_all, kept):
    env = ParallelPettingZooEnv(Parting(terminated, truncated, kept))
    observations, infos = env.reset()
    assert infos == {} and list(observations) == env.possible_agents
    *_, terminateds, truncateds, _ = env.step(dict.fromkeys(observations, 0))
    assert (terminateds.pop("__all__"), truncateds.pop("__all__")) == of_all
    for flags, own in ((terminateds, terminated), (truncateds, truncated)):
        assert flags == {agent: flag for agent, flag in zip(env.possible_agents, own) if flag is not None}


def test_only_the_agents_that_observed_act():
    for env, agents in (
        (PettingZooEnv("classic/tictactoe_v3"), ["player_1"]),
        (ParallelPettingZooEnv(Parting()), ["agent_0", "agent_1"]),
    ):
        env.reset()
        for actions in ({}, {"nobody": 0}, {**dict.fromkeys(agents, 0), "player_2": 1}):
            with pytest.raises(EnvironmentContractError, match=rf"actions of \['{agents[0]}'[\s\S]*have not ended"):
                env.step(actions)


class Quiet(pettingzoo.AECEnv):
    """One agent, which is given no observation when it ends; agents are named by the reset."""

    def __init__(self):
        self.metadata = {}
        self.rewards, self._cumulative_rewards = {"a": 0}, {"a": 0.0}

    def reset(self, seed=None, options=None):
        self.agents, self.agent_selection = ["a"], "a"
        self.terminations, self.truncations, self.infos = {"a": False}, {"a": False}, {"a": {}}

    def observation_space(self, agent):
        return Discrete(2)

    action_space = observation_space

    def observe(self, agent):
        return None if self.terminations[agent] else 1

    def step(self, action):
        if action is None:
            self._was_dead_step(action)
        else:
            self.terminations["a"], self._cumulative_rewards["a"] = True, 2.0


def test_agents_without_names_in_front_and_without_last_observation():
    env = PettingZooEnv(Quiet())
    assert env.possible_agents == ["a"] and env.render_mode is None and env.metadata == {}
    assert env.reset() == ({"a": 1}, {"a": {}})
    assert env.step({"a": 0}) == (
        {},
        {"a": 2.0},
        {"a": True, "__all__": True},
        {"a": False, "__all__": False},
        {"a": {}},
    )


def test_the_environment_its_drawing_and_closing():
    crowd, aec = Crowd(), parallel_to_aec(Crowd())
    parallel, turns = ParallelPettingZooEnv(crowd), PettingZooEnv(aec)
    assert parallel.par_env is crowd and turns.env is aec
    assert parallel.reset(seed=1, options={"x": 1})[1][parallel.agents[0]] == {"options": {"x": 1}}
    for env, inner in ((parallel, crowd), (turns, aec.unwrapped)):
        env.reset(seed=3)
        assert env.render_mode == "ansi" and env.render() == f"{len(inner.agents)} agents"
        assert env.metadata["name"] == "crowd" and env.get_sub_environments is inner
        env.close()
        assert inner.closed
    image = PettingZooEnv("classic/tictactoe_v3", render_mode="rgb_array", screen_height=60)
    image.reset()
    assert image.render().shape == (60, 60, 3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PettingZooEnv(Crowd()), r"PettingZooEnv\n.*an AEC[\s\S]*use ParallelPettingZooEnv\(env\)"),
        (lambda: ParallelPettingZooEnv(Quiet()), r"ParallelPettingZooEnv\n.*a Parallel[\s\S]*use PettingZooEnv\(env\)"),
        (lambda: PettingZooEnv(3), r"an AEC[\s\S]*int 3[\s\S]*or its name"),
        (lambda: PettingZooEnv({}), r"an AEC[\s\S]*None"),
        (lambda: ParallelPettingZooEnv(Crowd(), length=3), r"no keywords[\s\S]*\['length'\]"),
    ],
)
def test_other_environments_and_keywords_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize("mode", ["sync", slow("async")])
def test_games_from_configs_side_by_side(mode):
    for env, config, agents in (
        (PettingZooEnv, {"env": "classic/tictactoe_v3"}, ["player_1"]),
        ("pettingzoo/classic/tictactoe_v3", {}, ["player_1"]),
        ("pettingzoo/classic/rps_v2", {"max_cycles": 2}, ["player_0", "player_1"]),
        (lambda env_config: ParallelPettingZooEnv(Parting()), {}, ["agent_0", "agent_1"]),
    ):
        envs = make_vector_multi_agent_env(env, 2, mode, config)
        observations, _ = envs.reset(seed=4)
        assert [list(own) for own in observations] == [agents] * 2
        assert len(envs.step([dict.fromkeys(agents, 0)] * 2)[0]) == 2
        envs.close()
