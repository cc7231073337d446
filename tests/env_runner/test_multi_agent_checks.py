"""Checks of environments of several agents: agents, spaces, and what each call returns."""

from __future__ import annotations

import functools

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, Text

from epibatch.core.errors import ConfigError, EnvironmentContractError, SpaceError, UnknownNameError
from epibatch.env_runner.env_checks import MultiAgentCalls, agents_of, check_multi_agent_env, name_of, spaces_of
from epibatch.env_runner.multi_agent_env import MultiAgentEnv, make_multi_agent

SPACE = Discrete(3)
GOOD = ({"a": 0}, {"a": 1.0}, {"__all__": False}, {}, {})


class Told(MultiAgentEnv):
    """Agents a, b and c; returns what it is told, one thing after the other, an error by raising it."""

    def __init__(self, *returned, reset=({"a": 0}, {}), space=SPACE):
        super().__init__()
        self.possible_agents = ["a", "b", "c"]
        self.observation_space, self.action_space = space, Discrete(2)
        self.returned, self.after_reset = list(returned), reset

    def reset(self, *, seed=None, options=None):
        return self.after_reset

    def step(self, action_dict):
        result = self.returned.pop(0)
        if isinstance(result, Exception):
            raise result
        return result


def stepped(*returned, **settings):
    """The calls of such an environment after its reset."""
    calls = MultiAgentCalls(Told(*returned, **settings))
    calls.reset()
    return calls


def changed(**values):
    """A good step with other values."""
    names = ("observations", "rewards", "terminateds", "truncateds", "infos")
    return tuple(values.get(name, good) for name, good in zip(names, GOOD))


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"a": 0}, r"Told\.reset\(\)\n.*two values: observations, infos\n.*dict"),
        (None, r"two values[\s\S]*None"),
        (({"a": 0},), r"two values[\s\S]*1 values"),
        ((np.zeros(3), {}), r"observations as a dict by agent[\s\S]*float64 array of shape \(3,\)[\s\S]*agent: obs"),
        (([0, 0, 0], {}), r"observations as a dict by agent\n.*list"),
        (({"a": 0}, None), r"infos as a dict by agent\n.*None[\s\S]*\{\} if there is nothing to tell"),
        (({"d": 0}, {}), r"observations\['d'\]\n.*possible_agents[\s\S]*Known: a, b, c"),
        (({"a": 0}, {"a": "text"}), r"infos\['a'\]\n.*an info dict\n.*'text'"),
        (({"a": 0}, {"__all__": {}}), r"infos\['__all__'\]\n.*possible_agents"),
    ],
)
def test_mistakes_of_the_reset(result, message):
    with pytest.raises(EnvironmentContractError, match=message):
        stepped(reset=result)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (GOOD[:4], r"Told\.step\(\)\n.*five values: observations, rewards, terminateds, truncateds, infos\n.*4 values"),
        ([*GOOD], r"five values[\s\S]*found: +list"),
        (changed(terminateds={"a": False}), r"the key \"__all__\" in terminateds\n.*keys \['a'\]"),
        (changed(terminateds={}), r"the key \"__all__\" in terminateds"),
        (changed(terminateds=False), r"terminateds as a dict by agent\n.*False[\s\S]*\"__all__\": False"),
        (changed(truncateds=True), r"truncateds as a dict by agent\n.*True[\s\S]*TimeLimit know one agent"),
        (changed(terminateds={"__all__": 0}), r"terminateds\['__all__'\]\n.*True or False\n.*0"),
        (changed(truncateds={"a": None}), r"truncateds\['a'\]\n.*True or False\n.*None"),
        (changed(truncateds={"d": True}), r"truncateds\['d'\]\n.*possible_agents"),
        (changed(rewards=1.0), r"rewards as a dict by agent\n.*1\.0"),
        (changed(rewards={"d": 1.0}), r"rewards\['d'\]\n.*possible_agents"),
        (changed(rewards={"__all__": 1.0}), r"rewards\['__all__'\]\n.*possible_agents"),
        (changed(rewards={"a": None}), r"rewards\['a'\]\n.*a number as reward\n.*None"),
        (changed(rewards={"a": np.zeros(2)}), r"rewards\['a'\]\n.*a number as reward"),
        (changed(rewards={"b": float("nan")}), r"rewards\['b'\]\n.*a finite reward"),
        (changed(rewards={"a": float("inf")}), r"rewards\['a'\]\n.*a finite reward"),
        (changed(observations={"A": 0}), r"observations\['A'\]\n.*possible_agents[\s\S]*str 'A'"),
        (changed(observations={1: 0}), r"observations\[1\]\n.*possible_agents[\s\S]*int 1"),
        (changed(observations=[0]), r"observations as a dict by agent\n.*list"),
        (changed(infos={"b": []}), r"infos\['b'\]\n.*an info dict"),
        (changed(infos=[]), "infos as a dict by agent"),
    ],
)
def test_mistakes_of_a_step(result, message):
    calls = stepped(result, GOOD, GOOD, result)
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
    with pytest.raises(SpaceError, match=r"Told\.reset\(\), observations\['b'\]"):
        stepped(reset=({"b": observation}, {}), space=space)
    with pytest.raises(SpaceError, match=r"Told\.step\(\), observations\['c'\]"):
        stepped(changed(observations={"c": observation}), reset=({}, {}), space=space).step({})


def test_a_time_limit_for_one_agent_is_told_apart():
    calls = MultiAgentCalls(gym.wrappers.TimeLimit(Told(GOOD), max_episode_steps=1))
    calls.reset()
    with pytest.raises(EnvironmentContractError, match=r"truncateds as a dict[\s\S]*count steps in the environment"):
        calls.step({"a": 0})


def test_what_may_be_left_out_is_filled_in():
    calls = stepped(
        changed(rewards={"b": 2}, infos={"__common__": {"x": 1}}), changed(truncateds={"__all__": np.False_})
    )
    first, second = calls.step({"a": 0}), calls.step({"a": 1})
    assert first == ({"a": 0}, {"b": 2}, {"__all__": False}, {"__all__": False}, {"__common__": {"x": 1}}, False)
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
        ("ab", [("ab", flags("a", "b"))], [True]),
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
    calls = stepped(*returned, *returned, reset=(dict.fromkeys(reset, 0), {}))
    for _ in range(2):
        assert [calls.step({}).ended for _ in steps] == ends
        if ends[-1]:
            with pytest.raises(EnvironmentContractError, match=r"one that has ended[\s\S]*reset it first"):
                calls.step({})
        calls.reset()


def test_an_environment_must_be_reset_first_and_again_after_an_error():
    calls = MultiAgentCalls(Told(ZeroDivisionError("lost"), GOOD))
    with pytest.raises(EnvironmentContractError, match="reset it first"):
        calls.step({})
    calls.reset()
    with pytest.raises(ZeroDivisionError, match="lost"):
        calls.step({})
    with pytest.raises(EnvironmentContractError, match="reset it first"):
        calls.step({})
    calls.reset()
    assert calls.step({}).observations == {"a": 0}


@pytest.mark.parametrize("copy", [True, False])
def test_what_the_environment_writes_into_again_stays_as_it_was(copy):
    array, flags_of_all = np.zeros(2), {"__all__": False}
    given = {"a": array}, {"a": np.array(0.0)}, flags_of_all, {}, {"a": {"array": array}}
    calls = MultiAgentCalls(Told(given, space=Box(-9, 9, (2,), np.float64), reset=({}, {})), copy=copy)
    calls.reset()
    step = calls.step({})
    array[:] = given[1]["a"][()] = 1
    for each in given:
        each["b"] = each.get("a", True)
    assert [list(each) for each in step[:5]] == [["a"], ["a"], ["__all__"], ["__all__"], ["a"]]
    later = float(not copy)
    assert step.observations["a"].tolist() == [later, later]
    assert step.infos["a"]["array"].tolist() == [0, 0] and step.rewards["a"] == 0


def test_nested_observations_stay_as_they_were():
    nested = {"x": np.zeros(2), "y": (np.zeros(1), 3)}
    space = gym.spaces.Dict(x=Box(-9, 9, (2,)), y=gym.spaces.Tuple([Box(-9, 9, (1,)), Discrete(9)]))
    seen, _ = MultiAgentCalls(Told(space=space, reset=({"a": nested}, {}))).reset()
    nested["x"][:] = nested["y"][0][:] = 1
    assert seen["a"]["x"].tolist() == [0, 0] and seen["a"]["y"][0].tolist() == [0] and seen["a"]["y"][1] == 3


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
