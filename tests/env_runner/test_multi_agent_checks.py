"""Checks of environments of several agents: agents, spaces, and what each call returns."""

from __future__ import annotations

import functools
import warnings
from enum import Enum

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from epibatch.core.errors import ConfigError, EnvironmentContractError, SpaceError, UnknownNameError
from epibatch.env_runner import MultiAgentEnv, VectorMultiAgentEnv, make_multi_agent
from epibatch.env_runner.envs.env_calls import MultiAgentCalls
from fixture_envs import ScriptedMultiAgentEnv

GOOD = ({"a": 0}, {"a": 1.0}, {"__all__": False}, {}, {})
NAMES = ("observations", "rewards", "terminateds", "truncateds", "infos")


def after_reset(*steps, copy=True, **settings):
    """The calls of an environment that returns these steps, after its reset."""
    calls = MultiAgentCalls(ScriptedMultiAgentEnv(*steps, **settings), copy=copy)
    calls.reset()
    return calls


def changed(**values):
    """A good step with other values."""
    return tuple(values.get(name, good) for name, good in zip(NAMES, GOOD))


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, r"Env\.reset\(\)\n.*two values: observations, infos\n.*None"),
        (({"a": 0},), r"two values[\s\S]*1 values"),
        (({"a": 0}, None), r"infos as a dict by agent\n.*None[\s\S]*\{\} if there is nothing to tell"),
        (({"d": 0}, {}), r"observations\['d'\]\n.*possible_agents[\s\S]*Known: a, b, c"),
        (({"a": 0}, {"a": "text"}), r"infos\['a'\]\n.*an info dict\n.*'text'"),
        (({"a": 0}, {"__all__": {}}), r"infos\['__all__'\]\n.*possible_agents"),
    ],
)
def test_mistakes_of_the_reset(result, message):
    env = ScriptedMultiAgentEnv()
    env.first = result
    with pytest.raises(EnvironmentContractError, match=message):
        MultiAgentCalls(env).reset()


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (GOOD[:3], r"Env\.step\(\)\n.*five values: observations, rewards, terminateds, truncateds, infos\n.*3 values"),
        ([*GOOD], r"five values[\s\S]*found: +list"),
        (changed(terminateds={"a": False}), r"the key \"__all__\" in terminateds\n.*keys \['a'\]"),
        (changed(terminateds=None), r"terminateds as a dict by agent\n.*None[\s\S]*\"__all__\": False"),
        (changed(truncateds="False"), r"truncateds as a dict by agent\n.*'False'[\s\S]*or True or False for all"),
        (changed(terminateds={"__all__": 0}), r"terminateds\['__all__'\]\n.*True or False\n.*0"),
        (changed(truncateds={"a": None}), r"truncateds\['a'\]\n.*True or False\n.*None"),
        (changed(truncateds={"d": True}), r"truncateds\['d'\]\n.*possible_agents"),
        (changed(rewards=[1.0]), r"rewards as a dict by agent\n.*list"),
        (changed(rewards=np.ones(2)), r"a number as reward\n.*float64 array of shape \(2,\)"),
        (changed(rewards={"__all__": 1.0}), r"rewards\['__all__'\]\n.*possible_agents"),
        (changed(rewards={"a": None}), r"rewards\['a'\]\n.*a number as reward\n.*None"),
        (changed(rewards={"a": np.zeros(2)}), r"rewards\['a'\]\n.*a number as reward"),
        (changed(rewards={"b": float("nan")}), r"rewards\['b'\]\n.*a finite reward"),
        (changed(rewards={"a": float("inf")}), r"rewards\['a'\]\n.*a finite reward"),
        (changed(observations={1: 0}), r"observations\[1\]\n.*possible_agents[\s\S]*int 1"),
        (changed(infos={"b": []}), r"infos\['b'\]\n.*an info dict"),
        (changed(infos=[]), "infos as a dict by agent"),
    ],
)
def test_mistakes_of_a_step(result, message):
    calls = after_reset(result, GOOD, GOOD, result)
    for good_ones_before in (0, 2):
        for _ in range(good_ones_before):
            calls.step({"a": 0})
        with pytest.raises(EnvironmentContractError, match=message):
            calls.step({"a": 0})
        calls.reset()


@pytest.mark.parametrize(
    ("observation", "space"), [(1.5, Discrete(3)), ([[0.0]], Box(0, 1, (2,))), (None, Discrete(3)), ({}, Discrete(3))]
)
def test_observations_that_are_not_of_the_space(observation, space):
    with pytest.raises(SpaceError, match=r"Env\.reset\(\), observations\['b'\]"):
        after_reset(reset=({"b": observation}, {}), space=space)
    with pytest.raises(SpaceError, match=r"Env\.step\(\), observations\['c'\]"):
        after_reset(changed(observations={"c": observation}), reset=({}, {}), space=space).step({})


def test_one_observation_is_for_environments_that_declare_one_space():
    env = ScriptedMultiAgentEnv(reset=(0, {}))
    env.observation_space, env.observation_spaces = None, dict.fromkeys("abc", Discrete(9))
    with pytest.raises(
        EnvironmentContractError, match=r"observations as a dict by agent\n.*0\n[\s\S]*set observation_space"
    ):
        MultiAgentCalls(env).reset()


def test_what_may_be_left_out_is_filled_in():
    calls = after_reset(
        changed(rewards={"b": 2}, infos={"__common__": {"x": 1}}), changed(truncateds={"__all__": np.False_})
    )
    first, second = calls.step({"a": 0}), calls.step({"a": 1})
    assert first[:6] == ({"a": 0}, {"b": 2}, {"__all__": False}, {"__all__": False}, {"__common__": {"x": 1}}, False)
    assert second.truncateds == {"__all__": False}


def flags(terminated="", truncated="", **all_of_them):
    """Flags of a step; agents by their letters."""
    return {
        "terminateds": {"__all__": all_of_them.get("terminated_all", False), **dict.fromkeys(terminated, True)},
        "truncateds": {"__all__": all_of_them.get("truncated_all", False), **dict.fromkeys(truncated, True)},
    }


@pytest.mark.parametrize(
    ("reset", "steps", "ends"),
    [
        ("a", [("a", flags(terminated_all=True))], [True]),
        ("a", [("a", flags(truncated_all=True))], [True]),
        ("ab", [("ab", flags("a")), ("b", flags("b"))], [False, True]),
        ("ab", [("", flags("a", "b"))], [True]),
        ("ab", [("abc", flags("a", "b")), ("c", flags("", "c"))], [False, True]),  # one is born as the others end
        ("ab", [("ab", flags("a")), ("a", flags("b")), ("", flags("a"))], [False, False, True]),  # one returns
        ("ab", [("ab", flags("a")), ("b", flags("a")), ("b", flags("ab"))], [False, False, True]),  # told twice
        ("", [("", flags()), ("", flags("a")), ("a", flags()), ("a", flags("a"))], [False, False, False, True]),
        ("a", [("a", flags("b")), ("a", flags("", "c"))], [False, False]),  # nobody knows them
    ],
)
def test_an_environment_ends_at_once_or_with_its_last_agent(reset, steps, ends):
    returned = [changed(observations=dict.fromkeys(agents, 1), rewards={}, **flagged) for agents, flagged in steps]
    calls = after_reset(*returned, *returned, reset=(dict.fromkeys(reset, 0), {}))
    for _ in range(2):
        assert [calls.step({}).ended for _ in steps] == ends
        if ends[-1]:
            with pytest.raises(EnvironmentContractError, match=r"one that has ended[\s\S]*reset it first"):
                calls.step({})
        calls.reset()


def test_an_environment_must_be_reset_first_and_again_after_an_error():
    calls = MultiAgentCalls(ScriptedMultiAgentEnv(ZeroDivisionError("lost"), GOOD))
    for expected in (EnvironmentContractError, ZeroDivisionError, EnvironmentContractError):
        if expected is ZeroDivisionError:
            calls.reset()
        with pytest.raises(expected, match=r"reset it first|lost"):
            calls.step({})
    calls.reset()
    assert calls.step({}).observations == {"a": 0}


@pytest.mark.parametrize("copy", [True, False])
def test_what_the_environment_writes_into_again_stays_as_it_was(copy):
    nested, flags_of_all = {"x": np.zeros(2), "y": (np.zeros(1), 3)}, {"__all__": False}
    space = gym.spaces.Dict(x=Box(-9, 9, (2,)), y=gym.spaces.Tuple([Box(-9, 9, (1,)), Discrete(9)]))
    given = {"a": nested}, {"a": np.array(0.0)}, flags_of_all, {}, {"a": {"array": nested["x"]}}
    step = after_reset(given, space=space, reset=({}, {}), copy=copy).step({})
    nested["x"][:] = nested["y"][0][:] = given[1]["a"][()] = 1
    for each in given:
        each["b"] = each.get("a", True)
    assert [list(each) for each in step[:5]] == [["a"], ["a"], ["__all__"], ["__all__"], ["a"]]
    seen, later = step.observations["a"], float(not copy)
    assert (seen["x"].tolist(), seen["y"][0].tolist(), seen["y"][1]) == ([later, later], [later], 3)
    assert step.infos["a"]["array"].tolist() == [0, 0] and step.rewards["a"] == 0


# ------------------------------------------------------------------------------------ what makers return


class Side(Enum):
    LEFT = 1


class Word(str, Enum):
    LEFT = "left"


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


class Parallel:
    """What tells a parallel environment of PettingZoo."""

    possible_agents = ("a",)

    def observation_space(self, agent):
        return Discrete(2)


class Aec(Parallel):
    """What tells an AEC environment of PettingZoo."""

    def agent_iter(self):
        return iter(self.possible_agents)

    def last(self):
        return 0, 0.0, False, False, {}


class Foreign(gym.Env):
    """Another package's class with the same contract."""

    def get_observation_space(self, agent_id):
        return Discrete(2)


NAMELESS = made(agents=[], possible_agents=[], observation_spaces=None)
WORDS = gym.spaces.Dict(word=gym.spaces.OneOf([Discrete(3)]))


@pytest.mark.parametrize(
    ("env", "error", "message"),
    [
        (None, ConfigError, "None: does the function return it?"),
        (3, ConfigError, r"int 3[\s\S]*MultiAgentEnv"),
        (gym.make("CartPole-v1"), ConfigError, r"of one agent[\s\S]*make_multi_agent\('maker'\)"),
        (Aec(), ConfigError, r"AEC[\s\S]*return PettingZooEnv\(env\)"),
        (Parallel(), ConfigError, r"Parallel[\s\S]*return ParallelPettingZooEnv\(env\)"),
        (Foreign(), ConfigError, r"another package's[\s\S]*epibatch.env_runner.multi_agent_env import MultiAgentEnv"),
        (NAMELESS, ConfigError, r"all agents there can ever be[\s\S]*possible_agents ="),
        (made(possible_agents="ab"), ConfigError, r"possible_agents\n.*list of the agents' names[\s\S]*'ab'"),
        (made(possible_agents=["a", "a"]), ConfigError, "each once"),
        (made(possible_agents=["a", []]), ConfigError, "each once"),
        (made(agents=[0, "0"]), ConfigError, r"differ as text[\s\S]*0 and '0'"),
        (made(agents=["a", "__all__"]), ConfigError, "none of"),
        (made(action_spaces={"a": Discrete(3), "b": 3}), ConfigError, r"agent 'b'[\s\S]*as action space[\s\S]*int 3"),
        (made(observation_spaces={"a": Discrete(2)}), UnknownNameError, "a space for agent 'b'"),
        (made(observation_spaces={"a": Discrete(2), "b": WORDS}), SpaceError, r"agent 'b'\['word'\]"),
    ],
)
def test_what_was_made_is_named_with_what_to_do(env, error, message):
    def maker():
        return env

    with pytest.raises(error, match=message) as caught:
        VectorMultiAgentEnv([maker])
    assert error is UnknownNameError or "made by maker" in str(caught.value)


@pytest.mark.parametrize(
    ("agent", "warns"),
    [(Side.LEFT, True), (b"left", True), (("left", b"1"), True), (Word.LEFT, False), (("left", 1), False)],
)
def test_names_that_no_checkpoint_can_store_are_warned_of(agent, warns):
    env = made(agents=[agent, "b"], possible_agents=[agent, "b"], observation_spaces=None, action_spaces=None)
    env.observation_space, env.action_space = Discrete(2), Discrete(3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        VectorMultiAgentEnv([lambda: env])
    assert ["that a checkpoint can store" in str(each.message) for each in caught] == [True] * warns


@pytest.mark.parametrize(
    ("attributes", "agents"),
    [
        ({}, ["a", "b"]),
        ({"agents": []}, ["a", "b"]),
        ({"possible_agents": []}, ["a", "b"]),
        ({"agents": (), "possible_agents": ()}, ["a", "b"]),
        ({"possible_agents": ["b"], "agents": ["a"]}, ["b", "a"]),
        (
            {"possible_agents": range(2), "agents": [], "observation_spaces": None, "observation_space": Discrete(1)}
            | {"action_spaces": None, "action_space": Discrete(3)},
            [0, 1],
        ),
    ],
)
def test_agents_may_be_named_in_one_place_alone(attributes, agents):
    envs = VectorMultiAgentEnv([lambda: gym.Wrapper(made(**attributes))])
    assert envs.possible_agents == agents
    observed = attributes.get("observation_space", Discrete(2))
    assert envs.observation_spaces == dict.fromkeys(agents, observed)
    assert envs.action_spaces == dict.fromkeys(agents, Discrete(3))


def test_makers_are_called_by_their_names():
    for maker, name in (
        (functools.partial(made, agents="text"), "made"),
        (functools.partial(make_multi_agent("CartPole-v1"), {"num_agents": 0}), "num_agents"),
    ):
        with pytest.raises(ConfigError, match=f"(made by )?{name}"):
            VectorMultiAgentEnv([maker])
