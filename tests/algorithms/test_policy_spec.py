from __future__ import annotations

import pickle
from collections import OrderedDict
from fnmatch import fnmatchcase

import gymnasium as gym
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epibatch.algorithms.multi_agent import AgentMapping
from epibatch.algorithms.policy_spec import PolicySpec, policies_of
from epibatch.core.errors import ConfigError, UnknownNameError
from epibatch.core.rl_module import DefaultModelConfig, RLModuleSpec

BOX = gym.spaces.Box(-1.0, 1.0, (4,))
ACT = gym.spaces.Discrete(2)


@pytest.mark.parametrize("value", [{"b", "a"}, ["a", "b"], ("a", "b"), {"a": None, "b": {}}, frozenset("ab")])
def test_all_forms_of_ids(value):
    assert list(policies_of(value).items()) == [("a", PolicySpec()), ("b", PolicySpec())]


def test_lists_and_mappings_keep_their_order():
    assert list(policies_of(["b", "a"])) == list(policies_of(OrderedDict(b=None, a=None))) == ["b", "a"]


def test_all_forms_of_one_policy():
    spec = RLModuleSpec(observation_space=BOX)
    found = policies_of(
        {
            "own": PolicySpec(observation_space=BOX, config={"lr": 0.1}),
            "fields": {"observation_space": BOX, "config": {"lr": 0.1}},
            "four": (None, BOX, ACT, {"lr": 0.1}),
            "empty": (None, None, None, None),
            "spec": spec,
            "network": {"model_config": DefaultModelConfig(fcnet_hiddens=[8])},
        }
    )
    assert found["own"] == found["fields"] == PolicySpec(None, BOX, None, {"lr": 0.1})
    assert found["four"] == PolicySpec(None, BOX, ACT, {"lr": 0.1})
    assert found["empty"] == PolicySpec()
    assert found["spec"].rl_module_spec is spec
    assert found["network"].model_config["fcnet_hiddens"] == [8]


def test_what_is_given():
    assert PolicySpec().given() == {}
    assert PolicySpec(action_space=ACT, config={"lr": 1}).given() == {"action_space": ACT, "config": {"lr": 1}}
    assert repr(PolicySpec(config={"lr": 1})) == "PolicySpec(config={'lr': 1})"


@pytest.mark.parametrize(
    ("value", "messages"),
    [
        ("red", ["found 'red'"]),
        ([], [r"found \[\]"]),
        (3, ["found 3"]),
        ([1, ""], ["found 1", "found ''"]),
        (["a", "a"], ["a is given twice"]),
        ({"a": {"obs_space": BOX}}, ["a: unknown setting 'obs_space'; did you mean 'observation_space'"]),
        ({"a": 3, "b": [1]}, ["a: expected None", r"b: .*found \[1\]"]),
        ({"a": {"observation_space": 4}}, [r"PolicySpec\.observation_space\n  expected: a gymnasium Space"]),
        ({"a": {"action_space": "x"}}, [r"PolicySpec\.action_space"]),
        ({"a": {"config": 3}}, [r"PolicySpec\.config\n  expected: a mapping"]),
        ({"a": {"model_config": [3]}}, [r"PolicySpec\.model_config"]),
        ({"a": {"rl_module_spec": 3}}, [r"PolicySpec\.rl_module_spec\n  expected: an RLModuleSpec"]),
        ({"a": (gym.Env, BOX, ACT, {})}, [r"policy_class\n.*found:    Env, a class of RLlib's old stack"]),
    ],
)
def test_what_is_refused(value, messages):
    with pytest.raises(ConfigError) as caught:
        policies_of(value)
    for message in messages:
        caught.match("(?s)" + message)


# --------------------------------------------------------------------------------------- agent mapping


@pytest.mark.parametrize(
    ("table", "agents", "modules"),
    [
        ({"a": "x", "b": "y"}, ["b", "a", "b"], ["y", "x", "y"]),
        ({"red_1": "captain", "red_*": "red", "*": "rest"}, ["red_2", "red_1", "blue"], ["red", "captain", "rest"]),
        ({"red_?": "one", "red_*": "more"}, ["red_1", "red_12"], ["one", "more"]),
        ({"[ab]*": "x", "*": "y"}, ["a1", "c1"], ["x", "y"]),
        ({"a[0]": "x", "*": "y"}, ["a[0]", "a0", "a1"], ["x", "x", "y"]),
        ({0: "even", "1": "odd", "*": "rest"}, [0, 1, "0", 2], ["even", "odd", "even", "rest"]),
        ({"(0, *": "x", "*": "y"}, [(0, 1), (1, 1)], ["x", "y"]),
        ({"Red": "x", "*": "y"}, ["red"], ["y"]),
    ],
)
def test_the_first_entry_that_fits(table, agents, modules):
    mapping = AgentMapping(table)
    assert [mapping(agent) for agent in agents] == modules
    assert [mapping(agent, "an episode", worker=None) for agent in agents] == modules


@given(
    st.dictionaries(st.text("ab*?", min_size=1, max_size=3), st.sampled_from(["x", "y", "z"]), min_size=1, max_size=4),
    st.lists(st.text("ab", min_size=1, max_size=3), max_size=5),
)
def test_any_table(table, agents):
    try:
        mapping = AgentMapping(table)
    except ConfigError:  # an entry is never reached: an earlier one fits whatever it fits
        entries = list(table)
        assert any(fnmatchcase(late, early) or early == "*" for i, late in enumerate(entries) for early in entries[:i])
        return
    for agent in agents:
        fitting = [module for entry, module in table.items() if fnmatchcase(agent, entry)]
        assert mapping.unmatched([agent]) == ([] if fitting else [agent])
        if fitting:
            assert mapping(agent) == fitting[0]
        else:
            with pytest.raises(UnknownNameError):
                mapping(agent)


def test_an_agent_that_nothing_fits():
    mapping = AgentMapping({"red_*": "red", "blue_*": "blue"})
    with pytest.raises(UnknownNameError, match=r"(?s)agent 'green_1'.*red_\*, blue_\*.*\"\*\": blue"):
        mapping("green_1")
    assert mapping.unmatched(["red_1", "green_1", 3]) == ["green_1", 3]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "an empty table"),
        (["a"], r"list \['a'\]"),
        ({"a": 1}, "the module 1 of 'a', which is no text"),
        ({"a": ""}, "the module '' of 'a'"),
        ({None: "x"}, "the agent None"),
        ({True: "x"}, "the agent True"),
        ({"": "x"}, "the agent ''"),
        ({"*": "x", "a": "y"}, r"'a' after '\*', which fits it already"),
        ({"*": "x", "a*": "y"}, r"'a\*' after '\*'"),
        ({"a*": "x", "ab": "y"}, r"'ab' after 'a\*'"),
        ({0: "x", "0": "y"}, "'0' after '0'"),
    ],
)
def test_wrong_tables(table, message):
    with pytest.raises(ConfigError, match=message):
        AgentMapping(table)


def test_equality_copies_and_repr():
    mapping = AgentMapping({"a*": "x", 7: "y"})
    mapping("a1")
    for other in (pickle.loads(pickle.dumps(mapping)), eval(repr(mapping)), AgentMapping(mapping.table)):
        assert other == mapping
        assert hash(other) == hash(mapping)
        assert other("7") == "y"
    assert mapping.table == {"a*": "x", "7": "y"}
    assert mapping.modules == ["x", "y"]
    assert AgentMapping({"b": "y", "a": "x"}) != AgentMapping({"a": "x", "b": "y"})
    assert mapping != {"a*": "x", "7": "y"}


def test_its_table_cannot_be_changed_from_outside():
    given_table = {"a": "x"}
    mapping = AgentMapping(given_table)
    given_table["b"] = mapping.table["b"] = "y"
    assert mapping.table == {"a": "x"}
