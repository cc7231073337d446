from __future__ import annotations

import pickle
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epibatch.algorithms.multi_agent import AgentMapping
from epibatch.core.errors import ConfigError, UnknownNameError


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
