"""Configs of several agents: modules, their settings, and the mapping from agents to modules."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from fnmatch import fnmatchcase

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epibatch.algorithms import AgentMapping, PolicySpec, PPOConfig
from epibatch.core.errors import ConfigError, UnknownNameError
from epibatch.core.rl_module import DefaultModelConfig, MultiRLModuleSpec, RLModuleSpec

BOX = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
ACT = gym.spaces.Discrete(2)

TEXT = """
algorithm: ppo
environment: {env: my_game}
multi_agent:
  policies:
    red: {config: {lr: 0.001}, model_config: {fcnet_hiddens: [8]}}
    blue:
  policy_mapping_fn: {"red_*": red, "*": blue}
  policies_to_train: [red]
  count_steps_by: agent_steps
"""


def agents(*names, space=BOX):
    both = (gym.spaces.Dict(dict.fromkeys(names, space)), gym.spaces.Dict(dict.fromkeys(names, ACT)))
    return {"__env__": both, "__env_single__": both}


def by_methods():
    return (
        PPOConfig()
        .environment("my_game")
        .multi_agent(
            policies={"red": {"config": {"lr": 0.001}, "model_config": {"fcnet_hiddens": [8]}}, "blue": None},
            policy_mapping_fn=AgentMapping({"red_*": "red", "*": "blue"}),
            policies_to_train={"red"},
            count_steps_by="agent_steps",
        )
    )


# ------------------------------------------------------------------------------- what a config means


def test_yaml_and_methods_agree():
    config = PPOConfig.from_yaml(TEXT)
    assert config.to_dict() == by_methods().to_dict()
    assert PPOConfig.from_yaml(config.to_yaml()).to_dict() == config.to_dict()
    assert config.is_multi_agent
    assert config.policies["red"] == PolicySpec(config={"lr": 0.001}, model_config={"fcnet_hiddens": [8]})
    assert config.policy_mapping_fn == AgentMapping({"red_*": "red", "*": "blue"})
    assert (config.policies_to_train, config.count_steps_by) == (["red"], "agent_steps")
    config.validate()


def test_what_is_written():
    written = by_methods().to_dict()["multi_agent"]
    assert written == {
        "policies": {"red": {"config": {"lr": 0.001}, "model_config": {"fcnet_hiddens": [8]}}, "blue": {}},
        "policy_mapping_fn": {"red_*": "red", "*": "blue"},
        "policies_to_train": ["red"],
        "count_steps_by": "agent_steps",
        "episode_end": "all",
        "algorithm_config_overrides_per_module": {},
    }
    plain = PPOConfig().multi_agent(policies={"b", "a"}, policy_mapping_fn={0: "a", 1: "b"}).to_dict()["multi_agent"]
    assert (plain["policies"], plain["policy_mapping_fn"]) == (["a", "b"], {"0": "a", "1": "b"})


def test_one_agent_and_one_module_for_all_agents():
    config = PPOConfig()
    assert not config.is_multi_agent and config.policies == {"default_policy": PolicySpec()}
    assert not PPOConfig().multi_agent(policies={"default_policy"}).is_multi_agent
    config = PPOConfig().multi_agent(policies=["main"])
    config.validate()
    assert config.is_multi_agent
    assert [config.policy_mapping_fn(agent, None) for agent in ("a", 3)] == ["main", "main"]


def test_modules_are_those_of_the_table_and_of_the_specs():
    config = PPOConfig().multi_agent(policy_mapping_fn={"a": "x", "b": "y"})
    assert list(config.policies) == ["x", "y"]
    config.rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs={"y": RLModuleSpec(), "z": RLModuleSpec()}))
    assert list(config.policies) == ["x", "y", "z"]
    config.validate()


def test_settings_of_single_modules():
    config = by_methods().rl_module(algorithm_config_overrides_per_module={"red": {"clip_param": 0.1}})
    config.rl_module(algorithm_config_overrides_per_module={"blue": PPOConfig.overrides(lr=0.5, lambda_=0.75)})
    assert config.overrides_for("red") == {"lr": 0.001, "clip_param": 0.1}
    own = config.get_config_for_module("red")
    assert (own.lr, own.clip_param, own.vf_clip_param) == (0.001, 0.1, config.vf_clip_param)
    assert config.get_config_for_module("blue").lambda_ == 0.75
    assert (config.lr, config.lambda_) == (5e-5, 1.0)
    assert config.get_config_for_module("green") is config
    twin = config.copy().multi_agent(policies_to_train=None)
    assert (config.policies_to_train, twin.policies_to_train) == (["red"], None)


# ------------------------------------------------------------------------------------------- errors


def test_everything_wrong_is_reported_at_once():
    data = {
        "environment": {"env": "x"},
        "rl_module": {"model_config": {"fcnet_hidden": [8]}},
        "multi_agent": {
            "policies": {
                "red": {"config": {"lr": -1, "train_batch_size": 4, "gama": 1}, "model_config": {"use_lstn": True}},
                "blue": None,
            },
            "policy_mapping_fn": {"a": "red", "b": "blu"},
            "policies_to_train": ["redd"],
            "count_steps_by": "steps",
            "algorithm_config_overrides_per_module": {"green": {"env": "y"}},
            "policy_map": 1,
        },
    }
    with pytest.raises(ConfigError) as caught:
        PPOConfig.from_dict(data)
    for line in (
        "multi_agent.policies.red.config.lr: input should be greater than or equal to 0, found int -1",
        "multi_agent.policies.red.config.train_batch_size: no setting of single modules: all modules learn from one",
        "multi_agent.policies.red.config.gama: unknown setting; did you mean 'gamma'?",
        "multi_agent.policies.red.model_config.use_lstn: unknown setting; did you mean 'use_lstm'?",
        "multi_agent.policy_mapping_fn: no module 'blu'; did you mean 'blue'?",
        "multi_agent.policies_to_train: no module 'redd'; did you mean 'red'?",
        "multi_agent.count_steps_by: input should be 'env_steps' or 'agent_steps', found str 'steps'",
        "multi_agent.algorithm_config_overrides_per_module: no module 'green'",
        "multi_agent.algorithm_config_overrides_per_module.green.env: belongs to environment; here are settings of",
        "multi_agent.policy_map: unknown setting; did you mean 'policy_mapping_fn'?",
        "rl_module.model_config.fcnet_hidden: unknown setting",
    ):
        assert f"- {line}" in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "messages"),
    [
        ({"policies": 3}, [r"multi_agent\.policies: expected module ids", "found 3"]),
        ({"policies": "red"}, ["found 'red'"]),
        ({"policies": []}, [r"found \[\]"]),
        ({"policies": [1, ""]}, ["found 1", "found ''"]),
        ({"policies": ["a", "a"]}, ["a is given twice"]),
        ({"policies": {"a": {"obs_space": BOX}}}, ["a: unknown setting 'obs_space'; did you mean 'observation_space'"]),
        ({"policies": {"a": 3, "b": [1]}}, ["a: expected None", r"b: .*found \[1\]"]),
        (
            {"policies": {"a": {"observation_space": 4}}},
            [r"PolicySpec\.observation_space\n +expected: a gymnasium Space"],
        ),
        ({"policies": {"a": {"action_space": "x"}}}, [r"PolicySpec\.action_space"]),
        ({"policies": {"a": {"config": 3}}}, [r"PolicySpec\.config\n +expected: a mapping"]),
        ({"policies": {"a": {"model_config": [3]}}}, [r"PolicySpec\.model_config"]),
        ({"policies": {"a": {"rl_module_spec": 3}}}, [r"PolicySpec\.rl_module_spec\n +expected: an RLModuleSpec"]),
        (
            {"policies": {"a": (gym.Env, BOX, ACT, {})}},
            [r"policy_class\n.*found:    Env, a class of RLlib's old stack"],
        ),
        ({"policy_mapping_fn": "my.module:function"}, ["expected a function .* or a table"]),
        ({"policy_mapping_fn": {}}, ["an empty table"]),
        ({"policies_to_train": "red"}, ["expected module ids, or a function"]),
        ({"policies_to_train": [1]}, ["expected module ids, or a function"]),
        ({"algorithm_config_overrides_per_module": {"a": 3}}, ["should be a valid dictionary"]),
    ],
)
def test_wrong_settings_are_reported_at_once(settings, messages):
    with pytest.raises(ConfigError) as caught:
        PPOConfig().multi_agent(**settings)
    for message in messages:
        caught.match("(?s)" + message)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policies": ["a", "b"]}, r"policy_mapping_fn: missing: say which agents a, b decide for"),
        ({"policy_mapping_fn": lambda agent_id, episode: "a"}, r"multi_agent\.policies: missing: list the modules"),
        ({"policies": ["a"], "policies_to_train": ["b"]}, "policies_to_train: no module 'b'"),
    ],
)
def test_what_sections_lack_is_reported_when_all_are_there(settings, message):
    config = PPOConfig().multi_agent(**settings)
    with pytest.raises(ConfigError, match=message):
        config.validate()


def test_code_is_no_data():
    config = PPOConfig().multi_agent(
        policies={"a": {"observation_space": BOX}, "b": RLModuleSpec()},
        policy_mapping_fn=lambda agent_id, episode: "a",
        policies_to_train=lambda module_id, batch: True,
    )
    with pytest.raises(ConfigError) as caught:
        config.to_dict()
    for line in (
        "multi_agent.policies.a.observation_space: Box is code",
        "multi_agent.policies.b.rl_module_spec: RLModuleSpec is code",
        "multi_agent.policy_mapping_fn: function is code",
        "multi_agent.policies_to_train: function is code",
    ):
        assert line in str(caught.value)


def test_agents_without_module():
    config = PPOConfig().multi_agent(policy_mapping_fn={"red_*": "red", "blue_1": "blue"})
    config.build_env_to_module_connector(spaces=agents("red_0", "red_1", "blue_1"))
    with pytest.raises(ConfigError) as caught:
        config.build_env_to_module_connector(spaces=agents("red_0", "blue_1", "blue_2", "green"))
    caught.match(r"agents 'blue_1', 'blue_2', 'green', 'red_0'")
    caught.match(r"no entry that fits 'blue_2', 'green' among red_\*, blue_1")


def test_a_function_that_names_no_module():
    config = PPOConfig().multi_agent(
        policies={"red", "blue"}, policy_mapping_fn=lambda agent_id, episode, **kwargs: agent_id.split("_")[0]
    )
    config.build_env_to_module_connector(spaces=agents("red_0", "blue_1"))
    with pytest.raises(ConfigError, match=r"(?s)'rad' for agent 'rad_0'.*did you mean 'red'"):
        config.build_env_to_module_connector(spaces=agents("rad_0", "blue_1"))


def by_episode(agent_id, episode, **kwargs):
    return ["red", "blue"][hash(episode.id_) % 2]


@pytest.mark.parametrize(
    "mapping", [by_episode, lambda agent_id, *args, **kwargs: agent_id, {"red": "red", "blue": "blue"}.get]
)
def test_functions_that_need_an_episode_are_not_asked_without(mapping):
    config = PPOConfig().multi_agent(policies={"red", "blue"}, policy_mapping_fn=mapping)
    pipeline = config.build_env_to_module_connector(spaces=agents("red", "blue"))
    assert dict(pipeline.observation_space) == {"red": BOX, "blue": BOX}


@pytest.mark.parametrize(
    ("mapping", "found"),
    [
        (lambda agent_id: agent_id, r"one of \(agent_id\): too many positional arguments"),
        (lambda agent_id, episode, worker, **kwargs: agent_id, r"missing a required argument: 'worker'"),
    ],
)
def test_a_function_of_other_arguments(mapping, found):
    config = PPOConfig().multi_agent(policies={"red", "blue"}, policy_mapping_fn=mapping)
    with pytest.raises(ConfigError, match=rf"(?s)policy_mapping_fn\(agent_id, episode\).*{found}.*\*\*kwargs"):
        config.build_env_to_module_connector(spaces=agents("red", "blue"))


# --------------------------------------------------------------------------------- forms of policies


def policies(value):
    return PPOConfig().multi_agent(policies=value).policies


@pytest.mark.parametrize("value", [{"b", "a"}, ["a", "b"], ("a", "b"), {"a": None, "b": {}}, frozenset("ab")])
def test_all_forms_of_ids(value):
    assert list(policies(value).items()) == [("a", PolicySpec()), ("b", PolicySpec())]
    assert list(policies(["b", "a"])) == list(policies(OrderedDict(b=None, a=None))) == ["b", "a"]


def test_all_forms_of_one_policy():
    spec = RLModuleSpec(observation_space=BOX)
    found = policies(
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
    assert found["empty"].given() == {} and found["own"].given() == {"observation_space": BOX, "config": {"lr": 0.1}}
    assert repr(PolicySpec(config={"lr": 1})) == "PolicySpec(config={'lr': 1})"


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
        ({np.int64(0): np.str_("x"), ("a", 1): "y"}, [0, np.int8(0), ("a", np.int64(1)), (np.str_("a"), 1)], [*"xxyy"]),
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
        ({("a", 0): "x", "('a', 0)": "y"}, "never reached"),
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
    mapping.table["b"] = "y"
    assert mapping.table == {"a*": "x", "7": "y"}, "its table cannot be changed from outside"
