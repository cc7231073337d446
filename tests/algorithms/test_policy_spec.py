from __future__ import annotations

from collections import OrderedDict

import gymnasium as gym
import pytest

from epibatch.algorithms.policy_spec import PolicySpec, policies_of
from epibatch.core.errors import ConfigError
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
