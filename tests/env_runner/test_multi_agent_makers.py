"""Multi-agent environments from what a config can name."""

from __future__ import annotations

import sys

import gymnasium as gym
import pytest
from gymnasium.spaces import Discrete

from epibatch.core.errors import ConfigError, EnvironmentContractError, UnknownNameError
from epibatch.core.registry import register_env
from epibatch.env_runner.make_env import make_vector_multi_agent_env
from epibatch.env_runner.multi_agent_env import MultiAgentEnv


class Pair(MultiAgentEnv):
    """Two agents that observe the length they were made with."""

    def __init__(self, length=1):
        super().__init__()
        self.agents = self.possible_agents = ["left", "right"]
        self.observation_space, self.action_space = Discrete(100), Discrete(2)
        self.length = length

    def reset(self, *, seed=None, options=None):
        return dict.fromkeys(self.agents, self.length), {}

    def step(self, action_dict):
        return dict.fromkeys(self.agents, self.length), {}, {"__all__": False}, {}, {}


def from_dict(env_config):
    return Pair(**env_config)


@pytest.fixture
def named(tmp_path, monkeypatch):
    (tmp_path / "pairs_of_agents.py").write_text(
        "import gymnasium as gym\n"
        "from epibatch.env_runner.multi_agent_env import MultiAgentEnv\n"
        "class Own(MultiAgentEnv):\n"
        "    def __init__(self, length=1):\n"
        "        super().__init__()\n"
        "        self.agents = self.possible_agents = ['left']\n"
        "        self.observation_space = self.action_space = gym.spaces.Discrete(100)\n"
        "        self.length = length\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        return {'left': self.length}, {}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    register_env("pair_by_name", from_dict)
    gym.register("Pair-v0", entry_point=Pair)
    yield {"class": Pair, "function": from_dict, "name": "pair_by_name", "id": "Pair-v0", "path": "pairs_of_agents:Own"}
    del gym.registry["Pair-v0"]
    sys.modules.pop("pairs_of_agents", None)


@pytest.mark.parametrize("kind", ["class", "function", "name", "id", "path"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_environments_of_every_kind(named, kind, mode):
    envs = make_vector_multi_agent_env(named[kind], 2, mode, {"length": 7})
    assert [own["left"] for own in envs.reset(seed=0)[0]] == [7, 7]
    envs.close()


def test_wrappers_are_functions_of_one_environment():
    class Doubled(gym.Wrapper):
        def reset(self, **keywords):
            observations, infos = self.env.reset(**keywords)
            return {agent: 2 * row for agent, row in observations.items()}, infos

    envs = make_vector_multi_agent_env(Pair, 2, env_config={"length": 3}, wrappers=[Doubled, Doubled])
    assert envs.reset()[0] == [{"left": 12, "right": 12}] * 2
    with pytest.raises(ConfigError, match=r"made by <lambda>[\s\S]*None"):
        make_vector_multi_agent_env(Pair, 1, wrappers=[lambda env: None])
    limited = make_vector_multi_agent_env(Pair, 1, wrappers=[{"wrapper": "TimeLimit", "max_episode_steps": 1}])
    limited.reset()
    with pytest.raises(EnvironmentContractError, match=r"environment 'Pair', number 0[\s\S]*TimeLimit know one agent"):
        limited.step([{}])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((None, 1), ConfigError, "make_multi_agent"),
        ((Pair, 1, "vector_entry_point"), ConfigError, "let env make one environment"),
        ((Pair, 1, "parallel"), ConfigError, "one of"),
        ((Pair, 1, "sync", {"lenght": 2}), ConfigError, "did you mean 'length'"),
        (("CartPol-v1", 1), UnknownNameError, "did you mean 'CartPole-v1'"),
        (("CartPole-v1", 1), ConfigError, r"make_multi_agent\('CartPole-v1'\)"),
        ((3, 1), ConfigError, "int: 3"),
        ((lambda: 3, 1), ConfigError, "int 3"),
    ],
)
def test_what_is_no_such_environment(arguments, error, message):
    with pytest.raises(error, match=message):
        make_vector_multi_agent_env(*arguments)
