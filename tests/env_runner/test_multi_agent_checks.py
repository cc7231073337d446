"""What is no multi-agent environment is refused when it is made."""

from __future__ import annotations

import functools

import gymnasium as gym
import pytest
from gymnasium.spaces import Discrete, Text

from epibatch.core.errors import ConfigError, SpaceError, UnknownNameError
from epibatch.env_runner.env_checks import agents_of, check_multi_agent_env, name_of, spaces_of
from epibatch.env_runner.multi_agent_env import MultiAgentEnv, make_multi_agent


def made(**attributes):
    """An environment of agents a and b with other attributes."""
    env = MultiAgentEnv()
    agents = ["a", "b"]
    usual = {
        "agents": agents,
        "possible_agents": agents,
        "observation_spaces": dict.fromkeys(agents, Discrete(2)),
        "action_spaces": dict.fromkeys(agents, Discrete(3)),
    }
    for name, value in {**usual, **attributes}.items():
        setattr(env, name, value)
    return env


class Aec:
    """What tells an AEC environment of PettingZoo."""

    possible_agents = ("a",)

    def agent_iter(self):
        return iter(self.possible_agents)

    def last(self):
        return 0, 0.0, False, False, {}

    def observation_space(self, agent):
        return Discrete(2)


class Parallel:
    """What tells a Parallel one."""

    possible_agents = ("a",)

    def observation_space(self, agent):
        return Discrete(2)


class Foreign(gym.Env):
    """Another package's class with the same contract."""

    def get_observation_space(self, agent_id):
        return Discrete(2)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (None, "None: does the function return it?"),
        (3, r"int 3[\s\S]*MultiAgentEnv"),
        (gym.make("CartPole-v1"), r"of one agent[\s\S]*make_multi_agent\('maker'\)"),
        (Aec(), r"AEC[\s\S]*return PettingZooEnv\(env\)"),
        (Parallel(), r"Parallel[\s\S]*return ParallelPettingZooEnv\(env\)"),
        (Foreign(), r"another package's[\s\S]*epibatch.env_runner.multi_agent_env import MultiAgentEnv"),
        (
            made(agents=[], possible_agents=[], observation_spaces=None),
            r"all agents there can ever be[\s\S]*possible_agents =",
        ),
        (made(possible_agents="ab"), r"possible_agents\n.*list of the agents' names[\s\S]*'ab'"),
        (made(possible_agents=["a", "a"]), "each once"),
        (made(possible_agents=["a", []]), "each once"),
        (made(agents=["a", "__all__"]), "none of"),
        (made(action_spaces={"a": Discrete(3), "b": 3}), r"agent 'b'[\s\S]*as action space[\s\S]*int 3"),
    ],
)
def test_what_was_made_is_named_with_what_to_do(env, message):
    with pytest.raises(ConfigError, match=message) as caught:
        check_multi_agent_env(env, "maker")
    assert "made by maker" in str(caught.value)


def test_an_agent_without_space_is_named():
    with pytest.raises(UnknownNameError, match="a space for agent 'b'"):
        check_multi_agent_env(made(observation_spaces={"a": Discrete(2)}), "maker")


def test_observations_that_are_no_arrays_are_refused():
    spaces = {"a": Discrete(2), "b": gym.spaces.Dict(word=Text(3))}
    with pytest.raises(SpaceError, match=r"agent 'b'\['word'\]"):
        check_multi_agent_env(made(observation_spaces=spaces), "maker")


@pytest.mark.parametrize(
    ("attributes", "agents"),
    [
        ({}, ["a", "b"]),
        ({"agents": []}, ["a", "b"]),
        ({"possible_agents": []}, ["a", "b"]),
        ({"agents": (), "possible_agents": ()}, ["a", "b"]),
        ({"possible_agents": ["b"], "agents": ["a"]}, ["b", "a"]),
        (
            {"possible_agents": range(2), "agents": [], "observation_spaces": None, "observation_space": Discrete(1)},
            [0, 1],
        ),
    ],
)
def test_agents_may_be_named_in_one_place_alone(attributes, agents):
    env = made(**attributes)
    assert agents_of(env) == agents
    if "observation_spaces" not in attributes:
        assert check_multi_agent_env(env, "maker") is env
        assert spaces_of(env) == ({a: Discrete(2) for a in agents}, {a: Discrete(3) for a in agents})


def test_wrappers_and_makers():
    env = gym.Wrapper(made())
    assert check_multi_agent_env(env, "maker") is env and name_of(env) == "MultiAgentEnv"
    for maker, name in ((functools.partial(made, agents=[1]), "made"), (make_multi_agent("CartPole-v1"), "MultiEnv")):
        with pytest.raises(ConfigError, match=f"made by {name}"):
            check_multi_agent_env(None, maker)
